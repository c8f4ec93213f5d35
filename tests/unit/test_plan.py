"""place(): which devices. CPUs and memory are in test_plan_nodes.py, refusals in test_plan_refusal.py."""
import pytest

from kvm_gpu.model import Placement, Policy, Request, Taken, Vm, Want
from kvm_gpu.plan import place
from tests.planhosts import board, card, guest, hold, host, node, size, vfs, vgpus, whole, x48

PACK, SPREAD, KEEP = Policy("pack"), Policy("spread"), Policy("keep-whole")


def devices(wants, on, *holds, vm="vm-new", policy=PACK, cordoned=(), **fields):
    """Slots given, in order; None for a refusal."""
    wants = (wants,) if isinstance(wants, Want) else wants
    placed = place(Request(Vm(vm), wants, **fields), on, Taken(holds, (), cordoned), policy)
    return [device.hold.slot for device in placed.devices] if isinstance(placed, Placement) else None


def test_a_placement_says_all_that_the_later_steps_need():
    one = x48()
    placed = place(Request(Vm("vm-1"), (Want(profile="x48-8q"),)), host(one), Taken(), PACK)
    assert isinstance(placed, Placement)
    device, = placed.devices
    assert device.hold == hold(one, "X48-8Q", "vm-1", state="starting")
    assert device[1:] == ("nvidia_vfio", ("0000:ca:00.4",), None, None)
    assert placed[1:] == ((), (), None, ())


def test_a_whole_card_brings_every_function():
    placed = place(Request(Vm("vm-1"), (Want(model="g"),)), host(card("0000:86:00.0", functions=2)), Taken(), PACK)
    assert isinstance(placed, Placement)
    assert placed.devices[0].functions == ("0000:86:00.0", "0000:86:00.1")


def test_an_idle_board_keeps_its_present_layout_where_that_serves():
    one, other = x48("0000:10:00.0"), card("0000:20:00.0")
    assert devices(Want(mechanism="whole"), host(one, other)) == ["0000:20:00.0"]
    assert devices(Want(mechanism="whole"), host(one)) == ["0000:10:00.0"]


def test_trouble_and_cordons_keep_a_board_out():
    one = x48()
    assert devices(Want(profile="X48-2Q"), host(one._replace(trouble=("dead",)))) is None
    assert devices(Want(profile="X48-2Q"), host(one), cordoned=((one.address, ""),)) is None


def test_somebody_elses_mdev_counts():
    one = x48()
    foreign = hold(one, "X48-8Q", None, state="foreign")
    assert devices(Want(profile="X48-8Q"), host(one), foreign) == ["0000:ca:00.5"]
    assert devices(Want(profile="X48-2Q"), host(one), foreign) is None


# ---- sizes -----------------------------------------------------------------------------------------

def test_the_smallest_size_that_does_comes_first():
    one = x48()
    placed = place(Request(Vm("vm-1"), (Want(fb_mib=9000),)), host(one), Taken(), PACK)
    assert isinstance(placed, Placement)
    assert placed.devices[0].hold.profile == "X48-24Q"


def test_a_bigger_size_serves_where_the_smallest_has_no_room():
    one, other = x48("0000:10:00.0"), x48("0000:20:00.0")
    held = (hold(one, "X48-48Q", "vm-1"), hold(other, "X48-48Q", "vm-2"))
    running = hold(other, "X48-24Q", "vm-2")
    assert devices(Want(fb_mib=4000), host(one, other), *held) is None
    assert devices(Want(fb_mib=4000), host(one, other), held[0], running) == ["0000:20:00.5"]


# ---- order -----------------------------------------------------------------------------------------

def test_pack_fills_and_spread_levels():
    one, other = x48("0000:10:00.0"), x48("0000:20:00.0")
    held = (hold(other, "X48-2Q", "vm-1"),)
    assert devices(Want(profile="X48-2Q"), host(one, other), *held) == ["0000:20:00.5"]
    assert devices(Want(profile="X48-2Q"), host(one, other), *held, policy=SPREAD) == ["0000:10:00.4"]


def test_ties_end_in_the_address():
    assert devices(Want(model="g"), host(card("0000:20:00.0"), card("0000:10:00.0"))) == ["0000:10:00.0"]


def test_keep_whole_opens_an_idle_card_last_even_for_a_nearer_one():
    far, near = x48("0000:10:00.0", numa_node=1), x48("0000:20:00.0", numa_node=0)
    held = (hold(far, "X48-2Q", "vm-1"),)
    fields = {"guest": (guest(mem_mib=4096, page_kib=None, bound=(0,)),)}
    assert devices(Want(profile="X48-2Q"), host(far, near), *held, **fields) == ["0000:20:00.4"]
    assert devices(Want(profile="X48-2Q"), host(far, near), *held, policy=KEEP, **fields) == ["0000:10:00.5"]
    assert devices(Want(profile="X48-2Q"), host(near), policy=KEEP) == ["0000:20:00.4"]


def test_a_single_card_goes_to_the_busier_node():
    four = [card(f"0000:{bus}0:00.0", numa_node=bus // 3) for bus in (1, 2, 3, 4)]
    held = hold(four[3], "g", "vm-1")
    assert devices(Want(model="g"), host(*four), held) == ["0000:30:00.0"]
    assert devices(Want(model="g"), host(*four), held, policy=SPREAD) == ["0000:10:00.0"]


# ---- several devices, and how close they are -------------------------------------------------------

A = card("0000:29:00.0", path=("pci0000:26", "0000:26:01.0", "0000:27:00.0", "0000:28:00.0"))
B = card("0000:2a:00.0", path=("pci0000:26", "0000:26:01.0", "0000:27:00.0", "0000:28:01.0"))
C = card("0000:49:00.0", path=("pci0000:48", "0000:48:01.0"))
D = card("0000:5a:00.0", path=("pci0000:59", "0000:59:01.0"))
E = card("0000:a9:00.0", numa_node=1, path=("pci0000:a6", "0000:a6:01.0"))
FIVE = host(A, B, C, D, E)
TWO = Want(model="g", cards=2)


def test_a_single_card_does_not_break_a_pair():
    assert devices(Want(model="g"), FIVE) == [C.address]


def test_two_cards_get_the_pair_behind_one_switch():
    assert devices(TWO, FIVE, hold(C, "g", "vm-0")) == [A.address, B.address]


def test_two_cards_far_apart_are_no_answer_to_required():
    held = [hold(card, "g", "vm-0") for card in (A, B, C)]
    assert devices(TWO, FIVE, *held, close="required") is None


def test_two_cards_far_apart_are_given_to_preferred_with_a_note():
    held = tuple(hold(card, "g", "vm-0") for card in (A, B, C))
    placed = place(Request(Vm("vm-1"), (TWO,)), FIVE, Taken(held), PACK)
    assert isinstance(placed, Placement)
    assert [device.hold.slot for device in placed.devices] == [D.address, E.address]
    assert placed.warnings == ("across nodes",)


SWITCH, ROOT, ELSEWHERE = ("pci0000:10", "0000:10:01.0"), ("pci0000:10", "0000:10:02.0"), ("pci0000:20", "0000:20:01.0")


@pytest.mark.parametrize(("near", "far"), [(SWITCH, ROOT), (ROOT, ELSEWHERE)])
def test_nearer_pairs_come_first(near, far):
    three = [card(f"0000:{bus}:00.0", path=path) for bus, path in (("11", SWITCH), ("12", far), ("13", near))]
    assert devices(TWO, host(*three)) == ["0000:11:00.0", "0000:13:00.0"]


@pytest.mark.parametrize("near", [SWITCH, ROOT])
def test_a_single_card_leaves_neighbours_together(near):
    three = [card(f"0000:{bus}:00.0", path=path) for bus, path in (("11", SWITCH), ("12", near), ("13", ELSEWHERE))]
    assert devices(Want(model="g"), host(*three)) == ["0000:13:00.0"]


def test_closeness_can_be_ignored():
    apart, near = card("0000:12:00.0", numa_node=1), card("0000:13:00.0")
    held = (hold(card("0000:14:00.0"), "g", "vm-0"),)
    on = host(card("0000:11:00.0"), apart, near, card("0000:14:00.0"))
    assert devices(TWO, on, *held) == ["0000:11:00.0", "0000:13:00.0"]
    assert devices(TWO, on, *held, close="none", policy=SPREAD) == ["0000:11:00.0", "0000:12:00.0"]


def test_unknown_nodes_are_close_behind_one_root_complex():
    one, other = (card(f"0000:{bus}:00.0", None, path) for bus, path in (
        ("11", ("pci0000:10", "0000:10:01.0")), ("12", ("pci0000:10", "0000:10:02.0"))))
    stranger = card("0000:33:00.0", None)
    assert devices(TWO, host(one, other), close="required") == ["0000:11:00.0", "0000:12:00.0"]
    assert devices(TWO, host(one, stranger), close="required") is None


def test_virtual_functions_come_from_different_boards():
    one, other = (board(f"0000:{bus}:00.0", vfs(f"0000:{bus}:00.0", "g", 4)) for bus in ("10", "20"))
    two = Want(mechanism="vf", cards=2)
    assert devices(two, host(one, other)) == ["0000:10:00.1", "0000:20:00.1"]
    assert devices(two, host(one)) is None
    assert devices(two, host(one), close="required") == ["0000:10:00.1", "0000:10:00.2"]


def test_two_sizes_on_one_board_find_the_starts_that_suit_both():
    long, short = size("g-4Q", "1", 4, 2), size("g-2Q", "2", 2, 4)._replace(starts=(0, 4096))
    one = board("0000:10:00.0", vgpus("0000:10:00.0", long._replace(starts=(0,)), short, one_size=False))
    wants = (Want(profile="g-2Q"), Want(profile="g-4Q"))
    placed = place(Request(Vm("vm-1"), wants, close="required"), host(one), Taken(), PACK)
    assert isinstance(placed, Placement)
    assert [(device.hold.profile, device.hold.start) for device in placed.devices] == [("g-2Q", 4096), ("g-4Q", 0)]


def test_several_wants_are_one_decision():
    one, other = x48("0000:10:00.0"), card("0000:20:00.0")
    wants = (Want(vendor="10de", mechanism="whole"), Want(profile="X48-2Q"))
    assert devices(wants, host(one, other)) == ["0000:20:00.0", "0000:10:00.4"]


# ---- adopted and kept ------------------------------------------------------------------------------

def test_an_adopted_slot_is_that_slot():
    one = x48()
    wanted = Want(address="0000:ca:00.6", profile="X48-8Q")
    assert devices(wanted, host(one)) == ["0000:ca:00.6"]
    assert devices(wanted, host(one), hold(one, "X48-8Q", "vm-1", at=2)) is None


def test_adopted_slots_may_share_a_board_and_be_far_apart():
    one, other = (board(f"0000:{bus}:00.0", vfs(f"0000:{bus}:00.0", "g", 4), numa_node=at)
                  for at, bus in enumerate(("10", "20")))
    wants = tuple(Want(address=address) for address in ("0000:10:00.3", "0000:10:00.1", "0000:20:00.1"))
    assert devices(wants, host(one, other), close="required") == ["0000:10:00.3", "0000:10:00.1", "0000:20:00.1"]


def test_the_same_slot_is_not_adopted_twice():
    one = board("0000:10:00.0", vfs("0000:10:00.0", "g", 4))
    assert devices((Want(address="0000:10:00.1"),) * 2, host(one)) is None


def test_a_kept_place_is_taken_again_and_nobody_elses():
    one, other = x48("0000:10:00.0"), x48("0000:20:00.0")
    held = (hold(one, "X48-8Q", "vm-1"), hold(other, "X48-8Q", "vm-kept", at=2, start=16384, state="kept"))
    placed = place(Request(Vm("vm-kept"), (Want(profile="X48-8Q"),)), host(one, other), Taken(held), PACK)
    assert isinstance(placed, Placement)
    assert placed.devices[0].hold == held[1]._replace(state="starting")
    assert devices(Want(address="0000:20:00.6", profile="X48-8Q"), host(one, other), *held) is None


def test_a_kept_place_of_another_kind_is_given_up():
    one = x48()
    kept = hold(one, "X48-48Q", "vm-kept", state="kept")
    assert devices(Want(profile="X48-2Q"), host(one), kept, vm="vm-kept") == ["0000:ca:00.4"]


def test_whole_cards_of_a_big_request_are_all_different():
    eight = [card(f"0000:{bus}0:00.0", numa_node=bus // 4) for bus in range(8)]
    on = host(*eight, nodes=(node(0), node(1)))
    assert devices(Want(model="g", cards=8), on) == [one.address for one in eight]
    assert devices(Want(model="g", cards=4), on, close="required") == [one.address for one in eight[:4]]


def test_whole_is_one_function_of_a_board_without_neighbours():
    alone = board("0000:10:00.0", whole("0000:10:00.0", "g"), path=("pci0000:10",))
    assert devices(Want(address="0000:10:00.0"), host(alone)) == ["0000:10:00.0"]
