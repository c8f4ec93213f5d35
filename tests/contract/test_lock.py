"""Case C16: a hook that must not call back, and must not wait: not for libvirt, not for the ledger's lock."""
from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.host import DOMAIN, Host, answer

Boot = Callable[[str], Host]

LIMIT_S = 5
HOLD = """\
import sqlite3, sys, time
sqlite3.connect(sys.argv[1], isolation_level=None).execute("begin immediate")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def host(boot: Boot) -> Host:
    host = boot("t4-mdev")
    assert host.run("claim", "--vm", "one-9", "--profile", "T4-4Q").code == 0
    return host


@pytest.fixture
def locker(host: Host) -> Iterator[int]:
    """Pid of a process that keeps the ledger locked."""
    with subprocess.Popen([sys.executable, "-c", HOLD, host.root / "var/lib/kvm-gpu/ledger.db"],
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


def descendants(pid: int) -> list[str]:
    """Processes that `pid` has as children now."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_lock_is_held_for_a_minute(host: Host, locker: int) -> None:
    before, ours = host.state(), descendants(os.getpid())
    begun = time.monotonic()
    hooks = [host.start(*argv, stdin=subprocess.PIPE) for argv in (
        ("inject", "--vm", "one-0", "--profile", "T4-4Q"), ("claim", "--vm", "one-1", "--profile", "T4-4Q"),
        ("release", "--vm", "one-9"))]
    for hook in hooks:
        done = answer(hook, DOMAIN)     # reads to the end: nobody else has the pipes open any more
        assert (done.code, done.out) == (75, "")
        message, hint = done.err.splitlines()
        assert message.startswith(f"kvm-gpu: {host.root}/var/lib/kvm-gpu/ledger.db: locked by process {locker} (")
        assert message.endswith(") for more than 4 s")
        assert hint == "Hint: try again"
    assert time.monotonic() - begun < LIMIT_S
    assert descendants(os.getpid()) == ours
    assert host.state() == before


def test_reading_waits_for_nobody(host: Host, locker: int) -> None:
    begun = time.monotonic()
    assert host.slots() == [("one-9", "0000:3b:00.0#0")]
    assert host.json("explain", "--vm", "one-0", "--profile", "T4-4Q")["decision"] == "placed"
    assert host.json("reconcile") == {"done": []}
    assert time.monotonic() - begun < 2


def test_a_lock_that_is_let_go_in_time(host: Host) -> None:
    db = sqlite3.connect(host.root / "var/lib/kvm-gpu/ledger.db", isolation_level=None)
    db.execute("begin immediate")
    process = host.start("claim", "--vm", "one-0", "--profile", "T4-4Q")
    time.sleep(1)
    db.execute("rollback")
    db.close()
    assert answer(process).code == 0


def test_libvirt_is_never_called(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket accepts, and never answers."""
    monkeypatch.chdir(host.root / "run/libvirt")        # a socket's path may have 107 bytes
    with socket.socket(socket.AF_UNIX) as libvirt:
        libvirt.bind("libvirt-sock")
        libvirt.listen()
        libvirt.setblocking(False)
        for argv in (("inject", "--vm", "one-0", "--profile", "T4-4Q"), ("capacity",), ("reconcile",),
                     ("explain", "--vm", "one-1", "--mechanism", "mdev"), ("release", "--vm", "one-0"), ("list",)):
            assert host.run(*argv, stdin=DOMAIN).code == 0
        with pytest.raises(BlockingIOError):
            libvirt.accept()
