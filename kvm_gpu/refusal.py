"""Why a request does not go on a host: a reason for each candidate, and what would help.

Made by the decision's own rules, after it has failed; a start that succeeds does not import this.
"""
from __future__ import annotations

from kvm_gpu.model import Reason, Refusal, Want
from kvm_gpu.nodes import fixed_nodes, settle
from kvm_gpu.room import at_address, cordoned, holders, matches, offers, room, seats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Optional

    from kvm_gpu.model import Board, Hold, NumaNode, Request
    from kvm_gpu.outlook import Outlook
    from kvm_gpu.room import Offer


def refuse(view: Outlook, fits: Callable[[Request], bool]) -> Refusal:
    """`fits`: whether another request would go on this host."""
    reasons = [reason for board in view.boards for reason in _on_board(view, board)]
    reasons += [Reason(f"node {node}", why) for node, why in _short_nodes(view).items()
                if not any(why in reason.why for reason in reasons)]
    reasons += [Reason("host", why) for why in dict.fromkeys(_on_host(view))]
    reasons = reasons or [Reason("host", f"no board offers {in_words(want)}") for want in dict.fromkeys(view.wants)]
    return Refusal(tuple(reasons), "; ".join(_hints(view, fits)) or "`kvm-gpu capacity` shows what this host has")


# ---- boards ----------------------------------------------------------------------------------------

def _on_board(view: Outlook, board: Board) -> Iterator[Reason]:
    """One reason: why it serves none of the wants, else what is wrong with its node, else that it is free."""
    asked = [want for want in view.request.wants if _concerns(want, board)]
    whys = list(dict.fromkeys(why_not(view, board, want) for want in asked))
    if not asked:
        return
    if None not in whys:
        yield Reason(board.address, "; ".join(why for why in whys if why))
    elif view.request.numa == "required" and board.numa_node is None:
        yield Reason(board.address, "NUMA node unknown")
    else:
        nodes = [node for node in view.host.nodes if node.id == board.numa_node]
        lacks = [_lack(view, node) for node in nodes] if view.request.numa == "required" else []
        at = "node unknown" if board.numa_node is None else f"node{board.numa_node}"
        yield Reason(board.address, next((f"{why} (GPU node)" for why in lacks if why), f"free, on {at}"))


def why_not(view: Outlook, board: Board, want: Want) -> Optional[str]:
    """Why the board cannot serve one device of the want, NUMA aside; None where it can."""
    if board.trouble:
        return "; ".join(board.trouble)
    held = view.held.get(board.address, [])
    here = offers(board, want, held)
    if not here:
        return why_used_otherwise(board, held) if _serves_idle(board, want, held) else f"offers no {in_words(want)}"
    if board.address in view.cordoned:
        return cordoned(view.cordoned[board.address])
    if any(next(seats(offer, held), None) for offer in here):
        return None
    whys = [room(offer.cell, offer.profile, [hold for hold in held if hold.cell == offer.cell.name]) for offer in here]
    if want.address:
        return _at_address(here[0], want.address, held)
    return next((why for why in whys if isinstance(why, str)), None) or _no_slot(here[0], held)


def _serves_idle(board: Board, want: Want, held: Sequence[Hold]) -> bool:
    """Whether the board serves the want while nobody holds it: one that is held whole does not show the VFs that it
    has otherwise."""
    vf = want.mechanism == "vf" or (want.profile or "").casefold() == f"{board.model}-vf".casefold()
    off = vf and board.partitioner is not None and matches(board, want) and any(hold.layout == "whole" for hold in held)
    return off or bool(offers(board, want, ()))


def _at_address(offer: Offer, address: str, held: Sequence[Hold]) -> str:
    users = [hold for hold in held if hold.slot in [slot.name for slot in offer.slots]]
    if not users:
        return _no_slot(offer, held)
    part = offer.layout.mechanism == "whole" and address != offer.slots[0].name
    return f"{'part of the GPU ' if part else ''}held by {holders(users)}"


def _no_slot(offer: Offer, held: Sequence[Hold]) -> str:
    """The cell has room, but every slot is held or has trouble."""
    trouble = [f"{slot.name}: {slot.trouble}" for slot in offer.slots if slot.trouble]
    return "; ".join(([f"no slot left, held by {holders(held)}"] if held else []) + trouble) or "no slot"


def why_used_otherwise(board: Board, held: Sequence[Hold]) -> str:
    """The board has a layout for it, but its holds are in another."""
    layout = next((layout for layout in board.layouts if layout.name == held[0].layout), None)
    if layout is None or len({hold.layout for hold in held}) > 1:
        return f"held by {holders(held)}"
    if layout.mechanism != "whole":
        kind = "mdevs" if layout.mechanism == "mdev" else "VFs"
        return f"{kind} on, {len(held)} used by {holders(held)}"
    return f"card held whole by {holders(held)}"


def _concerns(want: Want, board: Board) -> bool:
    """False where the want names addresses, and the board has none of them."""
    addresses = (want.address,) if want.address else want.among
    return not addresses or any(at_address(layout, *addresses) for layout in board.layouts)


def in_words(want: Want) -> str:
    """The want as a person would say it: "whole rtx6000", "mdev GPU with at least 4096 MiB"."""
    words = [want.mechanism, want.vendor, want.model, want.profile, want.address]
    words.append(None if want.fb_mib is None else f"GPU with at least {want.fb_mib} MiB")
    return " ".join(word for word in words if word)


# ---- nodes and the host as a whole -----------------------------------------------------------------

def _lack(view: Outlook, node: NumaNode) -> Optional[str]:
    """Why no guest node goes on this host node; None where one does."""
    lacks = []
    for guest in view.request.guest:
        fixed = fixed_nodes(view.supply, view.request, guest)
        if fixed is not None and node.id not in fixed:
            where = ", ".join(f"node{at}" for at in fixed) or "no node"
            lacks.append(f"the platform put guest node {guest.id} on {where}")
            continue
        found = settle(view.supply, view.request, guest, node, True)
        if not isinstance(found, str):
            return None
        lacks.append(found)
    return "; ".join(dict.fromkeys(lacks)) or None


def _short_nodes(view: Outlook) -> dict[int, str]:
    """Host nodes that have no CPUs or memory for the guest, where that can be what refuses it."""
    if view.request.numa != "required" and view.home(()):
        return {}
    lacks = {node.id: _lack(view, node) for node in view.host.nodes}
    return {node: why for node, why in lacks.items() if why}


def _on_host(view: Outlook) -> Iterator[str]:
    """Why what is free does not do, counted over the host."""
    too_few = False
    for want in dict.fromkeys(view.request.wants):
        need, free = view.wants.count(want), sum(why_not(view, board, want) is None for board in view.boards)
        too_few = too_few or free < need
        users = [hold for board in _busy(view, want) for hold in view.held[board.address]]
        if free < need and need > 1:
            yield f"needs {need}, {free} free on this host"
        elif free < need and users:
            yield f"none free, held by {holders(users)}"
    if not too_few and len(view.wants) > 1:
        yield "the free ones are not close enough" if view.request.close == "required" else "not all of them at once"
    elif not too_few and len(view.request.guest) > 1:
        yield f"no {len(view.request.guest)} host nodes have room for one guest node each"


def _busy(view: Outlook, want: Want) -> list[Board]:
    """Boards that could serve the want if nobody held them."""
    return [board for board in view.boards
            if view.held.get(board.address) and not board.trouble and board.address not in view.cordoned
            and _serves_idle(board, want, view.held[board.address]) and why_not(view, board, want)]


# ---- what would help -------------------------------------------------------------------------------

def _hints(view: Outlook, fits: Callable[[Request], bool]) -> Iterator[str]:
    request = view.request
    if request.numa == "required" and fits(request._replace(numa="preferred")):
        yield "numa=preferred would fit"
    elif request.close == "required" and fits(request._replace(close="preferred")):
        yield "close=preferred would fit"
    elif request.cpu == "dedicated" and fits(request._replace(cpu="shared")):
        yield "cpu=shared would fit"
    elif request.numa != "none" and fits(request._replace(numa="none")):
        yield "numa=none would fit"
    other = _other_size(view)
    if other:
        yield f"ask for {other}"
    busy = dict.fromkeys(board.address for want in request.wants for board in _busy(view, want))
    lacks = _short_nodes(view)
    short = [f"node{node.id}" for node in view.host.nodes if node.id in lacks and node.cores and node.mem_mib]
    closed = [board.address for board in view.boards if board.address in view.cordoned and _offered(view, (board,))]
    if closed:
        yield f"uncordon {' or '.join(closed[:3])}"
    if busy:
        yield f"stop a VM on {' or '.join(list(busy)[:3])}"
    elif short:
        yield f"stop a VM that has CPUs or memory of {' or '.join(short[:3])}"
    elif not _offered(view, view.boards):
        yield f"this host has {_all_names(view)}"


def _offered(view: Outlook, boards: Sequence[Board]) -> bool:
    """Whether any of these boards has what is wanted, if nobody held anything."""
    return any(_serves_idle(board, want, view.held.get(board.address, ()))
               for board in boards for want in view.request.wants)


def _all_names(view: Outlook) -> str:
    """What can be asked for by name; what is in trouble, as the console's card, left out."""
    layouts = (layout for board in view.boards if not board.trouble for layout in board.layouts
               if not all(slot.trouble for slot in layout.slots))
    names = {profile.name for layout in layouts for cell in layout.cells for profile in cell.profiles}
    return ", ".join(sorted(names)) or "no GPU to give"


def _other_size(view: Outlook) -> Optional[str]:
    """A size that a board which runs it could give instead of the wanted one."""
    for want in view.request.wants:
        for board in _busy(view, want) if want.profile else ():
            for profile in sorted({hold.profile for hold in view.held[board.address]}):
                if not why_not(view, board, Want(profile=profile)):
                    return profile
    return None
