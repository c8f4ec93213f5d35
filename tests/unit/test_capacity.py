from kvm_gpu.capacity import Row, capacity
from kvm_gpu.model import Cell, Policy, Request, Taken, Vm, Want
from kvm_gpu.plan import place
from tests.planhosts import GIB, board, card, hold, host, node, size, slot, use, vfs, vgpus, whole, x48


def rows(on, *holds, policy=None, cordoned=(), uses=(), **marks):
    return capacity(on, Taken(holds, uses, cordoned), policy or Policy(), **marks)


def counts(found, profile, *fields):
    """total, taken, free, sellable of the first row of a profile, or the fields named."""
    row = next(row for row in found if row.profile == profile)
    return tuple(getattr(row, field) for field in fields or ("total", "taken", "free", "sellable"))


def t4(address="0000:41:00.0", *more):
    """mdev on the PF: four of one size, in slots numbered by us."""
    layout = vgpus(address, size("ex-35", "35", 4, 4), *more)
    slots = tuple(slot(f"{address}#{number}", (address,)) for number in range(4))
    return board(address, layout._replace(name="mdev", mechanism="mdev", slots=slots))


def test_a_row_says_all():
    one = x48(slots=4)
    assert rows(host(one), hold(one, "X48-24Q", "vm-1"))[2] == Row(
        "0000:ca:00.0", "x48", "nvidia_vfio", 0, "X48-24Q", 2, 1, 1, 1, 0, 0, 0, 0, 0, None)


def test_a_board_full_with_one_has_nothing_of_anything():
    found = rows(host(x48()), hold(x48(), "X48-48Q", "vm-101"))
    assert [(row.profile, row.total, row.taken, row.free, row.sellable) for row in found] == [
        ("X48-2Q", 4, 0, 0, 0), ("X48-8Q", 4, 0, 0, 0), ("X48-24Q", 2, 0, 0, 0), ("X48-48Q", 1, 1, 0, 0),
        ("x48", 1, 0, 0, 0)]
    assert counts(found, "X48-2Q", "why") == ("fully used by vm-101",)
    assert counts(found, "x48", "why") == ("VFs on, 1 used by vm-101",)


def test_two_of_four_mdevs_whether_or_not_they_are_there():
    one = t4()
    held = [hold(one, "ex-35", f"vm-{at}", at=at, start=at * 4096) for at in range(2)]
    assert counts(rows(host(one), *held), "ex-35") == (4, 2, 2, 2)
    gone = frozenset(taken.slot for taken in held)
    found = rows(host(one), *held, absent=gone)
    assert counts(found, "ex-35") == (4, 2, 2, 2)
    assert counts(found, "ex-35", "not_restored") == (2,)


def test_somebody_elses_mdev_counts_as_foreign():
    one = t4()
    foreign = hold(one, "ex-35", None, state="foreign")
    expected = (4, 0, 1, 3, 3)
    fields = ("total", "taken", "foreign", "free", "sellable")
    assert counts(rows(host(one), foreign), "ex-35", *fields) == expected
    assert counts(rows(host(one), foreign._replace(profile="type 22")), "ex-35", *fields) == expected
    known = t4("0000:41:00.0", size("ex-22", "22", 4, 4))
    found = rows(host(known), foreign._replace(profile="ex-22"))
    assert counts(found, "ex-22", *fields) == expected
    assert counts(found, "ex-35", *fields) == (4, 0, 0, 3, 3)


def test_a_board_that_was_not_restored_sells_nothing():
    one = x48(slots=2)
    found = rows(host(one), absent=frozenset({one.address}))
    assert counts(found, "X48-24Q", "total", "taken", "free", "sellable", "not_restored", "why") == (
        2, 0, 0, 0, 2, "not restored")


def test_stuck_slots_are_not_free():
    one = x48(slots=4)
    held = hold(one, "X48-8Q", "vm-1", state="releasing")
    found = rows(host(one), held, stuck=frozenset({held.slot}))
    assert counts(found, "X48-8Q", "total", "taken", "free", "stuck") == (4, 1, 3, 1)
    assert counts(rows(host(one), stuck=frozenset({held.slot})), "X48-8Q", "taken", "free", "stuck") == (0, 3, 1)


def test_cordoned_boards_retire_what_they_hold():
    one = x48()
    found = rows(host(one), hold(one, "X48-8Q", "vm-1"), cordoned=((one.address, "fan broken"),))
    assert counts(found, "X48-8Q", "total", "taken", "free", "retiring", "why") == (4, 1, 0, 1, "cordoned: fan broken")
    assert counts(found, "X48-2Q", "retiring") == (0,)


def test_trouble_says_why():
    broken = x48()._replace(trouble=("reads EIO",))
    assert counts(rows(host(broken)), "X48-2Q", "total", "free", "why") == (4, 0, "reads EIO")
    grouped = whole("0000:10:00.0", "g")._replace(slots=(slot("0000:10:00.0", trouble="group 40"),))
    found = rows(host(board("0000:10:00.0", grouped)))
    assert counts(found, "g", "total", "free", "why") == (1, 0, "0000:10:00.0: group 40")


def test_slices_of_a_card_that_is_held_whole():
    one = board("0000:3b:00.0", vfs("0000:3b:00.0", "g", 2), whole("0000:3b:00.0", "g"))
    found = rows(host(one), hold(one, "g", "vm-1", layout=1))
    assert [(row.mechanism, row.total, row.taken, row.free, row.why) for row in found] == [
        ("whole", 1, 1, 0, "fully used by vm-1"), ("vf", 2, 0, 0, "card held whole by vm-1")]


def test_held_back_is_spread_over_the_boards_in_order():
    boards = [x48(f"0000:{bus}:00.0", slots=2) for bus in ("10", "20", "30")]
    found = rows(host(*boards), policy=Policy(held_back=(("X48-8Q", 3),)))
    assert [row.sellable for row in found if row.profile == "X48-8Q"] == [0, 1, 2]
    assert [row.free for row in found if row.profile == "X48-8Q"] == [2, 2, 2]
    assert rows(host(*boards), policy=Policy(held_back=(("x48-8q", 3),))) == found      # as in a request


def test_what_no_cpu_or_memory_can_reach_is_not_sellable():
    here, there = card("0000:10:00.0"), card("0000:90:00.0", numa_node=1)
    no_cpus = use(0, cpus=tuple(cpu for core in node(0).cores for cpu in core))
    assert [row.sellable for row in rows(host(here, there), uses=(no_cpus,))] == [0, 1]
    assert [row.sellable for row in rows(host(here, there), uses=(use(1, 65536),))] == [1, 0]
    nodes = (node(0), node(1, pages=((GIB, 64, 64),)))
    assert [row.sellable for row in rows(host(here, there, nodes=nodes), uses=(use(1, 65536),))] == [1, 1]
    assert [row.sellable for row in rows(host(here, there), policy=Policy(cpu_pool=(0, 1)))] == [1, 0]
    for bare in (node(0, mem_mib=0), node(0, cores=0)):     # numa=preferred starts a VM from the other node
        assert [row.sellable for row in rows(host(here, nodes=(bare, node(1))))] == [1]
    unknown = card("0000:10:00.0", numa_node=None)
    assert [row.sellable for row in rows(host(unknown), uses=(no_cpus,))] == [1]


def test_frame_buffer_that_the_running_size_cannot_use_is_stranded():
    ten = board("0000:10:00.0", vgpus("0000:10:00.0", size("g-10Q", "1", 10, 4), size("g-48Q", "2", 48, 1)))
    assert counts(rows(host(ten)), "g-10Q", "stranded_mib") == (0,)
    assert counts(rows(host(ten), hold(ten, "g-10Q", "vm-1")), "g-10Q", "free", "stranded_mib") == (3, 8192)
    few = x48(slots=2)
    assert counts(rows(host(few), hold(few, "X48-8Q", "vm-1")), "X48-8Q", "free", "stranded_mib") == (1, 32768)
    mixed = x48(one_size=False)
    assert counts(rows(host(mixed), hold(mixed, "X48-8Q", "vm-1")), "X48-8Q", "stranded_mib") == (0,)


def test_stranded_is_unknown_where_a_size_is():
    one = t4("0000:41:00.0", size("ex-22", "22", 4, 4)._replace(fb_mib=None))
    assert counts(rows(host(one), hold(one, "ex-35", "vm-1")), "ex-35", "stranded_mib") == (None,)


def test_mig_instances_of_one_profile_are_one_row():
    part = (size("g-1-5C", "1", 5, 1),)
    layout = vgpus("0000:01:00.0", *part, slots=3)
    cut = layout._replace(cells=(Cell("gi 1", False, part), Cell("gi 2", False, part)),
                          slots=tuple(one._replace(cells=("gi 1", "gi 2")) for one in layout.slots))
    one = board("0000:01:00.0", cut)
    assert counts(rows(host(one), hold(one, "g-1-5C", "vm-1")), "g-1-5C") == (2, 1, 1, 1)


def test_free_is_how_many_more_can_really_be_placed():
    for one_size in (True, False):
        one = x48(slots=30, one_size=one_size)
        held = [hold(one, "X48-8Q", "vm-0", at=3, start=8192)]
        for row in rows(host(one), *held):
            more = list(held)
            while hasattr(found := place(Request(Vm(f"vm-{len(more)}"), (Want(profile=row.profile),)), host(one),
                                         Taken(tuple(more)), Policy()), "devices"):
                more += [device.hold for device in found.devices]
            assert (row.profile, row.free) == (row.profile, len(more) - 1)
