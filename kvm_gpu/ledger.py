"""Who holds what. One durable commit for each decision; what can be derived again is noted without a sync."""
from __future__ import annotations

import time

from kvm_gpu import ledgerfile
from kvm_gpu import ledgerrows as rows
from kvm_gpu.ledgerrows import Claim, Cordon, Event
from kvm_gpu.model import Hold, Taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any, Final, Literal, Optional

    from kvm_gpu.model import Action, Device, Placement, State, Use

    Row = tuple[Any, ...]

EVENTS_KEPT: Final = 10_000
LOG_KEPT: Final = 128 << 10     # bytes: a few starts


class Ledger:
    """The ledger at `path`. Where there is none, reading finds nothing and makes nothing; the first write makes it.
    Everything raises HostError for a file that cannot be used and BusyError for one that stays locked; what is changed
    within one `with` is recorded whole or not at all."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._db: Optional[sqlite3.Connection] = None

    # ---- transactions ----

    def write(self) -> _Transaction:
        """`with ledger.write():` decide under the lock; durable when the block ends, undone if it raises."""
        return _Transaction(self, "full")

    def note(self) -> _Transaction:
        """The same without a sync: a power cut may take it, together with the VMs of which it tells."""
        return _Transaction(self, "normal")

    def _begin(self, synchronous: Literal["full", "normal"]) -> None:
        if self._db is None:
            if not ledgerfile.exists(self.path):
                ledgerfile.create(self.path)
            self._db = ledgerfile.connect(self.path)
        self._execute(f"pragma synchronous={synchronous}")
        self._execute("begin immediate")

    def _commit(self) -> None:
        self._execute("commit")

    def _rollback(self) -> None:
        if self._db is not None and self._db.in_transaction:    # a full disk makes SQLite roll back by itself
            self._execute("rollback")

    # ---- reading ----

    def version(self) -> Optional[int]:
        """Stays the same while nobody else writes; None without a ledger. Source: SQLite, `pragma data_version`."""
        found = self._rows("pragma data_version")
        return found[0][0] if found else None

    def claims(self) -> tuple[Claim, ...]:
        """All claims, oldest first."""
        found = self._rows(f"select {rows.CLAIM} from claims order by since, rowid")
        return tuple([rows.to_claim(row) for row in found])

    def claim(self, claim_id: str) -> Optional[Claim]:
        found = self._rows(f"select {rows.CLAIM} from claims where id=?", claim_id)
        return rows.to_claim(found[0]) if found else None

    def claim_of(self, vm: str) -> Optional[Claim]:
        """The claim of a VM's present run, else the latest that still waits for its devices to be free."""
        found = self._rows(f"select {rows.CLAIM} from claims where vm=?"
                           " order by state='releasing', since desc, rowid desc limit 1", vm)
        return rows.to_claim(found[0]) if found else None

    def taken(self, without: frozenset[str] = frozenset(), kept: frozenset[str] = frozenset()) -> Taken:
        """All that place() has to leave alone, as if the claims `without` had ended, and the VMs of `kept` had stopped
        and kept their slots. Pins are left out."""
        holds = self._rows(f"select claim, {rows.HOLD} from holds join claims on id=claim order by slot")
        uses = self._rows(f"select claim, {rows.TAKEN} from uses join claims on id=claim order by claim, guest_node")
        boards = self._rows("select board, why from cordons order by board")
        return Taken(tuple([Hold(*row)._replace(state="kept") if claim in kept else Hold(*row)
                            for claim, *row in holds if claim not in without]),
                     tuple([rows.to_use(tuple(row)) for claim, *row in uses if claim not in without | kept]),
                     tuple(boards))

    def uuids(self) -> frozenset[str]:
        """Of all mdevs that are held."""
        return frozenset([uuid for uuid, in self._rows("select uuid from holds where uuid is not null")])

    def devices(self, claim_id: str) -> tuple[Device, ...]:
        """In the order of the wants."""
        found = self._rows(f"select {rows.DEVICE} from holds join claims on id=claim where id=? order by holds.rowid",
                           claim_id)
        return tuple([rows.to_device(row) for row in found])

    def identities(self, claim_id: str) -> dict[str, Optional[str]]:
        """Serial or slot label of each board that the claim holds something of; None: it has neither."""
        return dict(self._rows("select board, identity from holds where claim=?", claim_id))

    def uses(self, claim_id: str) -> tuple[Use, ...]:
        found = self._rows(f"select {rows.USE} from uses join claims on id=claim where id=? order by guest_node",
                           claim_id)
        return tuple([rows.to_use(row) for row in found])

    def actions(self, claim_id: str) -> tuple[Action, ...]:
        """What was done for the claim, in order."""
        found = self._rows(f"select {rows.ACTION} from actions where claim=? order by seq", claim_id)
        return tuple([rows.to_action(row) for row in found])

    def cordons(self) -> tuple[Cordon, ...]:
        return tuple([Cordon(*row) for row in self._rows("select board, since, why from cordons order by board")])

    def events(self, limit: int) -> tuple[Event, ...]:
        """The last `limit` events, oldest first."""
        found = self._rows("select time, claim, vm, event, detail from events order by seq desc limit ?", limit)
        return tuple([Event(*row) for row in reversed(found)])

    # ---- changing, within write() or note() ----

    def add(self, claim: Claim, placement: Placement, actions: tuple[Action, ...],
            identities: Optional[dict[str, Optional[str]]] = None) -> None:
        """Record a decision. `identities`: serial or label by board, for what is held beyond a reboot.
        Raises HostError where a slot, a UUID or a CPU is held already, or the VM has a claim."""
        self._insert("claims", [rows.claim_row(claim)])
        known = identities or {}
        self._insert("holds", [rows.device_row(claim.id, device, known.get(device.hold.board))
                               for device in placement.devices])
        self._insert("uses", [rows.use_row(claim.id, use) for use in placement.uses])
        self._insert("cpus", [(cpu, claim.id) for use in placement.uses for cpu in use.cpus])
        self._insert("actions", [rows.action_row(claim.id, seq, action) for seq, action in enumerate(actions)])

    def set_state(self, claim_id: str, state: State, note: Optional[str] = None, *, verified_at: Optional[int] = None,
                  holder: Optional[tuple[int, int]] = None, deadline: Optional[int] = None) -> bool:
        """Set state and note; the others where given. False where there is no such claim."""
        pid, start = holder or (None, None)
        return self._change(
            "update claims set state=?, note=?, verified_at=coalesce(?, verified_at), deadline=coalesce(?, deadline),"
            " holder_pid=coalesce(?, holder_pid), holder_start=coalesce(?, holder_start) where id=?",
            state, note, verified_at, deadline, pid, start, claim_id) == 1

    def move(self, moves: list[tuple[str, str, Device]]) -> None:
        """(claim, old slot, device as it is now): cards have got other addresses, maybe each other's."""
        for claim_id, slot, _ in moves:
            self._change("update holds set slot='moving ' || slot where claim=? and slot=?", claim_id, slot)
        for claim_id, slot, new in moves:
            self._change("update holds set slot=?, board=?, functions=? where claim=? and slot='moving ' || ?",
                         new.hold.slot, new.hold.board, rows.lines(new.functions), claim_id, slot)

    def enter_boot(self, claim_id: str, boot_id: str, note: str) -> None:
        """A kept claim that was found again after a reboot. What had been done for it the kernel has forgotten, and
        the paths may be another's now."""
        self._change("update claims set boot=?, note=? where id=?", boot_id, note, claim_id)
        self._change("delete from actions where claim=?", claim_id)

    def free_compute(self, claim_id: str) -> None:
        """Give CPUs and memory back; the slots stay (the VM of a kept claim is stopped)."""
        self._change("delete from cpus where claim=?", claim_id)
        self._change("delete from uses where claim=?", claim_id)

    def remove(self, claim_id: str) -> bool:
        """Free all that the claim holds. False where there is no such claim."""
        return self._change("delete from claims where id=?", claim_id) == 1

    def cordon(self, board: str, why: str) -> None:
        self._change("insert or replace into cordons values(?, ?, ?)", board, int(time.time()), why)

    def uncordon(self, board: str) -> bool:
        """False where it was not cordoned."""
        return self._change("delete from cordons where board=?", board) == 1

    def event(self, claim: Optional[str], vm: Optional[str], event: str, detail: Optional[str] = None) -> None:
        """Add to the history, which keeps the last EVENTS_KEPT."""
        self._change("insert into events(time, claim, vm, event, detail) values(?, ?, ?, ?, ?)",
                     int(time.time()), claim, vm, event, detail)
        self._change("delete from events where seq <= last_insert_rowid() - ?", EVENTS_KEPT)

    def tidy(self) -> None:
        """Bring the log into the database where it has grown. Who opens the ledger first reads the whole log: with
        1000 pages in it a VM start would take a quarter longer. A no-op while others are at it."""
        if self._db is not None and ledgerfile.log_size(self.path) > LOG_KEPT:
            self._execute("pragma wal_checkpoint(truncate)")

    # ---- SQL ----

    def _rows(self, sql: str, *values: object) -> list[Row]:
        if self._db is None:
            if not ledgerfile.exists(self.path):
                return []
            self._db = ledgerfile.connect(self.path)
        try:
            return self._db.execute(sql, values).fetchall()
        except ledgerfile.Error as error:
            raise ledgerfile.failure(self.path, error) from None

    def _change(self, sql: str, *values: object) -> int:
        if self._db is None or not self._db.in_transaction:
            raise RuntimeError("the ledger is changed within write() or note() only")
        return self._execute(sql, *values).rowcount

    def _insert(self, table: str, values: list[Row]) -> None:
        for row in values:
            self._change(f"insert into {table} values({', '.join('?' * len(row))})", *row)

    def _execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        assert self._db is not None
        try:
            return self._db.execute(sql, values)
        except ledgerfile.Error as error:
            raise ledgerfile.failure(self.path, error) from None


class _Transaction:
    """What write() and note() give; not to be nested."""

    def __init__(self, ledger: Ledger, synchronous: Literal["full", "normal"]) -> None:
        self._ledger = ledger
        self._synchronous = synchronous

    def __enter__(self) -> None:
        self._ledger._begin(self._synchronous)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._ledger._commit()
        finally:
            self._ledger._rollback()
