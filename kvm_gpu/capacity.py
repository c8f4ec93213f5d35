"""How many there are, who has them, how many can still be sold: one row for each board and profile.

The rows of one board are alternatives and never summed: what one takes, the others lose.
"""
from __future__ import annotations

from kvm_gpu.nodes import Supply
from kvm_gpu.refusal import why_used_otherwise
from kvm_gpu.room import cordoned, holders, layouts, more, room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set
    from typing import NamedTuple, Optional

    from kvm_gpu.model import Board, Cell, Hold, Host, Layout, Policy, Profile, Taken
else:
    from kvm_gpu.light import NamedTuple


class Row(NamedTuple):
    """Counts of one profile on one board. `why` says why none is free."""
    board: str
    model: str
    mechanism: str
    numa_node: Optional[int]
    profile: str
    total: int                      # on the empty board, as it is cut in this layout
    taken: int                      # by our VMs, as this profile
    free: int                       # how many more fit now
    sellable: int                   # free, without what policy holds back, where a VM still finds a CPU and memory
    foreign: int                    # by VMs that are not ours
    stuck: int                      # slots whose release hangs
    retiring: int                   # of `taken`: on a cordoned board, gone for good when released
    not_restored: int               # slots recorded, but not there: since the boot, or since the board is gone
    stranded_mib: Optional[int]     # frame buffer that no profile can use while this size runs; None: unknown
    why: Optional[str]


def capacity(host: Host, taken: Taken, policy: Policy, stuck: Set[str] = frozenset(), absent: Set[str] = frozenset(),
             ) -> tuple[Row, ...]:
    """Rows by board, present layout first; last what is held on boards that are gone. `stuck`: slots; `absent`: slots,
    or boards with all their slots."""
    rows: list[Row] = []
    reach, cordons = _Reach(host, taken, policy), dict(taken.cordoned)
    for board in host.boards:
        held = [hold for hold in taken.holds if hold.board == board.address]
        count = _Count(board, held, cordons.get(board.address), stuck, absent)
        rows += [row._replace(sellable=reach.sellable(row)) for row in count.rows()]
    return (*rows, *_lost(host, taken))


def _lost(host: Host, taken: Taken) -> Iterator[Row]:
    """Rows for what is held on boards that are not on this host any more."""
    boards = {board.address for board in host.boards}
    lost = [hold for hold in taken.holds if hold.board not in boards]
    for board, layout, profile in dict.fromkeys((hold.board, hold.layout, hold.profile) for hold in lost):
        held = [hold for hold in lost if (hold.board, hold.layout, hold.profile) == (board, layout, profile)]
        yield Row(board, "unknown", layout, None, profile, len(held), len(held), 0, 0, 0, 0, 0, len(held), None,
                  f"not on this host any more, held by {holders(held)}")


class _Reach:
    """What can be sold of the free ones. Held back is taken from the first boards that could sell."""

    def __init__(self, host: Host, taken: Taken, policy: Policy) -> None:
        supply = Supply(host, taken.uses, policy)
        self._nodes = frozenset(
            node.id for node in host.nodes if supply.shared(node)
            and any(supply.memory(node, size) for size in (None, *(pages.size_kib for pages in node.pages))))
        self._complete = frozenset(node.id for node in host.nodes if node.cores and node.mem_mib)
        self._held_back = {profile.casefold(): number for profile, number in policy.held_back}

    def sellable(self, row: Row) -> int:
        """A cheap test, true for the smallest VM: one CPU that nobody has alone, and some memory or a huge page, on the
        board's node; on any node where the board's is unknown, or has no CPUs or no memory by itself."""
        if not (row.numa_node in self._nodes if row.numa_node in self._complete else self._nodes):
            return 0
        name = row.profile.casefold()
        back = min(row.free, self._held_back.get(name, 0))
        self._held_back[name] = self._held_back.get(name, 0) - back
        return row.free - back


class _Count:
    """Counts one board."""

    def __init__(self, board: Board, held: Sequence[Hold], cordon: Optional[str], stuck: Set[str], absent: Set[str],
                 ) -> None:
        self._board = board
        self._held = held
        self._cordon = cordon       # why it is cordoned; None: it is not
        self._stuck = stuck
        self._absent = absent

    def rows(self) -> list[Row]:
        """The layout in use first: a profile that several layouts have is told once for each mechanism."""
        usable = layouts(self._board, self._held)
        rows: dict[tuple[str, str], Row] = {}
        for layout in (*usable, *(layout for layout in self._board.layouts if layout not in usable)):
            for name in dict.fromkeys(profile.name for cell in layout.cells for profile in cell.profiles):
                rows.setdefault((layout.mechanism, name), self._row(layout, name, layout in usable))
        return list(rows.values())

    def _row(self, layout: Layout, name: str, usable: bool) -> Row:
        pairs = [(cell, profile) for cell in layout.cells for profile in cell.profiles if profile.name == name]
        board = self._board
        total = min(sum(len(profile.starts) for _, profile in pairs), len(layout.slots))
        holds = [hold for hold in self._held if hold.layout == layout.name]
        taken = sum(hold.profile == name and hold.vm is not None for hold in holds)
        shown = {hold.slot for hold in holds if hold.profile == name}
        slots = [slot.name for slot in layout.slots if slot.name in shown or slot.name not in {h.slot for h in holds}]
        gone = [slot for slot in slots if slot in self._absent or board.address in self._absent]
        hung = [slot for slot in slots if slot in self._stuck]
        free, why = self._free(layout, pairs, usable)
        return Row(board.address, board.model, layout.mechanism, board.numa_node, name, total, taken, free, free,
                   self._foreign(pairs, holds), min(len(hung), total), 0 if self._cordon is None else taken,
                   min(len(gone), total), self._stranded(layout, pairs[0][0], holds), why)

    def _foreign(self, pairs: Sequence[tuple[Cell, Profile]], holds: Sequence[Hold]) -> int:
        """Holds that are not ours, as this profile, or in its cells as something that has no row."""
        cells = {cell.name: [profile.name for profile in cell.profiles] for cell, _ in pairs}
        return sum(hold.vm is None and hold.cell in cells
                   and (hold.profile == pairs[0][1].name or hold.profile not in cells[hold.cell]) for hold in holds)

    def _free(self, layout: Layout, pairs: Sequence[tuple[Cell, Profile]], usable: bool) -> tuple[int, Optional[str]]:
        """How many more fit, and why none does."""
        if self._board.trouble:
            return 0, "; ".join(self._board.trouble)
        if self._board.address in self._absent:
            return 0, "not restored"
        if self._cordon is not None:
            return 0, cordoned(self._cordon)
        if not usable:
            return 0, why_used_otherwise(self._board, self._held)
        slots = self._free_slots(layout, None)
        number = sum(min(more(cell, profile, self._inside(cell)), self._free_slots(layout, cell))
                     for cell, profile in pairs)
        if number and slots:
            return min(number, slots), None
        whys = (room(cell, profile, self._inside(cell)) for cell, profile in pairs)
        return 0, next((why for why in whys if isinstance(why, str)), self._no_slot(layout))

    def _inside(self, cell: Cell) -> list[Hold]:
        return [hold for hold in self._held if hold.cell == cell.name]

    def _free_slots(self, layout: Layout, cell: Optional[Cell]) -> int:
        taken = {hold.slot for hold in self._held} | self._stuck | self._absent
        return sum(slot.name not in taken and slot.trouble is None and (cell is None or cell.name in slot.cells)
                   for slot in layout.slots)

    def _no_slot(self, layout: Layout) -> str:
        trouble = [f"{slot.name}: {slot.trouble}" for slot in layout.slots if slot.trouble]
        gone = [f"{slot.name}: not restored" for slot in layout.slots if slot.name in self._absent]
        return "; ".join(trouble + gone) or "no slot left"

    def _stranded(self, layout: Layout, cell: Cell, holds: Sequence[Hold]) -> Optional[int]:
        """The cell's frame buffer less what is held and what more of the running size could use."""
        inside = [hold for hold in holds if hold.cell == cell.name]
        if not cell.one_size or not inside:
            return 0
        fb_mib = {profile.name: profile.fb_mib for profile in cell.profiles}
        used = [fb_mib.get(hold.profile) for hold in inside]
        running = [profile for profile in cell.profiles if profile.size == inside[0].size]
        if None in used or None in fb_mib.values():
            return None
        whole = max((profile.fb_mib or 0) * len(profile.starts) for profile in cell.profiles)
        rest = max(((profile.fb_mib or 0) * min(more(cell, profile, inside), self._free_slots(layout, cell))
                    for profile in running), default=0)
        return max(0, whole - sum(size or 0 for size in used) - rest)
