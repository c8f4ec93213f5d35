from kvm_gpu.model import Cell, Profile, Want
from kvm_gpu.room import matches, more, offers, room, seats
from tests.planhosts import X48, board, card, hold, size, slot, vgpus, x48

Q2, Q8, Q24, Q48 = X48
ONE_SIZE, MIXED = Cell("board", True, X48), Cell("board", False, X48)
ALONE = x48(slots=24)


def held(*names, vm="vm-1", start=0):
    return [hold(ALONE, name, vm, at, start=start + at * 1024) for at, name in enumerate(names)]


def test_an_empty_cell_gives_its_first_start():
    assert room(ONE_SIZE, Q8, []) == 0


def test_one_size_takes_only_the_size_that_runs():
    assert room(ONE_SIZE, Q8, held("X48-2Q")) == "runs X48-2Q (one size per board)"


def test_one_size_is_told_of_a_gpu_instance():
    assert room(ONE_SIZE._replace(name="gi 1"), Q8, held("X48-2Q")) == "runs X48-2Q (one size per GPU instance)"


def test_the_series_may_differ_within_one_size():
    compute = size("X48-8C", "9208", 8, 6)
    cell = Cell("board", True, (*X48, compute))
    assert room(cell, compute, held("X48-8Q")) == 8192


def test_a_board_full_of_another_size_is_full():
    assert room(ONE_SIZE, Q2, held("X48-48Q", vm="vm-101")) == "fully used by vm-101"


def test_one_size_counts_holders_even_where_their_starts_are_not_known():
    two = [one._replace(start=0) for one in held("X48-24Q", "X48-24Q")]
    assert room(ONE_SIZE, Q24, two) == "fully used by vm-1"


def test_mixed_sizes_are_packed_between_the_holds():
    at_0_and_16 = [hold(ALONE, "X48-8Q", "vm-1", 0, start=0), hold(ALONE, "X48-8Q", "vm-2", 1, start=16384)]
    assert room(MIXED, Q8, at_0_and_16) == 8192
    assert room(MIXED, Q24, at_0_and_16) == 24576
    assert room(MIXED, Q48, at_0_and_16) == "no room for X48-48Q beside vm-1, vm-2"


def test_a_hold_of_unknown_size_fills_its_cell():
    unknown = held("X48-2Q", vm=None)[0]._replace(profile="type 999", size=0)
    assert room(MIXED, Q2, [unknown]) == "fully used by a VM that is not ours"
    assert more(ONE_SIZE, Q2, [unknown]) == 0


def test_mig_placements_do_not_overlap():
    three, seven = Profile("g-3g", "1", None, 4, (0, 4)), Profile("g-7g", "2", None, 8, (0,))
    cell = Cell("gi", False, (three, seven))
    one = hold(board("0000:01:00.0", vgpus("0000:01:00.0", three, one_size=False)), "g-3g", "vm-1", start=0)
    assert room(cell, three, [one]) == 4
    assert room(cell, seven, [one]) == "no room for g-7g beside vm-1"


def test_many_holders_are_not_all_named():
    five = [one._replace(vm=f"vm-{at}") for at, one in enumerate(held(*["X48-8Q"] * 6))]
    assert room(ONE_SIZE, Q8, five) == "fully used by vm-0, vm-1, vm-2 and 3 more"


def test_more_counts_what_still_fits_side_by_side():
    assert [more(ONE_SIZE, profile, []) for profile in X48] == [24, 6, 2, 1]
    assert [more(ONE_SIZE, profile, held("X48-8Q", start=0)) for profile in X48] == [0, 5, 0, 0]
    assert [more(MIXED, profile, held("X48-8Q")) for profile in X48] == [20, 5, 1, 0]


def test_more_does_not_count_overlapping_starts_twice():
    loose = Profile("g-2g", "3", None, 2, (0, 1, 2, 3))
    assert more(Cell("gi", False, (loose,)), loose, []) == 2


def test_vendor_and_model_are_told_by_ids_and_short_name():
    one = x48()
    assert [matches(one, want) for want in (
        Want(vendor="10de"), Want(vendor="1002"), Want(vendor="10d"), Want(model="X48"), Want(model="x4"),
    )] == [True, False, False, True, False]


def names(on, want, *held):
    return [(offer.layout.name, offer.profile.name) for offer in offers(on, want, held)]


def test_a_profile_is_named_without_regard_to_case_or_by_its_exact_type_id():
    assert names(x48(), Want(profile="x48-8q")) == [("nvidia_vfio", "X48-8Q")]
    assert names(x48(), Want(profile="9108")) == [("nvidia_vfio", "X48-8Q")]
    assert names(x48(), Want(profile="910")) == []


def test_a_model_alone_means_a_whole_card():
    assert names(x48(), Want(model="x48")) == [("whole", "x48")]


def test_at_least_so_much_memory_is_never_met_by_unknown():
    assert names(x48(), Want(fb_mib=9000)) == [("nvidia_vfio", "X48-24Q"), ("nvidia_vfio", "X48-48Q")]


def test_a_board_in_use_offers_only_the_layout_of_its_holds():
    one = x48()
    assert names(one, Want(mechanism="whole"), hold(one, "X48-2Q", "vm-1")) == []
    assert names(one, Want(mechanism="nvidia_vfio"), hold(one, "x48", "vm-1", layout=1)) == []


def test_mig_is_a_cell_of_a_gpu_instance():
    layout = vgpus("0000:01:00.0", size("g-1-5C", "1", 5, 1))
    cut = layout._replace(cells=(layout.cells[0]._replace(name="gi 1"),))
    assert names(board("0000:01:00.0", layout), Want(mechanism="mig")) == []
    assert names(board("0000:01:00.0", cut), Want(mechanism="mig")) == [("nvidia_vfio", "g-1-5C")]


def test_an_address_is_a_slot_a_function_or_an_mdev_parent():
    gpu = card("0000:86:00.0", functions=2)
    assert [offer.slots[0].name for offer in offers(gpu, Want(address="0000:86:00.1"), [])] == ["0000:86:00.0"]
    one = x48()
    wanted = Want(address="0000:ca:00.5", profile="X48-2Q")
    assert [offer.slots for offer in offers(one, wanted, [])] == [(one.layouts[0].slots[1],)]
    assert offers(one, Want(address="0000:ca:00.5"), []) == []      # a vGPU needs a size
    parent = slot("mtty#0")._replace(functions=(), path="/sys/devices/virtual/mtty/mtty")
    mtty = board("mtty", vgpus("mtty", size("mtty-2", "2", 1, 1))._replace(slots=(parent,)))
    assert [offer.slots for offer in offers(mtty, Want(address="mtty", profile="2"), [])] == [(parent,)]


def seat_names(on, want, held=(), kept=()):
    return [(seat.slot.name, seat.start) for offer in offers(on, want, held) for seat in seats(offer, held, kept)]


def test_the_first_slot_that_is_free_and_sound_is_the_seat():
    one = x48()
    sound = one.layouts[0].slots
    broken = one._replace(layouts=(one.layouts[0]._replace(slots=(sound[0]._replace(trouble="no group"), *sound[1:])),))
    assert seat_names(broken, Want(profile="X48-8Q"), [hold(one, "X48-8Q", "vm-1", at=1)]) == [("0000:ca:00.6", 8192)]


def test_the_kept_place_comes_first_with_its_very_start():
    one = x48()
    kept = [hold(one, "X48-8Q", "vm-1", at=2, start=16384, state="kept")]
    assert seat_names(one, Want(profile="X48-8Q"), kept=kept)[0] == ("0000:ca:00.6", 16384)
    assert seat_names(one, Want(profile="X48-2Q"), kept=kept)[0] == ("0000:ca:00.4", 0)


def test_slots_that_draw_on_other_cells_are_other_seats():
    part = (size("g-1-5C", "1", 5, 1),)
    layout = vgpus("0000:01:00.0", *part)._replace(
        slots=(slot("a", cells=("gi 1",)), slot("b", cells=("gi 1",)), slot("c", cells=("gi 1", "gi 2"))),
        cells=(Cell("gi 1", False, part), Cell("gi 2", False, part)))
    assert seat_names(board("0000:01:00.0", layout), Want(mechanism="mig")) == [("a", 0), ("c", 0), ("c", 0)]
