"""What the kernel shows as taken and the ledger does not have: others' mdevs, vGPU types and VMs. Cold path.

Seen and left alone: such a slot counts as taken, and nothing on it is ever written.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError
from kvm_gpu.mechanisms import Seen, mechanism
from kvm_gpu.model import Hold
from kvm_gpu.room import room
from kvm_gpu.sysfs import DEVICES
from kvm_gpu.users import user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.model import Board, Cell, Host, Layout, Profile
    from kvm_gpu.sysfs import Sysfs


def foreign_holds(
    sysfs: Sysfs, host: Host, holds: tuple[Hold, ...], uuids: frozenset[str], users: dict[str, int],
) -> tuple[Hold, ...]:
    """Holds with vm None. `holds`: the ledger's; `uuids`: of its mdevs; `users`: users.vfio_users."""
    found: list[Hold] = []
    for board in host.boards:
        held = [hold for hold in holds if hold.board == board.address]
        try:
            for layout in board.layouts:
                found += _on_layout(sysfs, board, layout, held + found, uuids, users)
        except HostError:
            continue        # the inventory tells the board's trouble
    return tuple(found)


def _on_layout(
    sysfs: Sysfs, board: Board, layout: Layout, holds: list[Hold], uuids: frozenset[str], users: dict[str, int],
) -> list[Hold]:
    held = [hold for hold in holds if hold.board == board.address]
    found: list[Hold] = []
    for one in mechanism(layout.mechanism).seen(sysfs, layout) + _opened(sysfs, layout, users):
        taken = {hold.slot for hold in held + found}
        slot = one.slot or next((slot.name for slot in layout.slots if slot.name not in taken), None)
        if slot is not None and slot not in taken and one.uuid not in uuids:
            found.append(_hold(board, layout, slot, one, held + found))
    return found


def _opened(sysfs: Sysfs, layout: Layout, users: dict[str, int]) -> tuple[Seen, ...]:
    """Slots whose functions a process has open: VMs on whole cards and VFs."""
    if layout.mechanism not in ("whole", "vf") or not users:
        return ()
    found = []
    for slot in layout.slots:
        pid = user(sysfs, tuple(DEVICES + function for function in slot.functions), users)
        if pid is not None:
            found.append(Seen(slot.name, None, None, f"open by process {pid}"))
    return tuple(found)


def _hold(board: Board, layout: Layout, slot: str, one: Seen, held: list[Hold]) -> Hold:
    known = [(cell, profile) for cell in layout.cells for profile in cell.profiles
             if one.type_id is None or profile.type_id == one.type_id]
    if not known:
        size = max((start + profile.size for cell in layout.cells for profile in cell.profiles
                    for start in profile.starts), default=1)
        return Hold(slot, board.address, layout.name, layout.cells[0].name, one.words, 0, size, None, "foreign")
    cell, profile = known[0]
    return Hold(slot, board.address, layout.name, cell.name, profile.name, _start(cell, profile, held), profile.size,
                None, "foreign")


def _start(cell: Cell, profile: Profile, held: list[Hold]) -> int:
    """Where it sits is not told by sysfs: the first place that is free among the others."""
    start: Optional[int | str] = room(cell, profile, [hold for hold in held if hold.cell == cell.name])
    return start if isinstance(start, int) else 0
