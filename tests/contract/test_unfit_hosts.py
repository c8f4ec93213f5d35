"""Hosts that are not fit: exit 4, one failure told, and kernel and ledger as they were."""
from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO
from pathlib import Path

import pytest

from tests.contract.host import DOMAIN, Answer, Host

Boot = Callable[[str], Host]

PCI = "/sys/bus/pci/devices/"
CLAIM = ("claim", "--vm", "one-1", "--profile", "T4-4Q")


@pytest.fixture
def host(boot: Boot) -> Host:
    return boot("t4-mdev")


@pytest.fixture
def ledger(host: Host) -> Path:
    """Of a host on which VM one-9 has a claim."""
    assert host.run("claim", "--vm", "one-9", "--profile", "T4-4Q").code == 0
    return host.root / "var/lib/kvm-gpu/ledger.db"


@contextmanager
def mounted(point: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, point], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", point], check=True)


def told(done: Answer) -> str:
    """What a failed run says on stderr: one sentence and a hint, without a traceback."""
    assert (done.code, done.out) == (4, "")
    message, hint = done.err.splitlines()
    assert message.startswith("kvm-gpu: ")
    assert hint.startswith("Hint: ")
    return done.err


# ---- the kernel ----

def test_a_read_only_sysfs(host: Host) -> None:
    before = host.kernel.snapshot()
    subprocess.run(["mount", "--bind", host.root / ".kernel", host.root / ".kernel"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", host.root / ".kernel"], check=True)
    said = told(host.run(*CLAIM))
    subprocess.run(["umount", host.root / ".kernel"], check=True)
    assert ("/mdev_supported_types/nvidia-232/create: writing '" in said, ": EROFS\n" in said) == (True, True)
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_the_second_of_two_devices_fails(host: Host) -> None:
    before = host.kernel.snapshot()
    broken = PCI + "0000:af:00.0/mdev_supported_types/nvidia-232/create"
    host.kernel.fail(broken, EIO)
    said = told(host.run("inject", *CLAIM[1:], "--cards", "2", stdin=DOMAIN))
    assert said.startswith(f"kvm-gpu: {broken}: writing '")
    assert ": EIO; undone: mdev " in said
    assert (host.claims(), host.kernel.snapshot()) == ([], before)
    assert [event["event"] for event in host.json("events")["events"]] == ["claimed", "failed"]


def test_a_driver_that_says_yes_and_does_nothing(boot: Boot) -> None:
    host = boot("a16-vfio")
    before = host.kernel.snapshot()
    current = PCI + "0000:25:00.4/nvidia/current_vgpu_type"
    host.kernel.lie(current)
    said = told(host.run("claim", "--vm", "one-1", "--profile", "A16-4Q"))
    assert said.startswith(f"kvm-gpu: {current}: wrote '713', reads '0'")
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


# ---- the disk ----

def test_a_disk_too_full_for_a_first_ledger(host: Host) -> None:
    before = host.kernel.snapshot()
    with mounted(host.root / "var/lib", "-t", "tmpfs", "-o", "size=16k", "none"):
        assert "nothing was recorded" in told(host.run(*CLAIM))
        assert list((host.root / "var/lib").glob("*/*")) == []
    assert host.kernel.snapshot() == before


def test_a_disk_that_fills_up(host: Host) -> None:
    with mounted(host.root / "var/lib", "-t", "tmpfs", "-o", "size=256k", "none"):
        assert host.run("claim", "--vm", "one-9", "--profile", "T4-4Q").code == 0
        with pytest.raises(OSError, match="No space left"):
            (host.root / "var/lib/filler").write_bytes(bytes(1 << 20))
        before = host.claims(), host.json("events"), host.kernel.snapshot()
        said = told(host.run("inject", "--vm", "one-0", "--profile", "T4-4Q", stdin=DOMAIN))
        assert "ledger.db: " in said
        assert "nothing was recorded" in said
        assert (host.claims(), host.json("events"), host.kernel.snapshot()) == before
        (host.root / "var/lib/filler").unlink()
        assert host.run(*CLAIM).code == 0


def test_no_folder_for_the_state(host: Host) -> None:
    before = host.kernel.snapshot()
    said = told(host.run("--state", str(host.root / "nowhere/state"), *CLAIM))
    assert "/nowhere/state/ledger.db: No such file or directory (ENOENT); nothing was recorded\n" in said
    assert host.kernel.snapshot() == before


# ---- the ledger ----

def unchanged(host: Host) -> None:
    """Every verb that needs the ledger says that it cannot be used, and leaves it alone."""
    before = host.state()
    for argv in (CLAIM, ("explain", *CLAIM[1:]), ("release", "--vm", "one-9"), ("list",), ("reconcile",), ("events",)):
        assert "ledger.db" in told(host.run(*argv))
    assert host.state() == before


def rewrite(ledger: Path, sql: str) -> None:
    """Run SQL on it, and have SQLite write all into the one file."""
    db = sqlite3.connect(ledger)
    db.execute(sql).fetchall()
    db.close()


def test_a_ledger_of_a_newer_format(host: Host, ledger: Path) -> None:
    rewrite(ledger, "pragma user_version=2")
    unchanged(host)
    assert f"{ledger} is of format 2, this package knows 1; it was left as it is" in host.run("list").err


@pytest.mark.parametrize("damage", [b"", b"no ledger\n" * 1000, b"SQLite format 3\0" + b"\xff" * 8192],
                         ids=["empty", "text", "overwritten"])
def test_a_corrupt_ledger(host: Host, ledger: Path, damage: bytes) -> None:
    for path in ledger.parent.iterdir():
        path.unlink()
    ledger.write_bytes(damage)
    unchanged(host)


def test_a_ledger_with_a_damaged_page(host: Host, ledger: Path) -> None:
    rewrite(ledger, "select * from claims")
    data = ledger.read_bytes()
    ledger.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    unchanged(host)


# ---- the configuration ----

BROKEN = {
    "no TOML": ("policy = \n", "/etc/kvm-gpu/config.toml: Invalid value (at line 1, column 10)"),
    "unknown key": ('# ours\npolicy = "pack"\npolcy = "spread"\n',
                    "/etc/kvm-gpu/config.toml:3: unknown key 'polcy'; did you mean 'policy'?"),
    "wrong value": ("\nrelease_deadline_s = 0\n",
                    "/etc/kvm-gpu/config.toml:2: release_deadline_s: 0 is not between 1 and 86400"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_configuration(host: Host, ledger: Path, case: str) -> None:
    text, words = BROKEN[case]
    before = host.state()
    host.write("/etc/kvm-gpu/config.toml", text)
    for argv in (CLAIM, ("explain", *CLAIM[1:]), ("capacity",), ("inventory",)):
        done = host.run(*argv)
        assert (done.code, done.out) == (4, "")
        assert done.err == f"kvm-gpu: {host.root}{words}\n"
    assert host.state() == before


def test_what_is_held_is_freed_under_a_broken_configuration(host: Host) -> None:
    before = host.kernel.snapshot()
    for vm in ("one-1", "one-2"):
        assert host.abandoned("claim", "--vm", vm, "--profile", "T4-4Q").code == 0
    host.write("/etc/kvm-gpu/config.toml", "policy = ")
    assert host.run("release", "--vm", "one-1") == (0, "VM one-1: released\n", "")
    assert host.run("reconcile") == (0, "VM one-2: released\n", "")
    assert host.kernel.snapshot() == before
