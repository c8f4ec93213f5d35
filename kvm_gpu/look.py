"""Looking at slots before they are given: what the kernel says of them, and the actions that would ready them.

A cache and a ledger can be wrong about the kernel; a look finds out without the lock, and without touching.
"""
from __future__ import annotations

import posix
from itertools import islice

from kvm_gpu.mechanisms import mechanism
from kvm_gpu.model import Mdev

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple, Optional

    from kvm_gpu.ledgerrows import Claim
    from kvm_gpu.mechanisms import Obstacle
    from kvm_gpu.model import Action, Board, Device, Host, Layout, NumaNode, Placement, Profile, Slot, Taken
    from kvm_gpu.site import View
    from kvm_gpu.sysfs import Sysfs
else:
    from kvm_gpu.light import NamedTuple


class Looked(NamedTuple):
    """A slot that would do as `profile`, and what readies it."""
    profile: str
    uuid: Optional[str]             # of the mdev that would be made
    actions: tuple[Action, ...]


class Search:
    """What one decision has learnt so far: the host it stands on, slots looked at, and slots found unfit.
    `kept`: the claim that holds slots for this VM while it is stopped, with its devices and what was `done` for them.
    `cleaned`: the ledger was reconciled, and the host read after that. `freed`: boards on which claims would end first:
    what the kernel says of them now is not what it would say then. `uuids`: as in Request."""

    def __init__(self, view: View, kept: Optional[Claim] = None, devices: tuple[Device, ...] = (),
                 done: tuple[Action, ...] = (), uuids: tuple[Optional[str], ...] = ()) -> None:
        self.view = view
        self.uuids = uuids
        self.cleaned = False
        self.freed: frozenset[str] = frozenset()
        self.kept = kept
        self.done = done
        self.own = {device.hold.slot: device for device in devices}
        self.width = 1
        self.version: Optional[int] = None      # of the ledger that was decided on
        self.nodes: tuple[NumaNode, ...] = ()   # with what was free then
        self._looked: dict[str, Looked] = {}
        self._unfit: dict[str, list[tuple[Optional[str], str]]] = {}

    def renew(self, view: View) -> None:
        """Start over on a host that was read afresh; what was found unfit on such a one stays so."""
        if not self.view.fresh:
            self._unfit.clear()
        self.view = view
        self._looked.clear()

    def veto(self, board: str, slot: Optional[str], why: str) -> None:
        """Neither this slot, or for None this board, serves this request."""
        found = self._unfit.setdefault(board, [])
        if (slot, why) not in found:
            found.append((slot, why))

    def host(self) -> Host:
        """The host, with what was found unfit as its trouble."""
        if not self._unfit:
            return self.view.host
        boards = (_marked(board, self._unfit.get(board.address, [])) for board in self.view.host.boards)
        return self.view.host._replace(boards=tuple(boards))

    def note(self, slot: str, looked: Looked) -> None:
        self._looked[slot] = looked

    def knows(self, placement: Placement) -> bool:
        """Whether all slots of the placement were looked at as what they shall be."""
        return all(device.hold.slot in self._looked and self._looked[device.hold.slot].profile == device.hold.profile
                   for device in placement.devices)

    def gives_up(self, placement: Placement) -> bool:
        """Whether the VM kept a slot that it would not get again: the old one has to be freed first."""
        chosen = {(device.hold.slot, device.hold.profile) for device in placement.devices}
        return any((slot, device.hold.profile) not in chosen for slot, device in self.own.items())

    def finish(self, placement: Placement) -> Placement:
        """With the UUIDs of the mdevs."""
        return placement._replace(devices=tuple(
            device._replace(uuid=self._uuid(at, device)) for at, device in enumerate(placement.devices)))

    def actions(self, placement: Placement) -> tuple[Action, ...]:
        new = tuple(action._replace(uuid=device.uuid) if isinstance(action, Mdev) and device.uuid else action
                    for device in self.finish(placement).devices for action in self._looked[device.hold.slot].actions)
        return tuple(action for action in self.done if action not in new) + new

    def _uuid(self, at: int, device: Device) -> Optional[str]:
        """None where the device is no mdev."""
        found = self._looked[device.hold.slot].uuid
        return found and (self.uuids[at] if self.uuids else None) or found


def look_at(sysfs: Sysfs, placement: Placement, search: Search, taken: Taken) -> bool:
    """Look at the chosen slots, and at `search.width` more beside each for the case that others are faster.
    False where one was found unfit: that is noted, decide again."""
    fit = True
    held = {hold.slot for hold in taken.holds}
    for device in placement.devices:
        board, layout, slot, profile = parts(search.view.host, device)
        others = (other for other in layout.slots if other.name not in held and other.name != slot.name)
        for one in (slot, *islice(others, search.width - 1)):
            obstacle = _look(sysfs, board, layout, one, profile, search)
            if obstacle is not None:
                search.veto(board.address, None if obstacle.whole_board else one.name, obstacle.why)
                fit = fit and one is not slot
    search.width = min(2 * search.width, 64)
    return fit


def parts(host: Host, device: Device) -> tuple[Board, Layout, Slot, Profile]:
    """Where on the host a placed device is."""
    hold = device.hold
    board = next(board for board in host.boards if board.address == hold.board)
    layout = next(layout for layout in board.layouts if layout.name == hold.layout)
    slot = next(slot for slot in layout.slots if slot.name == hold.slot)
    cell = next(cell for cell in layout.cells if cell.name == hold.cell)
    return board, layout, slot, next(profile for profile in cell.profiles if profile.name == hold.profile)


def functions_of(board: Board) -> frozenset[str]:
    """Addresses of its PF with the functions beside it, and of all that a VM could get."""
    slots = (slot for layout in board.layouts for slot in layout.slots)
    return frozenset(function.address for function in board.functions).union(*(slot.functions for slot in slots))


def _look(
    sysfs: Sysfs, board: Board, layout: Layout, slot: Slot, profile: Profile, search: Search,
) -> Optional[Obstacle]:
    kind = mechanism(layout.mechanism)
    kept = search.own.get(slot.name)
    if kept is None and board.address not in search.freed and (obstacle := kind.look(sysfs, slot, profile)) is not None:
        return obstacle
    uuid = (kept.uuid if kept else new_uuid()) if layout.mechanism == "mdev" else None
    search.note(slot.name, Looked(profile.name, uuid, kind.realise(sysfs, slot, profile, uuid or "")))
    return None


def new_uuid() -> str:
    """A random UUID. Source: RFC 9562, version 4. (`import uuid` costs a start 5 ms.)"""
    bits = bytearray(posix.urandom(16))
    bits[6] = bits[6] & 0x0f | 0x40
    bits[8] = bits[8] & 0x3f | 0x80
    text = bits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _marked(board: Board, unfit: list[tuple[Optional[str], str]]) -> Board:
    whole = tuple(why for slot, why in unfit if slot is None)
    slots = {slot: why for slot, why in unfit if slot is not None}
    if not slots:
        return board._replace(trouble=board.trouble + whole)
    layouts = tuple(layout._replace(slots=tuple(slot._replace(trouble=slots.get(slot.name, slot.trouble))
                                                for slot in layout.slots)) for layout in board.layouts)
    return board._replace(trouble=board.trouble + whole, layouts=layouts)
