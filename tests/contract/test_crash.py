"""kill -9 at every boundary of a start and of a release: the next reconcile, or the next start, finds its way."""
from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.host import Answer, Host, answer

Boot = Callable[[str], Host]

INTERRUPTED = ("/usr/bin/python3", "-IS", str(Path(__file__).with_name("interrupted.py")))
STARTS = {
    "mdev": ("t4-mdev", "--profile", "T4-4Q", "--cards", "2"),
    "nvidia_vfio": ("x48", "--profile", "X48-8Q", "--cards", "2"),
    "whole, VFs off first": ("flex170", "--profile", "flex170"),
    "vf": ("whole-or-vf", "--mechanism", "vf"),
}


def run_killed(host: Host, at: int, *argv: str, orphan: bool) -> Answer:
    """The command, killed at step `at`; by a caller that ends too, or by this process."""
    caller = ("sh", "-c", '"$@"; exit $?', "sh") if orphan else ()
    return answer(subprocess.Popen([*caller, *INTERRUPTED, "KILL", str(at), "--root", str(host.root), *argv],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))


def crashes(host: Host, *argv: str, orphan: bool = True) -> Iterator[int]:
    """Each step in turn, after the kill there; ends when the command gets to its end."""
    for at in itertools.count():
        done = run_killed(host, at, *argv, orphan=orphan)
        if done.code == 0:
            return
        assert done.code in (-9, 128 + 9), done
        yield at


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_start_is_killed(boot: Boot, start: tuple[str, ...]) -> None:
    host = boot(start[0])
    before, steps = host.kernel.snapshot(), 0
    for steps in crashes(host, "claim", "--vm", "one-1", *start[1:]):
        assert host.run("reconcile").code == 0
        assert (host.claims(), host.kernel.snapshot()) == ([], before), steps
    assert steps >= 8


def test_a_start_is_killed_while_its_caller_lives(boot: Boot) -> None:
    """Until the devices are ready the claim hangs on its maker; then on the caller, who can see that it failed."""
    host = boot("t4-mdev")
    before, kept = host.kernel.snapshot(), 0
    for at in crashes(host, "claim", "--vm", "one-1", *STARTS["mdev"][1:], orphan=False):
        assert host.run("reconcile").code == 0
        if host.claims():
            assert [(claim["state"], claim["note"]) for claim in host.claims()] == [("starting", None)]
            assert host.run("release", "--vm", "one-1").code == 0
            kept += 1
        else:
            assert kept == 0, at
        assert (host.claims(), host.kernel.snapshot()) == ([], before), at
    assert kept == 3        # after the last commit, before and after the output


def test_the_next_start_of_the_vm_clears_up(boot: Boot) -> None:
    host = boot("x48")
    before = host.kernel.snapshot()
    for at in crashes(host, "claim", "--vm", "one-1", *STARTS["nvidia_vfio"][1:]):
        slots = host.json("claim", "--vm", "one-1", *STARTS["nvidia_vfio"][1:])["slots"]
        assert host.slots() == [("one-1", slot["slot"]) for slot in slots], at
        assert host.run("release", "--vm", "one-1").code == 0
        assert (host.claims(), host.kernel.snapshot()) == ([], before), at


def test_a_full_host_after_crashes_gives_all_the_same(boot: Boot) -> None:
    """What dead starts hold is freed before anybody is refused."""
    host = boot("t4-mdev")
    for number in range(2):
        run_killed(host, 4, "claim", "--vm", f"one-{number}", "--profile", "T4-16Q", orphan=True)
    assert len(host.claims()) == 2
    codes = [host.run("claim", "--vm", f"one-{number}", "--profile", "T4-16Q").code for number in range(2, 5)]
    assert codes == [0, 0, 3]


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_release_is_killed(boot: Boot, start: tuple[str, ...]) -> None:
    host = boot(start[0])
    before, steps = host.kernel.snapshot(), 0
    host.run("claim", "--vm", "one-1", *start[1:])
    for steps in crashes(host, "release", "--vm", "one-1"):
        assert host.run("release", "--vm", "one-1").code == 0
        assert (host.claims(), host.kernel.snapshot()) == ([], before), steps
        host.run("claim", "--vm", "one-1", *start[1:])
    assert steps >= 6


def test_a_release_is_killed_and_reconcile_ends_it(boot: Boot) -> None:
    host = boot("flex170")
    before = host.kernel.snapshot()
    host.abandoned("claim", "--vm", "one-1", "--profile", "flex170")
    for at in crashes(host, "release", "--vm", "one-1"):
        assert host.run("reconcile").code == 0
        assert (host.claims(), host.kernel.snapshot()) == ([], before), at
        host.abandoned("claim", "--vm", "one-1", "--profile", "flex170")
