"""place() against brute force, and what must hold over any sequence of starts and stops."""
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvm_gpu.model import (
    Board,
    Cell,
    Function,
    GuestNode,
    Hold,
    Host,
    Layout,
    NumaNode,
    Pages,
    Placement,
    Policy,
    Profile,
    Refusal,
    Request,
    Slot,
    Taken,
    Use,
    Vm,
    Want,
)
from kvm_gpu.plan import place
from tests.property import oracle

GIB = 1 << 20
KINDS = ("vf", "slices", "mixed", "mig", "whole")
WANTS = (
    Want(mechanism="vf"), Want(profile="g-4q"), Want(profile="102"), Want(profile="g-8Q"), Want(model="G"),
    Want(vendor="10de", mechanism="whole"), Want(fb_mib=3000), Want(fb_mib=5000), Want(mechanism="mig"),
    Want(profile="g-4Q", cards=2), Want(mechanism="whole", cards=2), Want(mechanism="vf", cards=2),
    Want(fb_mib=3000, cards=3), Want(address="0000:10:00.1"), Want(address="0000:20:00.0", mechanism="nvidia_vfio"),
    Want(profile="g-4C", mechanism="nvidia_vfio"), Want(mechanism="vf", vendor="1002"),
)


def slots(bus, number, cells, trouble=None):
    names = [f"0000:{bus}:00.{function + 1}" for function in range(number)]
    return tuple(Slot(name, (name,), "/sys/bus/pci/devices/" + name, cells, None, trouble if at == 0 else None)
                 for at, name in enumerate(names))


def whole(bus):
    name = f"0000:{bus}:00.0"
    slot = Slot(name, (name,), "/sys/bus/pci/devices/" + name, ("board",))
    return Layout("whole", "whole", (slot,), (Cell("board", False, (Profile("g", None, 8192, 1, (0,)),)),))


def sliced(bus, number, kind, trouble):
    q4, c4 = Profile("g-4Q", "102", 4096, 4096, (0, 4096)), Profile("g-4C", "103", 4096, 4096, (0, 4096))
    q8 = Profile("g-8Q", "104", 8192, 8192, (0,))
    if kind == "vf":
        cells = (Cell("board", False, (Profile("g-vf", None, None, 1, tuple(range(number))),)),)
        return Layout("vf", "vf", slots(bus, number, ("board",), trouble), cells)
    if kind == "mig":
        c1, q2 = Profile("g-1-4C", "105", 4096, 1, (0,)), Profile("g-2-4Q", "106", 4096, 1, (0,))
        cells = (Cell("gi 1", False, (c1,)), Cell("gi 2", False, (c1, q2)))
        some = slots(bus, number, ("gi 1", "gi 2"), trouble)
        return Layout("mig", "nvidia_vfio", (*some[:-1], some[-1]._replace(cells=("gi 2",))), cells)
    cells = (Cell("board", kind == "slices", (q4, c4, q8)),)
    return Layout("nvidia_vfio", "nvidia_vfio", slots(bus, number, ("board",), trouble), cells)


@st.composite
def boards(draw, bus, nodes, kinds):
    kind = draw(st.sampled_from(kinds))
    trouble = draw(st.sampled_from((*[None] * 7, "broken")))
    layouts = (whole(bus),) if kind == "whole" else (sliced(bus, draw(st.integers(1, 3)), kind, trouble), whole(bus))
    root = draw(st.sampled_from(("pci0000:00", "pci0000:80")))
    path = (root, draw(st.sampled_from(("0000:00:01.0", "0000:00:02.0"))))
    address = f"0000:{bus}:00.0"
    function = Function(address, draw(st.sampled_from(("10de:1", "10de:1", "1002:1"))), 0x030200, None, None)
    return Board(address, None, "g", None, draw(st.sampled_from((*nodes * 3, None))), "device", path, (function,),
                 layouts, draw(st.sampled_from((*[()] * 9, ("dead",)))))


@st.composite
def hosts(draw):
    number = draw(st.integers(1, 3))
    nodes = []
    for node in range(number):
        first = range(10 * node, 10 * node + 2 * draw(st.sampled_from((3, 4, 2, 0))), 2)
        cores = tuple((cpu, cpu + 1) for cpu in first)
        free_pages = draw(st.sampled_from((4, 3, 2, 0)))
        nodes.append(NumaNode(node, cores, 10240, draw(st.sampled_from((None, 4096, 2048))),
                              (Pages(GIB, 4, free_pages),), tuple(10 if node == at else 21 for at in range(number))))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    buses = ("10", "20", "30")[:draw(st.sampled_from((3, 3, 2, 1)))]
    found = [draw(boards(bus, tuple(range(number)), kinds)) for bus in buses]
    return Host("boot", tuple(nodes), tuple(found))


@st.composite
def guests(draw, number):
    found = []
    for node in range(draw(st.sampled_from((0, 1, 1, 2, 2, 3)))):
        pinned = draw(st.sampled_from((*[None] * 6, ((0, (0, 1)),), ((0, (10,)),))))
        found.append(GuestNode(node, tuple(range(3 * node, 3 * node + draw(st.integers(1, 3)))),
                               draw(st.sampled_from((1024, 2048, 4096))), draw(st.sampled_from((None, GIB))), pinned,
                               draw(st.sampled_from((*[None] * 6, (0,), (0, number - 1))))))
    return tuple(found)


@st.composite
def requests(draw, host, vm="vm-new"):
    """Mostly wants that some board of the host answers."""
    served = [want for want in WANTS if any(oracle.answers(one, want) for one in oracle.all_places(host, Taken()))]
    least = draw(st.sampled_from((1, 1, 1, 0)))
    wants = tuple(draw(st.lists(st.sampled_from((*served, WANTS[0])), min_size=least, max_size=2)))
    strict = st.sampled_from(("required", "preferred", "none"))
    return Request(Vm(vm), wants, draw(guests(len(host.nodes))), draw(strict), draw(strict),
                   draw(st.sampled_from(("dedicated", "shared", "none"))))


@st.composite
def policies(draw):
    return Policy(draw(st.sampled_from(("pack", "spread", "keep-whole"))),
                  draw(st.sampled_from((None, None, tuple(range(2, 14))))))


@st.composite
def uses(draw, host):
    node = draw(st.sampled_from(host.nodes))
    cores = node.cores[:draw(st.integers(0, 1))]
    return Use("vm-old", 0, node.id, (), tuple(cpu for core in cores for cpu in core),
               draw(st.sampled_from((1024, 2048))), draw(st.sampled_from((None, GIB))), draw(st.booleans()))


@st.composite
def holds(draw, host):
    """Holds as earlier placements leave them, with now and then one of somebody else, of unknown size, or kept."""
    found = []
    for vm in range(draw(st.sampled_from((0, 1, 2, 3)))):
        request = Request(Vm(f"vm-{vm}"), (draw(st.sampled_from(WANTS)),))
        placed = place(request, host, Taken(tuple(found)), Policy(draw(st.sampled_from(("pack", "spread")))))
        if isinstance(placed, Placement):
            found += [device.hold for device in placed.devices]
    twist = draw(st.sampled_from(("none", "none", "foreign", "unknown", "kept")))
    if found and twist == "foreign":
        found[0] = found[0]._replace(vm=None, state="foreign")
    if found and twist == "unknown":
        found[0] = found[0]._replace(vm=None, state="foreign", profile="type 999", size=0)
    if found and twist == "kept":
        found[0] = found[0]._replace(vm="vm-new", state="kept")
    return tuple(found)


@st.composite
def cases(draw):
    host = draw(hosts())
    cordoned = tuple((board.address, "fan") for board in host.boards[:draw(st.sampled_from((0, 0, 0, 0, 0, 1)))])
    some = draw(st.lists(uses(host), max_size=2, unique_by=lambda use: (use.node, bool(use.cpus))))
    taken = Taken(draw(holds(host)), tuple(some), cordoned)
    return draw(requests(host)), host, taken, draw(policies())


quick = settings(max_examples=150, deadline=None,
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@quick
@given(cases())
def test_a_refusal_means_that_nothing_fits(case):
    assert isinstance(place(*case), Placement) == oracle.exists(*case)


@quick
@given(cases())
def test_a_placement_keeps_the_rules(case):
    request, host, taken, policy = case
    placed = place(*case)
    if isinstance(placed, Refusal):
        assert placed.hint
        assert len(placed.reasons) == len(set(placed.reasons))
        return
    wants = [want for want in request.wants for _ in range(want.cards)]
    assert len(placed.devices) == len(wants)
    held = [hold for hold in taken.holds if not (hold.vm == "vm-new" and hold.state == "kept")]
    chosen = []
    for device, want in zip(placed.devices, wants, strict=True):
        one = next(one for one in oracle.all_places(host, taken) if same(one, device.hold))
        assert oracle.answers(one, want)
        assert oracle.fits(one, chosen, held)
        chosen.append(one)
    assert [use.guest_node for use in placed.uses] == [guest.id for guest in request.guest]
    alone = [cpu for use in (*taken.uses, *placed.uses) for cpu in use.cpus]
    assert len(set(alone)) == len(alone)


def same(one, hold):
    names = (one["slot"].name, one["board"].address, one["layout"].name, one["cell"].name, one["profile"].name)
    return (*names, one["start"]) == (hold.slot, hold.board, hold.layout, hold.cell, hold.profile, hold.start)


@quick
@given(cases(), st.randoms(use_true_random=False))
def test_order_of_what_is_held_and_listed_changes_nothing(case, random):
    request, host, taken, policy = case

    def shuffled(values):
        return tuple(random.sample(values, len(values)))

    again = place(request, host._replace(boards=shuffled(host.boards)),
                  Taken(shuffled(taken.holds), shuffled(taken.uses), shuffled(taken.cordoned)), policy)
    assert again == place(*case)


@quick
@given(hosts(), st.data())
def test_starts_and_stops_never_give_a_thing_twice(host, data):
    running: dict[str, Placement] = {}
    for step in range(data.draw(st.integers(1, 10))):
        if running and data.draw(st.booleans()):
            del running[data.draw(st.sampled_from(sorted(running)))]
        taken = Taken(tuple(device.hold for placed in running.values() for device in placed.devices),
                      tuple(use for placed in running.values() for use in placed.uses))
        placed = place(data.draw(requests(host, f"vm-{step}")), host, taken, Policy())
        if isinstance(placed, Placement):
            running[f"vm-{step}"] = placed
        check_consistent([device.hold for one in running.values() for device in one.devices],
                         [use for one in running.values() for use in one.uses])


def check_consistent(held: list[Hold], used: list[Use]):
    assert len({hold.slot for hold in held}) == len(held)
    units = [(hold.board, hold.cell, unit) for hold in held for unit in range(hold.start, hold.start + hold.size)]
    assert len(set(units)) == len(units)
    assert len({(hold.board, hold.layout) for hold in held}) == len({hold.board for hold in held})
    cpus = [cpu for use in used for cpu in use.cpus]
    assert len(set(cpus)) == len(cpus)
