"""place(): one joint decision over cards, CPUs and memory. Pure and deterministic.

A choice is one offer for each card wanted. Choices are compared by `_key`, which ends in the addresses, and the
first that really has its seats wins: slots are looked at for the winner alone.
"""
from __future__ import annotations

from itertools import islice

from kvm_gpu.closeness import gap, splits
from kvm_gpu.model import Device, Hold, Placement
from kvm_gpu.nodes import Home, emulator
from kvm_gpu.outlook import Outlook
from kvm_gpu.room import seats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final, Optional, Union

    from kvm_gpu.model import Board, Host, Policy, Refusal, Request, Taken
    from kvm_gpu.outlook import Choice
    from kvm_gpu.room import Offer, Seat

    Key = tuple[object, ...]

LIMIT: Final = 2000             # choices compared: all there are for four cards on sixteen boards
ALONE: Final = "CPUs are not exclusive unless other VMs stay off the pool"


def place(request: Request, host: Host, taken: Taken, policy: Policy) -> Union[Placement, Refusal]:
    """Where the request goes on this host, or why it cannot.

    A hold of the same VM in state "kept" is its own place, preferred and taken over; the caller leaves out what a
    start of the VM would replace. A Refusal means that no placement exists, as long as fewer than LIMIT choices of
    boards are left to compare and the guest's nodes are no puzzle (nodes.Homes).
    """
    placement = decide(request, host, taken, policy)
    if placement:
        return placement
    from kvm_gpu.refusal import refuse
    return refuse(Outlook(request, host, taken, policy), lambda other: bool(decide(other, host, taken, policy)))


def decide(request: Request, host: Host, taken: Taken, policy: Policy) -> Optional[Placement]:
    """The placement, or None where there is none."""
    view = Outlook(request, host, taken, policy)
    if not view.wants:
        home = view.home(())
        return _placement(view, (), home) if home else None
    housed = (choice for choice in view.choices() if view.home(choice))
    for choice in sorted(islice(housed, LIMIT), key=lambda choice: _key(view, choice)):
        seated, home = _seat(view, choice), view.home(choice)
        if seated and home:
            return _placement(view, seated, home)
    return None


def _key(view: Outlook, choice: Choice) -> Key:
    """Smaller is better. What comes first outweighs all that follows."""
    worth = [view.worth(offer) for offer in choice]
    gaps = _gaps(view, choice) if view.request.close != "none" else [0]
    boards = [offer.board for offer in choice]
    return (
        sum(not_kept for not_kept, _, _, _ in worth),
        sum(unknown for _, unknown, _, _ in worth), sum(fb_mib for _, _, fb_mib, _ in worth),
        sum(view.opens(offer) for offer in choice),
        view.remote(choice),
        max(gaps, default=0), sum(gaps),
        sum(reshaped for _, _, _, reshaped in worth),
        view.load(choice),
        splits(boards, view.idle),
        view.crowd(choice),
        view.memory(choice),
        [board.address for board in boards],
    )


def _gaps(view: Outlook, choice: Choice) -> list[int]:
    """Of each pair of boards; not of a device that the platform chose."""
    boards = [offer.board for offer, want in zip(choice, view.wants, strict=True) if not want.address]
    return [gap(one, other, view.supply.distances) for at, one in enumerate(boards) for other in boards[:at]]


# ---- the choice made real --------------------------------------------------------------------------

def _seat(view: Outlook, choice: Choice) -> tuple[Seat, ...]:
    """A seat for each offer, () where they do not all fit. Boards are seated one by one: they are independent."""
    seated: dict[int, Seat] = {}
    for address in {offer.board.address for offer in choice}:
        mine = [at for at, offer in enumerate(choice) if offer.board.address == address]
        found = _seat_board([choice[at] for at in mine], view.held.get(address, []), view)
        if not found:
            return ()
        seated.update(zip(mine, found, strict=True))
    return tuple(seated[at] for at in range(len(choice)))


def _seat_board(here: Sequence[Offer], held: list[Hold], view: Outlook) -> tuple[Seat, ...]:
    for seat in seats(here[0], held, view.kept.get(here[0].board.address, ())):
        if len(here) == 1:
            return (seat,)
        rest = _seat_board(here[1:], [*held, _hold(seat, view.request)], view)
        if rest:
            return (seat, *rest)
    return ()


def _hold(seat: Seat, request: Request) -> Hold:
    board, layout, cell, profile, _ = seat.offer
    return Hold(seat.slot.name, board.address, layout.name, cell.name, profile.name, seat.start, profile.size,
                request.vm.id, "starting")


def _placement(view: Outlook, seated: Sequence[Seat], home: Home) -> Placement:
    devices = tuple(Device(_hold(seat, view.request), seat.offer.layout.mechanism, seat.slot.functions,
                           bar_mib=seat.slot.bar_mib) for seat in seated)
    boards = [seat.offer.board for seat in seated]
    return Placement(devices, home.uses, emulator(view.supply, view.request.cpu, home),
                     _memory(view, boards, home), tuple(_warnings(view, boards, home)))


def _memory(view: Outlook, boards: Sequence[Board], home: Home) -> Optional[str]:
    """numatune mode. Strict where it is required, and where huge pages are promised on a node for their own sake;
    preferred for the rest; None where the platform bound all memory or nothing is to be bound."""
    ours = [use for use, guest in zip(home.uses, view.request.guest, strict=True)
            if use.node is not None and guest.bound is None]
    if not ours:
        return None
    near = view.request.numa == "preferred" and any(board.numa_node is not None for board in boards)
    alone = not near and any(use.page_kib for use in ours)
    return "strict" if view.request.numa == "required" or alone else "preferred"


def _warnings(view: Outlook, boards: Sequence[Board], home: Home) -> Iterator[str]:
    request = view.request
    if request.numa == "preferred":
        yield from _far(boards, home, request)
    if request.close == "preferred" and len({board.numa_node for board in boards} - {None}) > 1:
        yield "across nodes"
    if any(use.cpus for use in home.uses):
        yield ALONE
    if request.cpu != "none" and not request.guest:
        yield "no CPUs are pinned: the request does not tell of the guest's"


def _far(boards: Sequence[Board], home: Home, request: Request) -> Iterator[str]:
    for board in boards:
        if board.numa_node is None:
            yield f"{board.address}: NUMA node unknown, nothing is bound near it"
    nodes = sorted({node for node in home.nodes if node is not None})
    gpus = sorted({board.numa_node for board in boards if board.numa_node is not None})
    away = [f"node{node}" for node in gpus if node not in nodes]
    if nodes and away:
        parts = ["CPUs"] if request.cpu != "none" or any(guest.pinned for guest in request.guest) else []
        parts += ["memory"] if any(use.node is not None for use in home.uses) else []
        yield f"{' and '.join(parts)} on {', '.join(f'node{node}' for node in nodes)}, GPU on {', '.join(away)}"
    if gpus and any(use.node is None for use in home.uses):
        yield "memory not bound: no node has room for it"
