"""A lab that cannot start: skipped with a sentence on a user's machine, a failure in CI. The lab itself: make lab."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import machine
from tests.lab.ready import TOOLS, Found, obstacle

FIT = Found((), root=True, kernel="6.1.0-57-amd64", available_mib=machine.NEEDS_MIB)
INSTALLS = "as root, .ci/setup installs all it needs"


@pytest.mark.parametrize(("found", "why"), [
    (FIT, None),
    (FIT._replace(absent=("cpio", "gcc")), f"not installed: cpio, gcc; {INSTALLS}"),
    (FIT._replace(root=False), "its libvirt needs files that only root can read: run it as root"),
    (FIT._replace(kernel=None), f"no kernel in /boot has its headers and source installed; {INSTALLS}"),
    (FIT._replace(available_mib=1000), f"it needs {machine.NEEDS_MIB} MiB of memory, 1000 are available"),
], ids=["fit", "tools", "user", "kernel", "memory"])
def test_obstacle(found: Found, why: str | None) -> None:
    assert obstacle(found) == why


@pytest.mark.parametrize(("ci", "code", "word"), [("", 0, "skipped"), ("true", 1, "cannot start")])
def test_without_qemu(tmp_path: Path, ci: str, code: int, word: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.lab"], cwd=Path(__file__).parents[2], capture_output=True,
                          text=True, check=False, env={**os.environ, "PATH": str(tmp_path), "CI": ci})
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"lab: {word}: not installed: {TOOLS[0]}, ")
    assert done.stderr.endswith(f"; {INSTALLS}\n")
