"""`make lab`: the tests of tests/lab/inside, in a throw-away machine with a real kernel, VFIO and libvirt.

    python -m tests.lab                         all of them, and a reboot with claims in the ledger
    python -m tests.lab PYTEST-ARGUMENT...      some: -k guard -x
    python -m tests.lab --run COMMAND...        any command, to look around: sh -c 'lspci -nn'
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab import kept, ready, run

CHECKOUT = Path(__file__).resolve().parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "tests/lab/inside"]
FIRST_BOOT = [sys.executable, "-m", "tests.lab.inside.before_reboot"]
TIMEOUT_S = 900


def main(argv: list[str]) -> int:
    """The exit status of what ran in the lab. Where it cannot start, it says why: 0, or 1 with CI set."""
    found = ready.look()
    why = ready.obstacle(found)
    if why is not None or found.kernel is None:
        status, sentence = ready.verdict(str(why), bool(os.environ.get("CI")))
        print(sentence, file=sys.stderr)
        return status
    try:
        made = kept.prepare(found.kernel)
    except subprocess.CalledProcessError as error:
        print(f"lab: {error}\n{error.output}", file=sys.stderr)
        return run.LAB_FAILED
    return run.run(made, CHECKOUT, _commands(argv), TIMEOUT_S)


def _commands(argv: list[str]) -> list[list[str]]:
    """One for each boot."""
    if argv[:1] == ["--run"]:
        return [argv[1:]]
    return [[*PYTEST, *argv]] if argv else [FIRST_BOOT, PYTEST]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
