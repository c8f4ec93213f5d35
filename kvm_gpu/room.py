"""What a board can still give: every capacity rule, and the places that a want finds on one board."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final, NamedTuple, Union

    from kvm_gpu.model import Board, Cell, Hold, Layout, Profile, Slot, Want
else:
    from kvm_gpu.light import NamedTuple

MIG: Final = "gi"                       # cells of MIG GPU instances are named "gi1", "gi2"
UNSIZED: Final = ("whole", "vf")        # what an address alone can mean: the function itself


class Offer(NamedTuple):
    """One thing that a board's layout has for a want; whether it fits now is for `seats` to say."""
    board: Board
    layout: Layout
    cell: Cell
    profile: Profile
    slots: tuple[Slot, ...]             # those that may serve: the layout's, or the one asked for by address


class Seat(NamedTuple):
    offer: Offer
    slot: Slot
    start: int


# ---- room in a cell --------------------------------------------------------------------------------

def room(cell: Cell, profile: Profile, held: Sequence[Hold]) -> Union[int, str]:
    """First start at which `profile` fits among `held`, the holds in this cell, or why it does not."""
    start = next(free_starts(cell, profile, held), None)
    return _no_room(cell, profile, held) if start is None else start


def free_starts(cell: Cell, profile: Profile, held: Sequence[Hold]) -> Iterator[int]:
    """Every start at which one more `profile` fits.

    A hold of unknown size (0: somebody else's, of a type we cannot read) fills its cell. In a one-size cell the
    number of holders is what the driver limits; there a start is only our numbering.
    """
    if any(not hold.size or (cell.one_size and hold.size != profile.size) for hold in held):
        return
    if cell.one_size and len(held) >= len(profile.starts):
        return
    used = {hold.start for hold in held}
    spans = [(hold.start, hold.start + hold.size) for hold in held]
    for start in profile.starts:
        if start not in used and all(start + profile.size <= low or high <= start for low, high in spans):
            yield start


def more(cell: Cell, profile: Profile, held: Sequence[Hold]) -> int:
    """How many more of `profile` fit."""
    fitting, end = 0, 0
    for start in sorted(free_starts(cell, profile, held)):
        if start >= end:
            fitting, end = fitting + 1, start + profile.size
    return min(fitting, max(0, len(profile.starts) - len(held))) if cell.one_size else fitting


def _no_room(cell: Cell, profile: Profile, held: Sequence[Hold]) -> str:
    other = min((hold for hold in held if hold.size not in (0, profile.size)), key=lambda hold: hold.slot, default=None)
    if not cell.one_size and other and all(hold.size for hold in held):
        return f"no room for {profile.name} beside {holders(held)}"
    if cell.one_size and other and any(p.size == other.size and more(cell, p, held) for p in cell.profiles):
        return f"runs {other.profile} (one size per {'GPU instance' if cell.name.startswith(MIG) else 'board'})"
    return f"fully used by {holders(held)}"


def holders(held: Sequence[Hold]) -> str:
    """Who holds, for a person: at most three names."""
    names = sorted({hold.vm or "a VM that is not ours" for hold in held})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def cordoned(why: str) -> str:
    """What is said of a board that gets no new VM."""
    return f"cordoned: {why}" if why else "cordoned"


# ---- places on a board -----------------------------------------------------------------------------

def matches(board: Board, want: Want) -> bool:
    """Vendor and model, by PCI ids and short name."""
    if want.model and want.model.casefold() != board.model.casefold():
        return False
    return not want.vendor or (bool(board.functions) and board.functions[0].ids.startswith(want.vendor + ":"))


def layouts(board: Board, held: Sequence[Hold]) -> tuple[Layout, ...]:
    """What the board can be used as: any of its layouts while idle, else that of its holds alone."""
    names = {hold.layout for hold in held}
    return tuple(layout for layout in board.layouts if names <= {layout.name})


def offers(board: Board, want: Want, held: Sequence[Hold]) -> list[Offer]:
    """All that this board has for the want, present layout first, without regard to room.

    A want by vendor or model alone means a whole card; addresses alone mean the functions as they are.
    """
    if not matches(board, want):
        return []
    name = want.profile and want.profile.casefold()
    found = []
    for layout in layouts(board, held):
        if not _serves(layout, want):
            continue
        slots = _asked_for(layout, want)
        if not slots:
            continue
        for cell in layout.cells:
            if want.mechanism == "mig" and not cell.name.startswith(MIG):
                continue
            for profile in cell.profiles:
                if name and name != profile.name.casefold() and want.profile != profile.type_id:
                    continue
                if want.fb_mib is None or (profile.fb_mib is not None and profile.fb_mib >= want.fb_mib):
                    found.append(Offer(board, layout, cell, profile, slots))
    return found


def _serves(layout: Layout, want: Want) -> bool:
    if want.mechanism:
        return want.mechanism in (layout.mechanism, "mig")
    if want.profile or want.fb_mib:
        return True
    return layout.mechanism in UNSIZED if want.address or want.among else layout.mechanism == "whole"


def _asked_for(layout: Layout, want: Want) -> tuple[Slot, ...]:
    if want.address:
        return at_address(layout, want.address)
    return at_address(layout, *want.among) if want.among else layout.slots


def at_address(layout: Layout, *addresses: str) -> tuple[Slot, ...]:
    """The slots that a platform means by its addresses: slots' names, functions of theirs, or mdev parents."""
    meant = frozenset(addresses)
    return tuple(slot for slot in layout.slots if slot.name in meant or not meant.isdisjoint(slot.functions)
                 or slot.path.rpartition("/")[2] in meant)


def seats(offer: Offer, held: Sequence[Hold], kept: Sequence[Hold] = ()) -> Iterator[Seat]:
    """Where the offer fits on its board among `held`: first the places `kept` for this VM, then by start and slot.

    Slots that may draw from the same cells are interchangeable: one free one of each kind is tried.
    """
    taken = {hold.slot for hold in held}
    inside = [hold for hold in held if hold.cell == offer.cell.name]
    for hold in kept:
        if is_kept(offer, hold) and hold.start in free_starts(offer.cell, offer.profile, inside):
            for slot in offer.slots:
                if slot.name == hold.slot and _usable(slot, offer.cell, taken):
                    yield Seat(offer, slot, hold.start)
    for start in free_starts(offer.cell, offer.profile, inside):
        kinds = set()
        for slot in offer.slots:
            if slot.cells not in kinds and _usable(slot, offer.cell, taken):
                kinds.add(slot.cells)
                yield Seat(offer, slot, start)
        if offer.cell.one_size:
            return


def is_kept(offer: Offer, hold: Hold) -> bool:
    """Whether this offer is what the hold has."""
    return (hold.board, hold.layout, hold.cell, hold.profile) == (
        offer.board.address, offer.layout.name, offer.cell.name, offer.profile.name)


def _usable(slot: Slot, cell: Cell, taken: set[str]) -> bool:
    return slot.name not in taken and slot.trouble is None and cell.name in slot.cells
