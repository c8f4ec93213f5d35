"""The ledger: what goes in comes out, a double give is impossible, and a file that cannot be used says why."""
from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvm_gpu import ledger as ledger_module
from kvm_gpu import ledgerfile
from kvm_gpu.errors import BusyError, HostError
from kvm_gpu.ledger import Claim, Cordon, Event, Ledger
from kvm_gpu.model import Attribute, Command, Device, Driver, Hold, Mdev, Placement, State, Taken, Use

UUID = "11111111-0000-4000-8000-000000000101"
TYPE_PATH = "/sys/bus/pci/devices/0000:ca:00.4/mdev_supported_types/nvidia-711"

CLAIM = Claim("c1", "one-42", "ann", ("users", "vdi team"), "starting", True, "boot-1", (4711, 99), 300, 1_700_000_000,
              None, None)
MDEV = Device(Hold("0000:ca:00.4", "0000:ca:00.0", "mdev", "board", "A16-1Q", 0, 1024, "one-42", "starting"),
              "mdev", (), UUID, None)
WHOLE = Device(Hold("0000:3b:00.0", "0000:3b:00.0", "whole", "board", "rtx6000", 0, 1, "one-42", "starting"),
               "whole", ("0000:3b:00.0", "0000:3b:00.1"), None, 32768)
USES = (Use("one-42", 0, 1, ((0, (8,)), (1, (9, 41))), (8, 9, 40, 41), 8192, 1048576, False),
        Use("one-42", 1, None, (), (), 2048, None, False))
UNPINNED = tuple(use._replace(pins=()) for use in USES)     # as others see them
ACTIONS = (Attribute("/sys/a", "713", "0", "0"), Attribute("/sys/b", "1", "0"),
           Driver("0000:3b:00.0", "vfio-pci", None), Mdev(UUID, TYPE_PATH),
           Command(("tool", "--all the rest"), (), "tool --is"))


def other(slot: str = "0000:5e:00.0", cpus: tuple[int, ...] = (), uuid: str | None = None,
          vm: str = "one-43", claim: str = "c2") -> tuple[Claim, Placement]:
    hold = Hold(slot, slot, "whole", "board", "rtx6000", 0, 1, vm, "starting")
    return (CLAIM._replace(id=claim, vm=vm, since=1_700_000_001),
            Placement((Device(hold, "whole", (slot,), uuid),), (Use(vm, 0, 0, (), cpus, 1024, None),)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(str(path))


@pytest.fixture
def full(ledger: Ledger) -> Ledger:
    with ledger.write():
        ledger.add(CLAIM, Placement((MDEV, WHOLE), USES), ACTIONS)
    return ledger


def everything(ledger: Ledger) -> object:
    claims = ledger.claims()
    return claims, ledger.taken(), [(ledger.devices(c.id), ledger.uses(c.id), ledger.actions(c.id)) for c in claims]


# ---- what is recorded ----

def test_all_that_was_added_is_read_back(full: Ledger, path: Path) -> None:
    for reader in (full, Ledger(str(path))):
        assert reader.claims() == (CLAIM,)
        assert (reader.claim("c1"), reader.claim("c2")) == (CLAIM, None)
        assert (reader.claim_of("one-42"), reader.claim_of("one-4")) == (CLAIM, None)
        assert reader.devices("c1") == (MDEV, WHOLE)
        assert reader.uses("c1") == USES
        assert reader.actions("c1") == ACTIONS
        assert reader.taken() == Taken((WHOLE.hold, MDEV.hold), UNPINNED, ())


def test_a_removed_claim_leaves_nothing(full: Ledger) -> None:
    with full.write():
        assert full.remove("c1") is True
        assert full.remove("c1") is False
    assert everything(full) == ((), Taken(), [])
    assert (full.devices("c1"), full.uses("c1"), full.actions("c1")) == ((), (), ())
    with full.write():
        full.add(CLAIM, Placement((MDEV, WHOLE), USES), ACTIONS)
    assert full.taken() == Taken((WHOLE.hold, MDEV.hold), UNPINNED, ())


@pytest.mark.parametrize(("state", "allocated"),
                         [("starting", False), ("active", True), ("releasing", True), ("kept", False)])
def test_holds_and_uses_follow_the_state(full: Ledger, state: State, allocated: bool) -> None:
    with full.note():
        assert full.set_state("c1", state) is True
    assert full.taken() == Taken(tuple(device.hold._replace(state=state) for device in (WHOLE, MDEV)),
                                 tuple(use._replace(allocated=allocated) for use in UNPINNED))


def test_a_change_of_state_replaces_the_note_and_keeps_what_is_not_given(full: Ledger) -> None:
    with full.note():
        full.set_state("c1", "active", "seen open", verified_at=1_700_000_100)
        assert full.set_state("c9", "active") is False
    active = CLAIM._replace(state="active", note="seen open", verified_at=1_700_000_100)
    assert full.claims() == (active,)
    with full.note():
        full.set_state("c1", "starting", holder=(5000, 1), deadline=900)
    assert full.claims() == (active._replace(state="starting", note=None, holder=(5000, 1), deadline=900),)


def test_a_kept_claim_gives_cpus_and_memory_back(full: Ledger) -> None:
    with full.write():
        full.set_state("c1", "kept")
        full.free_compute("c1")
    kept = tuple(device.hold._replace(state="kept") for device in (WHOLE, MDEV))
    assert (full.taken(), full.uses("c1")) == (Taken(kept), ())
    with full.write():
        full.add(*other(cpus=(8, 40)), ())      # these CPUs can be taken again
    assert full.claim("c2") == CLAIM._replace(id="c2", vm="one-43", since=1_700_000_001)


def test_the_present_run_goes_before_one_that_still_leaves(full: Ledger) -> None:
    with full.write():
        full.set_state("c1", "releasing")
        full.add(*other(vm="one-42"), ())
    assert [claim.id for claim in full.claims()] == ["c1", "c2"]
    assert full.claim_of("one-42") == CLAIM._replace(id="c2", since=1_700_000_001)
    with full.write():
        full.remove("c2")
    assert full.claim_of("one-42") == CLAIM._replace(state="releasing")


def test_cordons(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9)
    with ledger.write():
        ledger.cordon("0000:3b:00.0", "fan")
        ledger.cordon("0000:3b:00.0", "fan is loud")
        ledger.cordon("0000:2a:00.0", "")
    assert ledger.cordons() == (Cordon("0000:2a:00.0", 1_700_000_000, ""),
                                Cordon("0000:3b:00.0", 1_700_000_000, "fan is loud"))
    assert ledger.taken() == Taken(cordoned=(("0000:2a:00.0", ""), ("0000:3b:00.0", "fan is loud")))
    with ledger.write():
        assert (ledger.uncordon("0000:3b:00.0"), ledger.uncordon("0000:3b:00.0")) == (True, False)
    assert ledger.taken() == Taken(cordoned=(("0000:2a:00.0", ""),))


def test_events_are_the_last_ones_oldest_first(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9)
    monkeypatch.setattr(ledger_module, "EVENTS_KEPT", 3)
    with ledger.note():
        for number in range(5):
            ledger.event(f"c{number}", None, "claimed", f"number {number}")
    expected = tuple(Event(1_700_000_000, f"c{n}", None, "claimed", f"number {n}") for n in (2, 3, 4))
    assert ledger.events(100) == expected
    assert ledger.events(2) == expected[1:]


# ---- all or nothing, and never twice ----

@pytest.mark.parametrize(("second", "column"), [
    (other(slot="0000:3b:00.0"), "holds.slot"), (other(cpus=(7, 41)), "cpus.cpu"), (other(uuid=UUID), "holds.uuid"),
    (other(vm="one-42"), "claims.vm"), (other(claim="c1"), "claims.id"),
], ids=["slot", "cpu", "uuid", "vm", "claim"])
def test_what_is_held_cannot_be_given_again(full: Ledger, path: Path, second: tuple[Claim, Placement],
                                            column: str) -> None:
    before = everything(full)
    with pytest.raises(HostError, match=rf"^{path}: UNIQUE constraint failed: {column} .*; nothing was recorded$"), \
            full.write():
        full.add(*second, ACTIONS)
    assert everything(full) == before


def test_a_block_that_raises_records_nothing(full: Ledger) -> None:
    before = everything(full)

    def interrupted() -> None:
        with full.write():
            full.remove("c1")
            full.add(*other(), ())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert everything(full) == before
    with full.write():
        full.remove("c1")
    assert full.claims() == ()


@pytest.mark.parametrize("change", [
    lambda ledger: ledger.add(*other(), ()), lambda ledger: ledger.set_state("c1", "active"),
    lambda ledger: ledger.remove("c1"), lambda ledger: ledger.cordon("x", "y"),
    lambda ledger: ledger.event(None, None, "e"),
], ids=["add", "set_state", "remove", "cordon", "event"])
def test_nothing_is_changed_outside_of_a_transaction(full: Ledger, change: Callable[[Ledger], object]) -> None:
    before = everything(full)
    with pytest.raises(RuntimeError):
        change(full)
    assert everything(full) == before


def test_decisions_are_synced_and_notes_are_not(ledger: Ledger) -> None:
    def synchronous() -> int:
        assert ledger._db is not None
        return ledger._db.execute("pragma synchronous").fetchone()[0]

    seen = []
    for block in (ledger.write, ledger.note, ledger.write):
        with block():
            seen.append(synchronous())
    assert seen == [2, 1, 2]    # full, normal


# ---- the file ----

def test_reading_makes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    assert everything(ledger) == ((), Taken(), [])
    assert (ledger.claim("c1"), ledger.claim_of("one-42"), ledger.cordons(), ledger.events(9)) == (None, None, (), ())
    assert list(tmp_path.iterdir()) == []


def test_a_reader_sees_the_ledger_that_another_process_makes_later(ledger: Ledger, path: Path) -> None:
    assert ledger.claims() == ()
    writer = Ledger(str(path))
    with writer.write():
        writer.add(CLAIM, Placement((), ()), ())
    assert ledger.claims() == (CLAIM,)


def test_the_file_is_roots_alone_and_has_its_format(full: Ledger, path: Path) -> None:
    modes = {file.name: file.stat().st_mode & 0o777 for file in (path.parent, *path.parent.iterdir())}
    assert modes == {"state": 0o700, "ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    with sqlite3.connect(path) as db:
        assert [db.execute(f"pragma {name}").fetchone()[0] for name in ("user_version", "journal_mode")] == [1, "wal"]


def test_odd_characters_in_the_path(tmp_path: Path) -> None:
    path = tmp_path / "50%25 ?mode=memory#1" / "ledger.db"
    ledger = Ledger(str(path))
    with ledger.write():
        ledger.add(CLAIM, Placement((), ()), ())
    assert Ledger(str(path)).claims() == (CLAIM,)
    assert path.stat().st_size > 0


def test_a_newer_format_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version=3")
    before = path.read_bytes()
    text = f"{path} is of format 3, this package knows 1; it was left as it is"
    with pytest.raises(HostError) as reading:
        Ledger(str(path)).claims()
    with pytest.raises(HostError) as writing, Ledger(str(path)).write():
        pass
    assert [reading.value.message, writing.value.message] == [text, text]
    assert path.read_bytes() == before


def test_a_file_that_is_no_ledger(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(HostError, match=f"^{path}: file is not a database") as caught, Ledger(str(path)).write():
        pass
    assert caught.value.hint == "this file is no ledger: restore it from a backup, or move it away and reconcile"
    assert path.read_bytes() == b"no database at all" * 100


def test_a_damaged_ledger(full: Ledger, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    image = path.read_bytes()
    path.write_bytes(image[:4096] + b"\xff" * (len(image) - 4096))
    with pytest.raises(HostError, match=f"^{path}: database disk image is malformed") as caught:
        Ledger(str(path)).claims()
    assert caught.value.hint == "keep a copy, then restore the file from a backup, or move it away and reconcile"


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, cause in ((tmp_path / "file" / "ledger.db", "Not a directory (ENOTDIR)"),
                        (tmp_path / "none" / "state" / "ledger.db", "No such file or directory (ENOENT)")):
        with pytest.raises(HostError) as caught, Ledger(str(path)).write():
            pass
        assert str(caught.value) == f"{path}: {cause}; nothing was recorded"


def test_a_full_disk_records_nothing(full: Ledger, path: Path) -> None:
    before = everything(full)
    assert full._db is not None
    full._db.execute("pragma max_page_count=1")     # SQLite keeps it at the present size
    with pytest.raises(HostError) as caught, full.write():
        full.event("c1", "one-42", "claimed", "x" * 1_000_000)
    assert str(caught.value) == f"{path}: database or disk is full (SQLITE_FULL); nothing was recorded"
    assert caught.value.hint == "make room on the ledger's file system"
    assert (everything(full), full.events(1)) == (before, ())


def test_a_write_that_the_file_system_refuses(full: Ledger, path: Path) -> None:
    before = everything(full)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("ledger.db-wal").stat().st_size, hard))
    try:
        with pytest.raises(HostError) as caught, full.write():
            full.remove("c1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == f"{path}: disk I/O error (SQLITE_IOERR_WRITE); nothing was recorded"
    assert (everything(full), everything(Ledger(str(path)))) == (before, before)


# ---- several at once ----

def test_a_lock_held_too_long_names_its_holder(full: Ledger, path: Path, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgerfile, "WAIT_S", 0.3)
    script = tmp_path / "holds_the_lock.py"
    script.write_text("import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
                      "db.execute('begin immediate')\nprint(flush=True)\nsys.stdin.read()\n")
    command = [sys.executable, str(script), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began = time.monotonic()
        with pytest.raises(BusyError) as caught, Ledger(str(path)).write():
            pass
        assert 0.2 < time.monotonic() - began < 2
        assert full.claims() == (CLAIM,)    # readers do not wait
        child.kill()
    shown = " ".join(command)[:200]
    assert str(caught.value) == f"{path}: locked by process {child.pid} ({shown}) for more than 0.3 s"
    with full.write():      # a dead holder holds nothing
        assert full.remove("c1") is True


def test_sixteen_first_starts_at_once(path: Path) -> None:
    def start(number: int) -> None:
        ledger = Ledger(str(path))
        ledger.taken()
        with ledger.write():
            ledger.add(*other(f"0000:{number:02x}:00.0", (number,), None, f"one-{number}", f"c{number:02}"), ACTIONS)

    assert run_at_once(start, 16) == [0] * 16
    ledger = Ledger(str(path))
    assert sorted(claim.id for claim in ledger.claims()) == [f"c{number:02}" for number in range(16)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]


def test_one_of_sixteen_gets_the_last_slot(full: Ledger, path: Path) -> None:
    def start(number: int) -> None:
        ledger = Ledger(str(path))
        with ledger.write():
            if "0000:5e:00.0" in [hold.slot for hold in ledger.taken().holds]:
                os._exit(3)
            ledger.add(*other(vm=f"one-{number + 100}", claim=f"c{number + 100}"), ())

    assert sorted(run_at_once(start, 16)) == [0] + [3] * 15


def run_at_once(start: Callable[[int], None], number: int) -> list[int]:
    """Exit codes of `number` processes that begin together and end as a hook does, without closing anything."""
    gate, opener = os.pipe()
    children = []
    for each in range(number):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                os.close(opener)
                os.read(gate, 1)
                start(each)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(opener)
    os.close(gate)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
