"""NUMA nodes: CPUs that VMs may use, siblings, memory and pages, now and at the next start."""
from __future__ import annotations

import pytest

from kvm_gpu import topology
from kvm_gpu.errors import HostError
from kvm_gpu.model import NumaNode, Pages
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.tree import File

NODES = "/sys/devices/system/node"
GIB, MIB2 = 1 << 20, 2048
PAGES_MIB = 8192 * 2 + 32 * 1024


def nodes(kernel: Kernel) -> tuple[NumaNode, ...]:
    return topology.read_nodes(FakeSysfs(kernel))


def test_cpus_outside_the_machine_slice_are_nobodys() -> None:
    """x48's slice has 4-15,20-31: what is left of a core stays together."""
    first, second = nodes(hosts.load("x48"))
    assert first == NumaNode(0, tuple((cpu, cpu + 16) for cpu in range(4, 8)), 131072, 131072 - PAGES_MIB,
                             (Pages(MIB2, 8192, 8192), Pages(GIB, 32, 32)), (10, 21))
    assert second.cores == tuple((cpu, cpu + 16) for cpu in range(8, 16))


def test_a_core_of_which_one_thread_may_be_used() -> None:
    kernel = hosts.load("x48")
    kernel.tree.put("/sys/fs/cgroup/machine.slice/cpuset.cpus.effective", File("0-3,16"))
    assert nodes(kernel)[0].cores == ((0, 16), (1,), (2,), (3,))
    assert nodes(kernel)[1].cores == ()


def test_a_slice_without_a_rule_of_its_own_has_the_roots() -> None:
    kernel = hosts.load("x48")
    kernel.tree.put("/sys/fs/cgroup/machine.slice/cpuset.cpus.effective", File(""))
    kernel.tree.put("/sys/fs/cgroup/cpuset.cpus.effective", File("0,16"))
    assert topology.usable_cpus(FakeSysfs(kernel)) == {0, 16}


def test_vms_of_proxmox_are_in_a_slice_of_their_own() -> None:
    kernel = hosts.load("x48")
    kernel.tree.put("/sys/fs/cgroup/qemu.slice/cpuset.cpus.effective", File("1,17"))
    assert topology.usable_cpus(FakeSysfs(kernel)) == {1, 17}


def test_a_cpu_that_is_offline_is_not_used() -> None:
    kernel = hosts.load("pages")
    kernel.tree.put("/sys/devices/system/cpu/online", File("0-7"))
    assert [node.cores for node in nodes(kernel)] == [tuple((cpu,) for cpu in range(8)), ()]


def test_a_host_without_a_cpu_is_not_believed() -> None:
    kernel = hosts.load("pages")
    kernel.tree.put("/sys/devices/system/cpu/online", File(""))
    with pytest.raises(HostError, match="online: no CPU"):
        nodes(kernel)


def test_a_kernel_without_numa_is_one_node() -> None:
    kernel = hosts.load("minus-one")
    kernel.tree.drop(NODES)
    assert nodes(kernel) == (NumaNode(0, tuple((cpu,) for cpu in range(16)), 65536, None, (), (10,)),)


def test_page_sizes_that_the_host_does_not_have_are_no_error() -> None:
    first, second = nodes(hosts.load("pages"))
    assert (first.pages, second.pages) == ((Pages(GIB, 64, 8),), (Pages(GIB, 64, 64),))


@pytest.mark.parametrize(("sizes", "read"), [
    (frozenset({GIB}), [Pages(MIB2, 8192, 8192), Pages(GIB, 32, 12)]),
    (frozenset({MIB2}), [Pages(MIB2, 8192, 8000), Pages(GIB, 32, 32)]),
    (frozenset({None}), [Pages(MIB2, 8192, 8192), Pages(GIB, 32, 32)]),
])
def test_a_start_reads_again_what_it_asks_for_and_nothing_else(sizes: frozenset[int | None], read: list[Pages]) -> None:
    kernel = hosts.load("rtx6000x4")
    before = nodes(kernel)
    kernel.vm_start("vm-1", pages={(0, GIB): 20, (0, MIB2): 192, (0, 4): 1 << 18})
    after = topology.refresh(FakeSysfs(kernel), before, sizes)
    assert list(after[0].pages) == read
    assert after[0].free_mib == 131072 - PAGES_MIB - (1024 if None in sizes else 0)
    assert after[1] == before[1]


def test_without_a_guest_nothing_is_read() -> None:
    before = nodes(hosts.load("pages"))
    assert topology.refresh(FakeSysfs(hosts.load("minus-one")), before, frozenset()) is before


def test_memory_that_the_kernel_gives_back_at_once_is_free() -> None:
    kernel = hosts.load("pages")
    lines = {"MemTotal": 65536, "MemFree": 10240, "Active(file)": 4096, "Inactive(file)": 2048, "SReclaimable": 1024}
    kernel.tree.put(f"{NODES}/node0/meminfo", File(
        "\n".join(f"Node 0 {name}:  {mib * 1024} kB" for name, mib in lines.items())))
    assert (nodes(kernel)[0].mem_mib, nodes(kernel)[0].free_mib) == (65536, 10240 + 2048 + 1024)


def test_boot_id() -> None:
    kernel = hosts.load("pages")
    first = topology.boot_id(FakeSysfs(kernel))
    kernel.reboot()
    assert len({first, topology.boot_id(FakeSysfs(kernel))}) == 2
    kernel.tree.drop("/proc/sys/kernel/random/boot_id")
    with pytest.raises(HostError, match="boot_id: not there"):
        topology.boot_id(FakeSysfs(kernel))
