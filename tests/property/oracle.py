"""Whether any placement exists, by trying everything: slow, plain, and without a line of the planner.

The rules, as an operator would tell them. Fit for hosts of a few boards with a few slots.
"""
from itertools import product


def exists(request, host, taken, policy):
    units = [want for want in request.wants for _ in range(want.cards)]
    own = [hold for hold in taken.holds if hold.vm == request.vm.id and hold.state == "kept"]
    held = [hold for hold in taken.holds if hold not in own]
    places = [[place for place in all_places(host, taken) if answers(place, want) and fits(place, [], held)]
              for want in units]
    tried = set()
    for chosen in combinations(places, [], held, request, units):
        nodes = frozenset(place["board"].numa_node for place in chosen)
        if nodes not in tried:
            tried.add(nodes)
            if guest_fits(request, host, taken, policy, nodes):
                return True
    return False


# ---- devices ---------------------------------------------------------------------------------------

def all_places(host, taken):
    for board in host.boards:
        if board.trouble or board.address in dict(taken.cordoned):
            continue
        for layout in board.layouts:
            for cell, slot in product(layout.cells, layout.slots):
                if slot.trouble is None and cell.name in slot.cells:
                    for profile in cell.profiles:
                        for start in profile.starts:
                            yield {"board": board, "layout": layout, "cell": cell, "slot": slot, "profile": profile,
                                   "start": start}


def answers(place, want):
    board, layout, slot, profile = place["board"], place["layout"], place["slot"], place["profile"]
    if want.vendor and not board.functions[0].ids.startswith(want.vendor + ":"):
        return False
    if want.model and board.model.lower() != want.model.lower():
        return False
    if want.mechanism == "mig" and not place["cell"].name.startswith("gi"):
        return False
    if want.mechanism not in (None, "mig", layout.mechanism):
        return False
    if want.profile and want.profile != profile.type_id and want.profile.lower() != profile.name.lower():
        return False
    if want.fb_mib and (profile.fb_mib is None or profile.fb_mib < want.fb_mib):
        return False
    if want.address and want.address not in (slot.name, slot.path.split("/")[-1], *slot.functions):
        return False
    if not (want.mechanism or want.profile or want.fb_mib):
        return layout.mechanism == "whole" or bool(want.address and layout.mechanism == "vf")
    return True


def fits(place, chosen, held):
    """Beside what others hold and what this VM has chosen so far."""
    board, cell, profile = place["board"], place["cell"], place["profile"]
    there = [(hold.slot, hold.layout, hold.cell, hold.start, hold.size) for hold in held if hold.board == board.address]
    there += [(one["slot"].name, one["layout"].name, one["cell"].name, one["start"], one["profile"].size)
              for one in chosen if one["board"] is board]
    if any(slot == place["slot"].name or layout != place["layout"].name for slot, layout, _, _, _ in there):
        return False
    inside = [(start, size) for _, _, name, start, size in there if name == cell.name]
    if cell.one_size and (len(inside) >= len(profile.starts) or any(size != profile.size for _, size in inside)):
        return False
    mine = set(range(place["start"], place["start"] + profile.size))
    return all(size > 0 and mine.isdisjoint(range(start, start + size)) for start, size in inside)


def combinations(places, chosen, held, request, units):
    if len(chosen) == len(units):
        yield chosen
        return
    for place in places[len(chosen)]:
        if fits(place, chosen, held) and all(
                together(one, place, request, units[at].address or units[len(chosen)].address)
                for at, one in enumerate(chosen)):
            yield from combinations(places, [*chosen, place], held, request, units)


def together(one, other, request, adopted):
    if adopted:
        return True
    if one["board"] is other["board"]:
        return request.close == "required"
    if request.close != "required":
        return True
    first, second = one["board"], other["board"]
    if first.numa_node is None or second.numa_node is None:
        return first.pci_path[0] == second.pci_path[0]
    return first.numa_node == second.numa_node


# ---- CPUs and memory -------------------------------------------------------------------------------

def guest_fits(request, host, taken, policy, device_nodes):
    if request.numa == "required" and None in device_nodes:
        return False
    if not request.guest:
        return True
    options = [list(guest_options(request, host, guest)) for guest in request.guest]
    return any(all_fit(request, host, taken, policy, device_nodes, homes) for homes in product(*options))


def guest_options(request, host, guest):
    """(host node of its CPUs or None, whether its memory is bound there)."""
    dedicated = request.cpu == "dedicated" and guest.pinned is None
    for node in platform_nodes(request, host, guest):
        yield node, True
    if may_float(request, guest):
        yield from [(node, False) for node in host.nodes] if dedicated else [(None, False)]


def platform_nodes(request, host, guest):
    """Where the platform left the guest node; bound memory counts where it is bound, even away from pinned CPUs."""
    pcpus = {cpu for _, cpus in guest.pinned or () for cpu in cpus}
    pinned = [node for node in host.nodes
              if guest.pinned is None or pcpus & {cpu for core in node.cores for cpu in core}]
    bound = [node for node in host.nodes if guest.bound is None or node.id in guest.bound]
    both = [node for node in pinned if node in bound]
    return both if both or request.numa == "required" or guest.bound is None else bound


def may_float(request, guest):
    """Only ordinary memory that the platform left alone, and only where nearness is no condition."""
    return request.numa != "required" and guest.page_kib is None and guest.bound is None


def all_fit(request, host, taken, policy, device_nodes, homes):
    chosen = [node.id for node, _ in homes if node]
    if request.numa == "required":
        free = [node.id for (node, _), guest in zip(homes, request.guest, strict=True)
                if guest.pinned is None and guest.bound is None]
        others = [node.id for (node, _), guest in zip(homes, request.guest, strict=True)
                  if guest.pinned is not None or guest.bound is not None]
        if len(set(free)) < len(free) or set(free) & set(others) or not device_nodes <= set(chosen):
            return False
    return all(node_fits(request, host, taken, policy, node, homes) for node in host.nodes) and (
        request.cpu != "shared" or any(node for node, _ in homes)
        or any(pool_cpus(node, taken, policy) for node in host.nodes)
        or all(guest.pinned is not None for guest in request.guest))


def pool_cpus(node, taken, policy):
    alone = {cpu for use in taken.uses for cpu in use.cpus}
    return [cpu for core in node.cores for cpu in core
            if cpu not in alone and (policy.cpu_pool is None or cpu in policy.cpu_pool)]


def node_fits(request, host, taken, policy, node, homes):
    here = [(guest, bound) for (home, bound), guest in zip(homes, request.guest, strict=True) if home is node]
    to_pin = [guest for guest, _ in here if guest.pinned is None]
    pool = set(pool_cpus(node, taken, policy))
    if request.cpu == "dedicated":
        threads = len(node.cores[0]) if node.cores else 1
        free_cores = sum(pool >= set(core) for core in node.cores)
        if sum(-(-len(guest.vcpus) // threads) for guest in to_pin) > free_cores:
            return False
    if request.cpu == "shared" and to_pin and not pool:
        return False
    sizes = {guest.page_kib for guest, bound in here if bound}
    return all(sum(amount(guest.mem_mib, size) for guest, bound in here if bound and guest.page_kib == size)
               <= memory_left(node, size, taken) for size in sizes)


def amount(mib, page_kib):
    return mib if page_kib is None else -(-mib * 1024 // page_kib)


def memory_left(node, page_kib, taken):
    promised = [use for use in taken.uses if use.node == node.id and use.page_kib == page_kib]
    total, free = node.mem_mib - sum(pages.total * pages.size_kib // 1024 for pages in node.pages), node.free_mib
    if page_kib is not None:
        total, free = next(((pages.total, pages.free) for pages in node.pages if pages.size_kib == page_kib), (0, 0))
    left = total - sum(amount(use.mib, page_kib) for use in promised)
    if free is None:
        return left
    return min(left, free - sum(amount(use.mib, page_kib) for use in promised if not use.allocated))
