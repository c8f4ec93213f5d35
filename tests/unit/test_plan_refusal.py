"""What a refusal says: for each candidate why not, and what would help."""
import pytest

from kvm_gpu.model import Policy, Reason, Refusal, Request, Taken, Vm, Want
from kvm_gpu.plan import place
from tests.planhosts import board, card, guest, hold, host, node, use, vfs, whole, x48


def refusal(wants, on, *holds, cordoned=(), uses=(), guests=(), **fields):
    wants = (wants,) if isinstance(wants, Want) else wants
    found = place(Request(Vm("vm-new"), wants, guests, **fields), on, Taken(holds, uses, cordoned), Policy())
    assert isinstance(found, Refusal)
    return found


CA = "0000:ca:00.0"
BOTH = board("0000:3b:00.0", vfs("0000:3b:00.0", "g", 2), whole("0000:3b:00.0", "g"))


def test_a_full_board():
    assert refusal(Want(profile="X48-2Q"), host(x48()), hold(x48(), "X48-48Q", "vm-101")) == Refusal(
        (Reason(CA, "fully used by vm-101"), Reason("host", "none free, held by vm-101")), f"stop a VM on {CA}")


def test_a_board_that_runs_another_size():
    assert refusal(Want(profile="X48-2Q"), host(x48()), hold(x48(), "X48-8Q", "vm-101")) == Refusal(
        (Reason(CA, "runs X48-8Q (one size per board)"), Reason("host", "none free, held by vm-101")),
        f"ask for X48-8Q; stop a VM on {CA}")


def test_two_asked_one_there():
    one, other = card("0000:17:00.0"), card("0000:65:00.0")
    assert refusal((Want(model="g"), Want(model="g")), host(one, other), hold(other, "g", "vm-100")) == Refusal(
        (Reason("0000:17:00.0", "free, on node0"), Reason("0000:65:00.0", "fully used by vm-100"),
         Reason("host", "needs 2, 1 free on this host")), "stop a VM on 0000:65:00.0")


def test_part_of_a_card_that_is_held():
    gpu = card("0000:86:00.0", functions=2)
    found = refusal(Want(address="0000:86:00.1"), host(gpu, card("0000:87:00.0")), hold(gpu, "g", "vm-1"))
    assert found.reasons == (Reason("0000:86:00.0", "part of the GPU held by vm-1"),
                             Reason("host", "none free, held by vm-1"))


@pytest.mark.parametrize(("want", "layout", "profile", "why"), [
    (Want(mechanism="whole"), 0, "g-vf", "VFs on, 1 used by vm-7"),
    (Want(mechanism="vf"), 1, "g", "card held whole by vm-7"),
    (Want(address="0000:3b:00.1"), 1, "g", "card held whole by vm-7"),
    (Want(address="0000:3b:00.0"), 0, "g-vf", "VFs on, 1 used by vm-7"),
    (Want(address="0000:3b:00.1"), 0, "g-vf", "held by vm-7"),
])
def test_whole_card_or_slices(want, layout, profile, why):
    found = refusal(want, host(BOTH), hold(BOTH, profile, "vm-7", layout=layout))
    assert found.reasons == (Reason("0000:3b:00.0", why), Reason("host", "none free, held by vm-7"))
    assert found.hint == "stop a VM on 0000:3b:00.0"


def test_close_required_names_what_is_left():
    one, other = card("0000:5a:00.0"), card("0000:a9:00.0", numa_node=1)
    assert refusal(Want(model="g", cards=2), host(one, other), close="required") == Refusal(
        (Reason("0000:5a:00.0", "free, on node0"), Reason("0000:a9:00.0", "free, on node1"),
         Reason("host", "the free ones are not close enough")), "close=preferred would fit")


def test_what_no_board_has():
    assert refusal(Want(profile="X99-1Q", mechanism="mdev"), host(x48())) == Refusal(
        (Reason(CA, "offers no mdev X99-1Q"),), "this host has X48-24Q, X48-2Q, X48-48Q, X48-8Q, x48")


def test_trouble_and_cordons():
    dead, shut = x48(CA)._replace(trouble=("reads EIO", "no driver")), x48("0000:cb:00.0")
    slots = tuple(slot._replace(trouble="group 40 also holds 0000:3c:00.0") for slot in BOTH.layouts[1].slots)
    grouped = BOTH._replace(layouts=(BOTH.layouts[1]._replace(slots=slots),))
    assert refusal(Want(mechanism="whole"), host(grouped, dead, shut), cordoned=((shut.address, ""),)).reasons[:3] == (
        Reason("0000:3b:00.0", "0000:3b:00.0: group 40 also holds 0000:3c:00.0"),
        Reason(CA, "reads EIO; no driver"), Reason("0000:cb:00.0", "cordoned"))


def test_a_cordon_is_told_with_its_reason_and_its_end():
    assert refusal(Want(profile="X48-2Q"), host(x48()), cordoned=((CA, "fan broken"),)) == Refusal(
        (Reason(CA, "cordoned: fan broken"),), f"uncordon {CA}")


def test_boards_in_use_that_never_had_what_is_wanted():
    """Stopping a VM there would help nobody."""
    vgpus = x48()._replace(partitioner="nvidia")
    assert refusal(Want(mechanism="vf"), host(vgpus), hold(vgpus, "X48-2Q", "vm-1")) == Refusal(
        (Reason(CA, "offers no vf"),), "this host has X48-24Q, X48-2Q, X48-48Q, X48-8Q, x48")


def test_a_node_that_has_no_memory_by_itself():
    """No VM that could be stopped has it."""
    bare = host(card(CA), nodes=(node(0, mem_mib=0), node(1)))
    assert refusal(Want(model="g"), bare, guests=(guest(),), numa="required") == Refusal(
        (Reason(CA, "node0 has 0 of 4096 MiB free memory (GPU node)"),), "numa=preferred would fit")


def test_more_slots_than_room_or_more_room_than_slots():
    one = x48(slots=1)
    assert refusal(Want(profile="X48-2Q"), host(one), hold(one, "X48-2Q", "vm-1")).reasons[0].why == (
        "no slot left, held by vm-1")


def test_nodes_without_cpus():
    found = refusal(Want(model="g"), host(card(CA)), guests=(guest(vcpus=3),), cpu="dedicated",
                    uses=(use(0, cpus=(0, 100, 1, 101, 2, 102)), use(1, cpus=(10, 110, 11, 111, 12, 112))))
    assert found.reasons == (Reason(CA, "free, on node0"), Reason("node 0", "node0 has 2 of 3 free CPUs"),
                             Reason("node 1", "node1 has 2 of 3 free CPUs"))
    assert found.hint == "cpu=shared would fit; stop a VM that has CPUs or memory of node0 or node1"


def test_guest_nodes_that_find_no_node_of_their_own():
    alone, two = host(card(CA), nodes=(node(0),)), (guest(), guest(number=1))
    assert refusal(Want(model="g"), alone, guests=two, numa="required") == Refusal(
        (Reason(CA, "free, on node0"), Reason("host", "no 2 host nodes have room for one guest node each")),
        "numa=preferred would fit")


def test_no_candidate_at_all():
    assert refusal(Want(model="g"), host()) == Refusal(
        (Reason("host", "no board offers g"),), "this host has no GPU to give")
    assert refusal(Want(address="0000:d6:00.0"), host(card(CA))) == Refusal(
        (Reason("host", "no board offers 0000:d6:00.0"),), "this host has g")
