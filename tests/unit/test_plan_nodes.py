"""place(): CPUs and memory, and their distance to the cards."""
from time import process_time

import pytest

from kvm_gpu.model import Placement, Policy, Request, Taken, Use, Vm, Want
from kvm_gpu.plan import ALONE, place
from tests.planhosts import GIB, card, guest, hold, host, node, use

GPU0, GPU1 = card("0000:10:00.0", numa_node=0), card("0000:90:00.0", numa_node=1)
ONE = (Want(model="g"),)
PAGES = ((GIB, 64, 64),)


def decide(*guests, on=None, uses=(), wants=ONE, holds=(), policy=None, **fields):
    return place(Request(Vm("vm-1"), wants, guests, **fields), on or host(GPU0), Taken(holds, uses), policy or Policy())


def placed(*guests, **fields):
    found = decide(*guests, **fields)
    assert isinstance(found, Placement), found
    return found


# ---- memory ----------------------------------------------------------------------------------------

def c22():
    return host(GPU0, nodes=(node(0, pages=((GIB, 64, 8),)), node(1, pages=PAGES)))


def test_pages_on_the_wrong_node_do_not_serve_required():
    refused = decide(guest(mem_mib=32768, page_kib=GIB), on=c22(), numa="required")
    assert refused.reasons == (("0000:10:00.0", "node0 has 8 of 32 free 1 GiB pages (GPU node)"),)
    assert refused.hint == "numa=preferred would fit; stop a VM that has CPUs or memory of node0"


def test_pages_on_the_wrong_node_serve_preferred_with_a_warning():
    found = placed(guest(mem_mib=32768, page_kib=GIB), on=c22())
    assert found.uses == (Use("vm-1", 0, 1, (), (), 32768, GIB),)
    assert found.memory == "preferred"
    assert found.warnings == ("memory on node1, GPU on node0",)


def test_a_page_size_that_a_node_does_not_have_is_none_free():
    refused = decide(guest(mem_mib=4096, page_kib=2048), on=c22(), numa="required")
    assert refused.reasons[0].why == "node0 has 0 of 2048 free 2 MiB pages (GPU node)"


@pytest.mark.parametrize(("uses", "fits"), [
    ((use(0, 4096, GIB),), False),                      # promised, and the kernel does not show it yet
    ((use(0, 4096, GIB, allocated=True),), True),       # the kernel's counter has it
    ((use(0, 58368, GIB, allocated=True),), False),     # more than the total leaves, whatever the counter says
    ((use(1, 8192, GIB), use(0, 8192)), True),          # another node, another kind
])
def test_promises_count_until_the_kernel_shows_them(uses, fits):
    found = decide(guest(mem_mib=8192, page_kib=GIB), on=c22(), uses=uses, numa="required")
    assert isinstance(found, Placement) == fits


@pytest.mark.parametrize(("free_mib", "uses", "left"), [
    (None, (), 8192), (6000, (), 6000), (None, (use(0, 3000),), 5192), (6000, (use(0, 3000),), 3000),
    (6000, (use(0, 3000, allocated=True),), 5192),
])
def test_ordinary_memory_is_what_huge_pages_leave(free_mib, uses, left):
    on = host(GPU0, nodes=(node(0, mem_mib=12288, free_mib=free_mib, pages=((GIB, 4, 4),)),))
    assert isinstance(decide(guest(mem_mib=left), on=on, uses=uses, numa="required"), Placement)
    assert decide(guest(mem_mib=left + 1), on=on, uses=uses, numa="required").reasons[0].why == (
        f"node0 has {left} of {left + 1} MiB free memory (GPU node)")


def test_memory_is_bound_as_strictly_as_asked():
    assert [(found.uses[0].node, found.memory) for found in (
        placed(guest(), numa=numa) for numa in ("required", "preferred", "none"))] == [
            (0, "strict"), (0, "preferred"), (None, None)]


def test_ordinary_memory_that_no_node_has_stays_unbound_with_preferred():
    found = placed(guest(mem_mib=100_000))
    assert found.uses == (Use("vm-1", 0, None, (), (), 100_000, None),)
    assert (found.memory, found.warnings) == (None, ("memory not bound: no node has room for it",))


def test_huge_pages_need_a_node_even_without_a_card_near():
    on = host(GPU0, nodes=(node(0), node(1, pages=PAGES)))
    found = placed(guest(mem_mib=8192, page_kib=GIB), on=on, numa="none")
    assert (found.uses[0].node, found.memory, found.warnings) == (1, "strict", ())


def test_no_guest_no_cpus_and_memory():
    found = placed(numa="required")
    assert found[1:] == ((), (), None, ())


# ---- nearness --------------------------------------------------------------------------------------

def test_a_card_whose_node_is_unknown_serves_preferred_alone():
    on = host(card("0000:81:00.0", numa_node=None))
    assert decide(guest(), on=on, numa="required").reasons == (("0000:81:00.0", "NUMA node unknown"),)
    found = placed(guest(), on=on, cpu="dedicated")
    assert found.uses == (Use("vm-1", 0, None, ((0, (0,)), (1, (100,))), (0, 100), 4096, None),)
    assert found.memory is None
    assert found.warnings == ("0000:81:00.0: NUMA node unknown, nothing is bound near it", ALONE)


def test_the_card_is_chosen_for_the_node_that_has_room():
    on = host(GPU0, GPU1, nodes=(node(0, mem_mib=1024), node(1)))
    assert [device.hold.board for device in placed(guest(), on=on, numa="required").devices] == [GPU1.address]
    assert [device.hold.board for device in placed(guest(), on=on).devices] == [GPU1.address]


def test_the_nearest_node_by_slit_serves_preferred():
    distances = ((10, 31, 21), (31, 10, 21), (21, 21, 10))
    nodes = tuple(node(at, mem_mib=65536 if at else 1024)._replace(distances=row) for at, row in enumerate(distances))
    assert placed(guest(), on=host(GPU0, nodes=nodes)).uses[0].node == 2


def test_two_guest_nodes_take_the_nodes_of_both_cards():
    found = placed(guest(), guest(number=1), on=host(GPU0, GPU1), wants=(Want(model="g", cards=2),), numa="required")
    assert [use.node for use in found.uses] == [0, 1]


def test_one_guest_node_cannot_be_beside_cards_on_two_nodes():
    two = (Want(model="g", cards=2),)
    refused = decide(guest(), on=host(GPU0, GPU1), wants=two, numa="required")
    assert refused.reasons == (("0000:10:00.0", "free, on node0"), ("0000:90:00.0", "free, on node1"),
                               ("host", "not all of them at once"))
    assert refused.hint == "numa=preferred would fit"
    found = placed(guest(), on=host(GPU0, GPU1), wants=two)
    assert found.warnings == ("memory on node0, GPU on node1", "across nodes")


def test_guest_nodes_share_a_host_node_only_where_they_must():
    guests = (guest(), guest(number=1))
    assert [use.node for use in placed(*guests).uses] == [0, 1]
    alone = host(GPU0, nodes=(node(0, nodes=1),))
    assert [use.node for use in placed(*guests, on=alone).uses] == [0, 0]
    assert not isinstance(decide(*guests, on=alone, numa="required"), Placement)


def test_shared_host_nodes_are_not_promised_twice():
    guests = (guest(mem_mib=40000), guest(mem_mib=40000, number=1))
    alone = host(GPU0, nodes=(node(0, nodes=1),))
    assert [use.node for use in placed(*guests, on=alone).uses] == [0, None]


# ---- CPUs ------------------------------------------------------------------------------------------

def test_dedicated_takes_whole_cores_and_siblings_serve_adjacent_vcpus():
    found = placed(guest(vcpus=3), cpu="dedicated", uses=(use(0, cpus=(0, 100)),))
    assert found.uses == (Use("vm-1", 0, 0, ((0, (1,)), (1, (101,)), (2, (2,))), (1, 101, 2, 102), 4096, None),)
    assert found.emulator == (1, 2, 101)
    assert found.warnings == (ALONE,)


def test_dedicated_stays_within_the_pool_and_leaves_qemu_outside():
    pool = (2, 3, 102, 103, 100)        # CPU 100 alone is no whole core
    found = placed(guest(), cpu="dedicated", policy=Policy(cpu_pool=pool))
    assert (found.uses[0].cpus, found.emulator) == ((2, 102), (0, 1, 101))
    refused = decide(guest(vcpus=5), cpu="dedicated", policy=Policy(cpu_pool=pool), numa="required")
    assert refused.reasons[0].why == "node0 has 4 of 5 free CPUs (GPU node)"


def test_shared_pins_every_vcpu_to_the_nodes_pool_without_others_dedicated_cpus():
    found = placed(guest(), cpu="shared", policy=Policy(cpu_pool=(0, 1, 2, 100, 11)), uses=(use(0, cpus=(1, 101)),))
    assert found.uses[0].pins == ((0, (0, 2, 100)), (1, (0, 2, 100)))
    assert (found.uses[0].cpus, found.emulator, found.warnings) == ((), (0, 2, 100), ())


def test_shared_without_nearness_floats_over_the_whole_pool():
    found = placed(guest(vcpus=1), cpu="shared", numa="none", policy=Policy(cpu_pool=(0, 10)))
    assert found.uses == (Use("vm-1", 0, None, ((0, (0, 10)),), (), 4096, None),)


def test_dedicated_without_nearness_still_comes_from_one_node():
    found = placed(guest(vcpus=6), cpu="dedicated", numa="none", uses=(use(0, cpus=(0, 100, 1, 101)),))
    assert (found.uses[0].node, found.uses[0].cpus) == (1, (10, 110, 11, 111, 12, 112))


# ---- what the platform decided ---------------------------------------------------------------------

def test_the_card_follows_pinned_cpus():
    pinned = guest(pinned=((0, (10,)), (1, (11,))))
    found = placed(pinned, on=host(GPU0, GPU1), numa="required", cpu="dedicated")
    assert found.devices[0].hold.board == GPU1.address
    assert found.uses == (Use("vm-1", 0, 1, (), (), 4096, None),)
    assert (found.emulator, found.memory, found.warnings) == ((), "strict", ())


def test_pinned_cpus_away_from_the_only_card():
    pinned = guest(pinned=((0, (10,)),))
    assert decide(pinned, numa="required").reasons == (
        ("0000:10:00.0", "the platform put guest node 0 on node1 (GPU node)"),)
    assert placed(pinned).warnings == ("CPUs and memory on node1, GPU on node0",)


def test_bound_memory_is_counted_and_not_written():
    found = placed(guest(bound=(1,)), on=host(GPU0, GPU1), numa="required")
    assert (found.uses[0].node, found.memory) == (1, None)


def test_guest_nodes_that_the_platform_put_together_stay_together():
    guests = (guest(bound=(0,)), guest(number=1, bound=(0,)))
    assert [use.node for use in placed(*guests, numa="required").uses] == [0, 0]


@pytest.mark.parametrize("cpu", ["shared", "dedicated"])
def test_pins_for_a_guest_that_nobody_told_of(cpu):
    assert placed(cpu=cpu).warnings == ("no CPUs are pinned: the request does not tell of the guest's",)


# ---- guests that their owner made a puzzle ------------------------------------------------------------

def many(*mem_mib):
    return tuple(guest(vcpus=0, number=number, mem_mib=size) for number, size in enumerate(mem_mib))


def of_sixteen(*full):
    return host(GPU0, nodes=tuple(node(number, free_mib=100 if number in full else 65536, nodes=16)
                                  for number in range(16)))


@pytest.mark.parametrize(("guests", "on", "nodes"), [
    (many(*[1024] * 16), of_sixteen(15), [0] * 16),               # one short: all go beside the card
    (many(*[40960] * 16), of_sixteen(15), [*range(15), None]),    # the last stays unbound
    (many(*[40960] * 8, *[50] * 8), of_sixteen(*range(7, 16)), [*range(7), None, *[0] * 8]),
    (many(*[8192] * 128), of_sixteen(), [number // 8 for number in range(128)]),
], ids=["one short", "too big to share", "too few for the big ones", "QEMU's most"])
def test_a_search_ends_though_guest_nodes_do_not_fit(guests, on, nodes):
    began = process_time()
    assert [use.node for use in placed(*guests, on=on).uses] == nodes
    assert process_time() - began < 10


def test_guest_nodes_that_need_more_host_nodes_than_there_are():
    refused = decide(*many(*[1024] * 16), on=of_sixteen(15), numa="required")
    assert refused.hint == "numa=preferred would fit; stop a VM that has CPUs or memory of node15"


# ---- VMs without a card ----------------------------------------------------------------------------

def test_a_vm_without_a_card_goes_where_no_cards_are():
    found = placed(guest(), wants=(), cpu="dedicated", on=host(GPU0))
    assert (found.devices, found.uses[0].node, found.memory) == ((), 1, "preferred")


def test_a_vm_without_a_card_is_refused_by_node():
    refused = decide(guest(vcpus=9), wants=(), cpu="dedicated")
    assert refused.reasons == (("node 0", "node0 has 8 of 9 free CPUs"), ("node 1", "node1 has 8 of 9 free CPUs"))


def test_a_board_in_use_does_not_change_the_cpus_of_the_next():
    held = (hold(GPU0, "g", "vm-0"),)
    found = placed(guest(), on=host(GPU0, GPU1), holds=held, uses=(use(1, cpus=(10, 110)),), cpu="dedicated")
    assert found.uses[0].cpus == (11, 111)
