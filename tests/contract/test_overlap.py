"""A release, a second start and a reconcile while a start is under way, stopped at each of its steps."""
from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from tests.contract.host import Answer, Host, answer
from tests.contract.test_crash import INTERRUPTED

Boot = Callable[[str], Host]

START = ("claim", "--vm", "one-1", "--profile", "T4-4Q", "--cards", "2")


class Overlap(NamedTuple):
    first: Answer       # of the start that was stopped and went on
    second: Answer      # of what ran meanwhile


def overlaps(host: Host, meanwhile: Callable[[], Answer]) -> Iterator[Overlap]:
    """START with something else at each of its steps at which it does not hold the ledger's lock."""
    for at in itertools.count():
        start = subprocess.Popen([*INTERRUPTED, "STOP", str(at), "--root", str(host.root), "--json", *START],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        seen = os.waitid(os.P_PID, start.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen
        if seen.si_status != signal.SIGSTOP:
            assert answer(start).code == 0
            return
        second = None if locked(host) else meanwhile()
        start.send_signal(signal.SIGCONT)
        first = answer(start)
        if second:
            yield Overlap(first, second)
        host.run("release", "--vm", "one-1")


def locked(host: Host) -> bool:
    path = host.root / "var/lib/kvm-gpu/ledger.db"
    if not path.exists():
        return False
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        return False


def test_a_release_meanwhile(boot: Boot) -> None:
    """Either the start wins, or it ends with nothing left: never a device without a claim."""
    host = boot("t4-mdev")
    before = host.kernel.snapshot()
    said = []
    for first, second in overlaps(host, lambda: host.run("release", "--vm", "one-1")):
        said.append((first.code, second.out))
        if second.out == "Nothing to do.\n":        # not recorded yet
            assert (first.code, [claim["claim"] for claim in host.claims()]) == (0, [first.json["claim"]])
        else:
            assert (host.claims(), host.kernel.snapshot()) == ([], before), said
    assert set(said) == {(0, "Nothing to do.\n"), (5, "VM one-1: is seen to by another process\n"),
                         (0, "VM one-1: released\n")}


def test_another_start_meanwhile(boot: Boot) -> None:
    host = boot("t4-mdev")
    codes = []
    for first, second in overlaps(host, lambda: host.run("--json", *START)):
        codes.append((first.code, second.code))
        winner = [each for each in (second, first) if each.code == 0][0]
        assert [claim["claim"] for claim in host.claims()] == [winner.json["claim"]]
        assert len(host.kernel.list("/sys/bus/mdev/devices")) == 2
    assert set(codes) == {(5, 0), (0, 5), (0, 0)}


def test_a_release_and_another_start_meanwhile(boot: Boot) -> None:
    host = boot("t4-mdev")

    def release_and_start() -> Answer:
        assert host.run("release", "--vm", "one-1").code == 0
        return host.run("--json", *START)

    codes = []
    for first, second in overlaps(host, release_and_start):
        codes.append((first.code, second.code))
        assert [claim["claim"] for claim in host.claims()] == [second.json["claim"]]
        assert len(host.kernel.list("/sys/bus/mdev/devices")) == 2
    assert set(codes) == {(5, 0), (0, 0)}


def test_a_reconcile_meanwhile(boot: Boot) -> None:
    host = boot("t4-mdev")
    for first, second in overlaps(host, lambda: host.run("reconcile")):
        assert (first.code, second.code, second.out) == (0, 0, "Nothing to do.\n")
        assert [claim["claim"] for claim in host.claims()] == [first.json["claim"]]
