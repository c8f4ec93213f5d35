"""CPUs and memory: what the host nodes have left, and which host node serves which guest node."""
from __future__ import annotations

from kvm_gpu.closeness import distance, distances
from kvm_gpu.model import Use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final, NamedTuple, Optional, Union

    from kvm_gpu.model import CpuMode, GuestNode, Host, NumaNode, Policy, Request

    Cores = list[tuple[int, ...]]
    _Option = tuple[Optional[NumaNode], bool, Use]
else:
    from kvm_gpu.light import NamedTuple

SEARCH_STEPS: Final = 2000      # of one search: what fits is found in a few for each guest node
ALL_STEPS: Final = 20_000       # of all searches of a request: guest nodes come from a VM's owner


# ---- what is left ----------------------------------------------------------------------------------

class Supply:
    """What the host nodes have left under a policy, less what is promised to others."""

    def __init__(self, host: Host, uses: Sequence[Use], policy: Policy) -> None:
        self.nodes = host.nodes
        self.distances = distances(host.nodes)
        self.pool = None if policy.cpu_pool is None else frozenset(policy.cpu_pool)
        self._dedicated = frozenset(cpu for use in uses for cpu in use.cpus)
        self._promised: dict[tuple[Optional[int], Optional[int]], list[int]] = {}
        for use in uses:
            entry = self._promised.setdefault((use.node, use.page_kib), [0, 0])
            entry[0] += _units(use.mib, use.page_kib)
            entry[1] += 0 if use.allocated else _units(use.mib, use.page_kib)
        self._cores: dict[int, Cores] = {}

    def cores(self, node: NumaNode, more: Sequence[Use] = ()) -> Cores:
        """Whole cores of the node that nobody has for himself, all threads within the pool."""
        free = self._cores.get(node.id)
        if free is None:
            free = self._cores[node.id] = [
                core for core in node.cores
                if self._dedicated.isdisjoint(core) and (self.pool is None or self.pool.issuperset(core))]
        if not more:
            return free
        taken = {cpu for use in more for cpu in use.cpus}
        return [core for core in free if taken.isdisjoint(core)]

    def shared(self, node: NumaNode, more: Sequence[Use] = ()) -> tuple[int, ...]:
        """The node's CPUs within the pool that nobody has for himself."""
        taken = self._dedicated.union(*(use.cpus for use in more))
        return tuple(sorted(cpu for core in node.cores for cpu in core
                            if cpu not in taken and (self.pool is None or cpu in self.pool)))

    def memory(self, node: NumaNode, page_kib: Optional[int], more: Sequence[Use] = ()) -> int:
        """What a VM can still get: pages of that size, or MiB of ordinary memory.

        The kernel's free counters lag until QEMU has allocated: promises not yet allocated are taken off them.
        """
        promised, pending = self._promised.get((node.id, page_kib), (0, 0))
        extra = sum(_units(use.mib, page_kib) for use in more if (use.node, use.page_kib) == (node.id, page_kib))
        if page_kib is None:
            total = node.mem_mib - sum(pages.total * pages.size_kib for pages in node.pages) // 1024
            free = node.free_mib
        else:
            total, free = next(((p.total, p.free) for p in node.pages if p.size_kib == page_kib), (0, 0))
        left = total - promised if free is None else min(total - promised, free - pending)
        return max(0, left - extra)


def _units(mib: int, page_kib: Optional[int]) -> int:
    """MiB, or the huge pages that hold as much."""
    return mib if page_kib is None else -(-mib * 1024 // page_kib)


def short_of_memory(supply: Supply, guest: GuestNode, node: NumaNode, more: Sequence[Use] = ()) -> Optional[str]:
    """Why the node has no room for the guest node's memory; None when it has."""
    need, left = _units(guest.mem_mib, guest.page_kib), supply.memory(node, guest.page_kib, more)
    if left >= need:
        return None
    if guest.page_kib is None:
        return f"node{node.id} has {left} of {need} MiB free memory"
    size = guest.page_kib
    name = f"{size >> 20} GiB" if size % (1 << 20) == 0 else f"{size >> 10} MiB" if size % 1024 == 0 else f"{size} KiB"
    return f"node{node.id} has {left} of {need} free {name} pages"


# ---- one guest node on one host node ---------------------------------------------------------------

def settle(supply: Supply, request: Request, guest: GuestNode, node: Optional[NumaNode], bind: bool,
           more: Sequence[Use] = ()) -> Union[Use, str]:
    """What the guest node takes when its CPUs come from `node` (None: from any) and, with `bind`, its memory too.
    `more`: what the request's other guest nodes took. Text: why it does not fit."""
    lacks = []
    short = short_of_memory(supply, guest, node, more) if bind and node else None
    if short:
        lacks.append(short)
    pins, cpus = _cpus(supply, request.cpu, guest, node, more)
    if pins is None:
        has = sum(map(len, supply.cores(node, more))) if node else 0
        lacks.insert(0, f"node{node.id} has {has} of {len(guest.vcpus)} free CPUs" if node else "no free CPUs")
    if pins is None or lacks:
        return "; ".join(lacks)
    return Use(request.vm.id, guest.id, node.id if bind and node else None, pins, cpus, guest.mem_mib, guest.page_kib)


def _cpus(supply: Supply, mode: CpuMode, guest: GuestNode, node: Optional[NumaNode], more: Sequence[Use],
          ) -> tuple[Optional[tuple[tuple[int, tuple[int, ...]], ...]], tuple[int, ...]]:
    """Pins and CPUs taken alone; pins are None where they do not fit."""
    if mode == "none" or guest.pinned is not None or not guest.vcpus:
        return (), ()
    if mode == "shared":
        pool = tuple(cpu for place in ((node,) if node else supply.nodes) for cpu in supply.shared(place, more))
        return (tuple((vcpu, pool) for vcpu in guest.vcpus) if pool else None), ()
    chosen: list[int] = []
    for core in supply.cores(node, more) if node else ():
        chosen += core
        if len(chosen) >= len(guest.vcpus):     # siblings in a row: they serve adjacent vCPUs
            return tuple((vcpu, (cpu,)) for vcpu, cpu in zip(guest.vcpus, chosen, strict=False)), tuple(chosen)
    return None, ()


def emulator(supply: Supply, mode: CpuMode, home: Home) -> tuple[int, ...]:
    """Host CPUs for QEMU's own threads: the vCPUs' shared set; beside dedicated ones what the pool leaves of their
    nodes, else the dedicated ones too. Empty where we pin nothing."""
    pinned = {cpu for use in home.uses for _, cpus in use.pins for cpu in cpus}
    if mode != "dedicated" or not pinned or supply.pool is None:
        return tuple(sorted(pinned))
    threads = [{cpu for core in node.cores for cpu in core} for node in supply.nodes]
    beside = set().union(*(cpus - supply.pool for cpus in threads if cpus & pinned))
    return tuple(sorted(beside or pinned))


# ---- guest nodes on host nodes ---------------------------------------------------------------------

class Home(NamedTuple):
    uses: tuple[Use, ...]               # one for each guest node, in order
    nodes: tuple[Optional[int], ...]    # host nodes their CPUs come from; None: from any


class _Stage(NamedTuple):
    distinct: bool      # every guest node on a host node of its own
    cover: bool         # every device's node among them
    loose: bool         # ordinary memory may stay unbound


class Homes:
    """Finds host nodes for all guest nodes of a request, once for each set of device nodes.

    One host node gives a guest node both CPUs and memory. Where the platform pinned or bound a guest node, that
    is its host node. `required` takes distinct nodes that cover the devices; the others go down by stages:
    distinct before shared, near before far, and last, for ordinary memory, unbound. To fit many guest nodes is a
    puzzle without a fast answer: what is not found within the steps counts as not there.
    """

    def __init__(self, supply: Supply, request: Request, rank: Sequence[int]) -> None:
        self._supply = supply
        self._request = request
        self._rank = {node: position for position, node in enumerate(rank)}
        self._found: dict[frozenset[int], Optional[Home]] = {}
        self._alone: dict[tuple[int, bool], dict[Optional[int], Use]] = {}
        self._left = ALL_STEPS
        self._steps = 0

    def find(self, near: frozenset[int]) -> Optional[Home]:
        """The best home beside devices on the nodes `near`, or None. Without a guest there is nothing to house."""
        if not self._request.guest:
            return Home((), ())
        if near not in self._found:
            homes = (self._try(near, stage) for stage in self._stages(near) if self._promises(near, stage))
            self._found[near] = next((home for home in homes if home), None)
        return self._found[near]

    def rules_out(self, near: frozenset[int]) -> bool:
        """Whether devices on `near`, and any more of them, are in vain: a look that costs less than `find`."""
        return bool(self._request.guest) and not any(self._promises(near, stage) for stage in self._stages(near))

    def _stages(self, near: frozenset[int]) -> Iterable[_Stage]:
        if self._request.numa == "required":
            return (_Stage(True, True, False),)
        several = (True, False) if len(self._request.guest) > 1 else (True,)
        cover = (True, False) if near and self._request.numa == "preferred" else (False,)
        return (*(_Stage(distinct, close, False) for distinct in several for close in cover),
                _Stage(False, False, True))

    def _promises(self, near: frozenset[int], stage: _Stage) -> bool:
        """Whether each guest node alone fits somewhere, each device's node has room for one of them, and there are host
        nodes enough: where not, a search would try all the rest in vain."""
        reach: set[Optional[int]] = set()
        apart = 0
        for number, guest in enumerate(self._request.guest):
            bound, loose = self._ways(number, near, stage)
            fits = bound and self._fitting(number, True)
            if not fits and not (loose and self._fitting(number, False)):
                return False
            reach.update(fits or ())
            apart += stage.distinct and not loose and not _is_fixed(guest)
        if apart > len(reach):
            return False
        return not stage.cover or (near <= reach and len(near) <= len(self._request.guest))

    def _try(self, near: frozenset[int], stage: _Stage) -> Optional[Home]:
        self._steps = min(self._left, SEARCH_STEPS)
        self._left -= self._steps
        home = self._search((), (), near, stage)
        self._left += self._steps       # those not needed
        return home

    def _search(self, uses: tuple[Use, ...], nodes: tuple[Optional[int], ...], near: frozenset[int],
                stage: _Stage) -> Optional[Home]:
        """Depth first, nearest host node first: the first whole assignment that a stage allows."""
        rest = len(self._request.guest) - len(uses)
        if stage.cover and len(near.difference(nodes)) > rest:
            return None
        if not rest:
            return Home(uses, nodes)
        if not self._steps:
            return None
        self._steps -= 1
        for node, bind, alone in self._options(nodes, near, stage):
            use: Union[Use, str] = alone
            if node is None or node.id in nodes:
                use = settle(self._supply, self._request, self._request.guest[len(uses)], node, bind, uses)
            if isinstance(use, str):
                continue
            home = self._search((*uses, use), (*nodes, node.id if node else None), near, stage)
            if home:
                return home
        return None

    def _options(self, nodes: Sequence[Optional[int]], near: frozenset[int], stage: _Stage) -> list[_Option]:
        """Where the next guest node may go, best first: the host node, whether its memory is bound there, and what it
        takes there alone."""
        number = len(nodes)
        ordered = self._nearest(nodes, near, stage)
        found: list[_Option] = []
        for bind, allowed in zip((True, False), self._ways(number, near, stage), strict=True):
            fitting = self._fitting(number, bind) if allowed else {}
            found += [(node, bind, fitting[node.id]) for node in ordered if node.id in fitting]
            found += [(None, bind, fitting[None])] if None in fitting else []
        return found

    def _ways(self, number: int, near: frozenset[int], stage: _Stage) -> tuple[bool, bool]:
        """Whether a guest node's memory may be bound to a host node, and whether it may stay unbound."""
        request, guest = self._request, self._request.guest[number]
        must = request.numa == "required" or guest.page_kib is not None or guest.bound is not None
        may = bool(near) if request.wants and request.numa == "preferred" else _is_dedicated(request, guest)
        return must or may, not must and (stage.loose or not may)

    def _fitting(self, number: int, bind: bool) -> dict[Optional[int], Use]:
        """Host nodes on which a guest node fits while it is alone, and what it takes there."""
        if (number, bind) not in self._alone:
            guest = self._request.guest[number]
            given = fixed_nodes(self._supply, self._request, guest) if bind else None
            anywhere: tuple[Optional[NumaNode], ...] = (None,)
            places = self._supply.nodes if bind or _is_dedicated(self._request, guest) else anywhere
            found = self._alone[number, bind] = {}
            for node in places:
                if given is None or (node and node.id in given):
                    use = settle(self._supply, self._request, guest, node, bind)
                    if isinstance(use, Use):
                        found[node.id if node else None] = use
        return self._alone[number, bind]

    def _nearest(self, nodes: Sequence[Optional[int]], near: frozenset[int], stage: _Stage) -> list[NumaNode]:
        """Host nodes for the next guest node: those of devices without one first, then by distance, then by rank. Guest
        nodes that the platform put on one host node may stay together."""
        missing = near.difference(nodes)
        anchors = near or frozenset(node for node in nodes if node is not None)
        fixed = _is_fixed(self._request.guest[len(nodes)])
        used = {node for other, node in zip(self._request.guest, nodes, strict=False)
                if not (fixed and _is_fixed(other))}

        def key(node: NumaNode) -> tuple[bool, int, int]:
            away = min((distance(self._supply.distances, node.id, anchor) for anchor in anchors), default=0)
            return node.id not in missing, away, self._rank[node.id]

        last = stage.cover and len(missing) == len(self._request.guest) - len(nodes)
        left = [node for node in self._supply.nodes if node.id in missing] if last else self._supply.nodes
        return sorted((node for node in left if not (stage.distinct and node.id in used)), key=key)


def _is_dedicated(request: Request, guest: GuestNode) -> bool:
    """Whether we choose CPUs for this guest node alone."""
    return request.cpu == "dedicated" and guest.pinned is None


def _is_fixed(guest: GuestNode) -> bool:
    return guest.pinned is not None or guest.bound is not None


def fixed_nodes(supply: Supply, request: Request, guest: GuestNode) -> Optional[tuple[int, ...]]:
    """Host nodes to which the platform bound or pinned the guest node; None: it is free to go anywhere."""
    pinned = None
    if guest.pinned is not None:
        cpus = {cpu for _, pcpus in guest.pinned for cpu in pcpus}
        pinned = tuple(node.id for node in supply.nodes if any(not cpus.isdisjoint(core) for core in node.cores))
    if guest.bound is None:
        return pinned
    both = guest.bound if pinned is None else tuple(node for node in guest.bound if node in pinned)
    return both if both or request.numa == "required" else guest.bound
