"""A request's outlook on a host: which choices of cards the rules allow it, and what each would cost.

A choice is one offer for each card wanted; whether it has seats is looked at for the winner alone (plan.py).
"""
from __future__ import annotations

from kvm_gpu.closeness import LOCAL, UNKNOWN, distance, is_close
from kvm_gpu.nodes import Home, Homes, Supply
from kvm_gpu.room import Offer, is_kept, layouts, offers, seats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional

    from kvm_gpu.model import Board, Hold, Host, Policy, Request, Taken, Want

    Choice = tuple[Offer, ...]


class Outlook:
    """A request's view of the host: what is held, kept for it and left, grouped for the search."""

    def __init__(self, request: Request, host: Host, taken: Taken, policy: Policy) -> None:
        self.request = request
        self.host = host
        self.policy = policy
        self.boards = sorted(host.boards, key=lambda board: board.address)
        self.cordoned = dict(taken.cordoned)
        self.wants = [want for want in request.wants for _ in range(want.cards)]
        self.held: dict[str, list[Hold]] = {}
        self.kept: dict[str, list[Hold]] = {}
        for hold in taken.holds:
            own = hold.vm == request.vm.id and hold.state == "kept"
            (self.kept if own else self.held).setdefault(hold.board, []).append(hold)
        self.idle = [board for board in self.boards if board.address not in self.held]
        self.supply = Supply(host, taken.uses, policy)
        page_kib = request.guest[0].page_kib if request.guest else None
        self.left = {node.id: self.supply.memory(node, page_kib) for node in host.nodes}
        self._homes = Homes(self.supply, request, self._rank())

    def _rank(self) -> list[int]:
        """Host nodes by id in the order to fill them: VMs without a device go where memory outlasts the devices; then
        the fullest first, or the emptiest with spread."""
        sign = -1 if self.policy.order == "spread" else 1
        spare = dict.fromkeys(self.left, 0)
        for board in () if self.wants else self.boards:
            held = self.held.get(board.address, ())
            if board.numa_node in spare:
                most = max((len(layout.slots) for layout in layouts(board, held)), default=0)
                spare[board.numa_node] += most - len(held)
        return sorted(spare, key=lambda node: (spare[node] / (self.left[node] or 1), sign * self.left[node], node))

    # ---- choices -----------------------------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """Every choice of offers that the rules allow. Where a board has but one offer for the one card wanted, nobody
        has looked yet whether it fits."""
        found: dict[Want, list[Offer]] = {}
        for want in self.wants:
            if want not in found:
                found[want] = self.offers(want)
        return self._extend((), [found[want] for want in self.wants], 0)

    def offers(self, want: Want) -> list[Offer]:
        """All that the host's boards have for one device of the want."""
        found: list[Offer] = []
        for board in self.boards:
            if board.trouble or board.address in self.cordoned:
                continue
            if board.numa_node is None and self.request.numa == "required":
                continue
            here = offers(board, want, self.held.get(board.address, ()))
            found += self._seated(board, here) if len(here) > 1 or len(self.wants) > 1 else here
        return found

    def _seated(self, board: Board, here: list[Offer]) -> list[Offer]:
        """The offers of a board that have a seat: the best of them where the board gives one card at most."""
        held = self.held.get(board.address, ())
        fitting = (offer for offer in sorted(here, key=self.worth) if next(seats(offer, held), None))
        several = self.request.close == "required" or any(want.address for want in self.wants)
        if several and len(self.wants) > 1:
            return list(fitting)
        best = next(fitting, None)
        return [best] if best else []

    def _extend(self, chosen: Choice, options: list[list[Offer]], first: int) -> Iterator[Choice]:
        """`chosen` with every allowed offer for the remaining wants; equal wants take theirs in order."""
        depth = len(chosen)
        if depth == len(options):
            yield chosen
            return
        for number in range(first, len(options[depth])):
            offer = options[depth][number]
            if all(self._beside(other, offer, self.wants[at], self.wants[depth]) for at, other in enumerate(chosen)):
                choice = (*chosen, offer)
                if not self._homes.rules_out(self._near(choice)):
                    same = depth + 1 < len(options) and options[depth + 1] is options[depth]
                    yield from self._extend(choice, options, number if same else 0)

    def _beside(self, one: Offer, other: Offer, want: Want, other_want: Want) -> bool:
        """Whether one VM may have both. What the platform chose by address stays where it is."""
        adopted = bool(want.address or other_want.address)
        if one.board.address == other.board.address:
            return (adopted or self.request.close == "required") and one.layout.name == other.layout.name
        return adopted or self.request.close != "required" or is_close(one.board, other.board)

    # ---- what the key weighs -----------------------------------------------------------------------

    def home(self, choice: Choice) -> Optional[Home]:
        """Host nodes for the guest beside these devices; None where there are none."""
        return self._homes.find(self._near(choice))

    def _near(self, choice: Choice) -> frozenset[int]:
        """Host nodes of the devices, as far as the guest cares and they are known."""
        nodes = (offer.board.numa_node for offer in choice if self.request.numa != "none")
        return frozenset(node for node in nodes if node is not None)

    def worth(self, offer: Offer) -> tuple[bool, bool, int, bool]:
        """Smaller is better: the place kept for this VM, the smallest frame buffer that does (unknown ones last), the
        present layout."""
        kept = any(is_kept(offer, hold) for hold in self.kept.get(offer.board.address, ()))
        fb_mib = offer.profile.fb_mib
        return not kept, fb_mib is None, fb_mib or 0, offer.layout is not offer.board.layouts[0]

    def opens(self, offer: Offer) -> bool:
        """Whether keep-whole would rather not: it cuts an idle board that could be given whole."""
        return (self.policy.order == "keep-whole" and offer.layout.mechanism != "whole"
                and offer.board.address not in self.held
                and any(layout.mechanism == "whole" for layout in offer.board.layouts))

    def remote(self, choice: Choice) -> int:
        """How far the devices are from the guest, in SLIT distance beyond local; unbound memory counts as far."""
        home = self.home(choice)
        if self.request.numa == "none" or not home or not home.uses:
            return 0
        return sum(use.node is None for use in home.uses) * UNKNOWN + sum(
            self._away(offer.board.numa_node, home) for offer in choice)

    def _away(self, node: Optional[int], home: Home) -> int:
        if node is None:
            return UNKNOWN
        return min((distance(self.supply.distances, node, place) - LOCAL for place in home.nodes if place is not None),
                   default=UNKNOWN)

    def load(self, choice: Choice) -> int:
        """Units held on these boards: the most first with pack, the fewest with spread."""
        units = sum(hold.size for offer in choice for hold in self.held.get(offer.board.address, ()))
        return units if self.policy.order == "spread" else -units

    def crowd(self, choice: Choice) -> int:
        """Boards in use on the nodes of these boards: the most first, so that other nodes stay free for sets; the
        fewest with spread."""
        nodes = {offer.board.numa_node for offer in choice}
        busy = sum(board.numa_node in nodes for board in self.boards if board.address in self.held)
        return busy if self.policy.order == "spread" else -busy

    def memory(self, choice: Choice) -> int:
        """Memory left beside these boards: a board is cut for many VMs where there is most, and goes whole to one where
        there is least."""
        left = self.left
        return sum(left.get(offer.board.numa_node, 0) * (1 if offer.layout.mechanism == "whole" else -1)
                   for offer in choice if offer.board.numa_node is not None)
