"""The host's boot and NUMA nodes: CPUs with their SMT siblings, memory, huge pages, distances.

`read_nodes` is the cold path; `refresh` reads again, for each start, what changes while VMs come and go.
Source: Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/cputopology.rst, hugetlbpage.rst.
"""
from __future__ import annotations

from kvm_gpu.cpulist import parse_cpus
from kvm_gpu.errors import HostError
from kvm_gpu.model import NumaNode, Pages
from kvm_gpu.sysfs import Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
NODES: Final = "/sys/devices/system/node"
CPUS: Final = "/sys/devices/system/cpu"
CPUSETS: Final = ("/sys/fs/cgroup/qemu.slice/cpuset.cpus.effective",         # Proxmox VE
                  "/sys/fs/cgroup/machine.slice/cpuset.cpus.effective",      # libvirt
                  "/sys/fs/cgroup/cpuset.cpus.effective")
AVAILABLE: Final = ("MemFree:", "Inactive(file):", "SReclaimable:")  # what a new VM gets: free, or given back at once


def boot_id(sysfs: Sysfs) -> str:
    """Raises HostError where the kernel does not tell: without it no claim outlives a reboot rightly."""
    found = sysfs.read(BOOT_ID)
    if not found:
        raise HostError(f"{BOOT_ID}: not there")
    return found


def read_nodes(sysfs: Sysfs) -> tuple[NumaNode, ...]:
    """Online nodes by id; one node 0 with all CPUs on a kernel without NUMA. Raises HostError."""
    usable = usable_cpus(sysfs)
    online = sysfs.read(NODES + "/online")
    if online is None:
        return (NumaNode(0, _cores(sysfs, usable), _total_mib(sysfs), None, (), (10,)),)
    return tuple(_read_node(sysfs, node, usable) for node in parse_cpus(online))


def usable_cpus(sysfs: Sysfs) -> frozenset[int]:
    """CPUs that are online and that VMs' cgroup may use."""
    cpus = frozenset(parse_cpus(sysfs.read(CPUS + "/online") or ""))
    if not cpus:
        raise HostError(f"{CPUS}/online: no CPU")
    for path in CPUSETS:
        allowed = sysfs.read(path)
        if allowed:
            return cpus & frozenset(parse_cpus(allowed))
    return cpus


def refresh(sysfs: Sysfs, nodes: tuple[NumaNode, ...], page_sizes: frozenset[Optional[int]]) -> tuple[NumaNode, ...]:
    """The nodes with what is free now of the given huge page sizes (KiB) and, for None, of ordinary memory."""
    return tuple(_refresh(sysfs, node, page_sizes) for node in nodes) if page_sizes else nodes


def without_lost_cpus(sysfs: Sysfs, nodes: tuple[NumaNode, ...]) -> tuple[NumaNode, ...]:
    """The nodes without CPUs that went offline, or out of the VMs' cpuset, since they were read: no VM starts that is
    pinned there."""
    usable = usable_cpus(sysfs)
    return tuple(node._replace(cores=_left(node.cores, usable)) for node in nodes)


def _left(cores: tuple[tuple[int, ...], ...], usable: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    if usable.issuperset(cpu for core in cores for cpu in core):
        return cores
    parts = (tuple(cpu for cpu in core if cpu in usable) for core in cores)
    return tuple(part for part in parts if part)


def _refresh(sysfs: Sysfs, node: NumaNode, page_sizes: frozenset[Optional[int]]) -> NumaNode:
    pages = tuple(_read_pages(sysfs, node.id, size.size_kib) if size.size_kib in page_sizes else size
                  for size in node.pages)
    free = node.free_mib
    if None in page_sizes:
        free = _memory(sysfs, f"{NODES}/node{node.id}/meminfo")[1]
    return node._replace(pages=pages, free_mib=free)


def _read_node(sysfs: Sysfs, node: int, usable: frozenset[int]) -> NumaNode:
    path = f"{NODES}/node{node}"
    cpus = frozenset(parse_cpus(sysfs.read(path + "/cpulist") or ""))
    total, free = _memory(sysfs, path + "/meminfo")
    distances = tuple(int(word) for word in (sysfs.read(path + "/distance") or "").split())
    sizes = sorted(int(name[10:-2]) for name in sysfs.list(path + "/hugepages") if name.startswith("hugepages-"))
    return NumaNode(node, _cores(sysfs, cpus & usable), total, free,
                    tuple(_read_pages(sysfs, node, size) for size in sizes), distances)


def _cores(sysfs: Sysfs, cpus: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """SMT siblings together, in the order of their first CPU; a core of which a part may not be used: that part."""
    cores, left = [], set(cpus)
    for cpu in sorted(cpus):
        if cpu in left:
            siblings = sysfs.read(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list")
            core = tuple(sorted(({cpu} | set(parse_cpus(siblings or ""))) & left))
            left.difference_update(core)
            cores.append(core)
    return tuple(cores)


def _read_pages(sysfs: Sysfs, node: int, size_kib: int) -> Pages:
    path = f"{NODES}/node{node}/hugepages/hugepages-{size_kib}kB"
    return Pages(size_kib, sysfs.number(path + "/nr_hugepages") or 0, sysfs.number(path + "/free_hugepages") or 0)


def _memory(sysfs: Sysfs, path: str) -> tuple[int, Optional[int]]:
    """(total, available) in MiB of a node. Lines are "Node 0 MemTotal:  65536 kB"."""
    text = sysfs.read(path)
    if text is None:
        return 0, None
    kib = {words[2]: int(words[3]) for line in text.split("\n") if len(words := line.split()) >= 4}
    return kib.get("MemTotal:", 0) >> 10, sum(kib.get(name, 0) for name in AVAILABLE) >> 10


def _total_mib(sysfs: Sysfs) -> int:
    for line in (sysfs.read("/proc/meminfo") or "").split("\n"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 10
    return 0
