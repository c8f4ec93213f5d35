"""NUMA nodes, their memory and huge pages, and the CPUs' topology."""
from __future__ import annotations

from errno import EINVAL, ENOMEM

from kvm_gpu.cpulist import format_cpus, parse_cpus
from tests.fakekernel.machine import Machine, NodeSpec
from tests.fakekernel.tree import File, Tree, refuse

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
SMALL_KIB = 4       # ordinary memory
LOCAL, REMOTE = 10, 21


class Node:
    """One node's memory. `pages` and `used` count pages by size in KiB."""

    def __init__(self, number: int, spec: NodeSpec) -> None:
        self.number = number
        self.spec = spec
        self.pages = dict(spec.pages)
        self.used = {size: spec.pages[size] - free for size, free in spec.free_pages.items()}
        self.used[SMALL_KIB] = 0

    def free(self, size_kib: int) -> int:
        """Free pages of a size; of ordinary memory what huge pages and VMs leave."""
        if size_kib == SMALL_KIB:
            huge = sum(size * number for size, number in self.pages.items())
            return (self.spec.mem_mib * 1024 - huge) // SMALL_KIB - self.used[SMALL_KIB]
        return self.pages.get(size_kib, 0) - self.used.get(size_kib, 0)

    def take(self, size_kib: int, number: int) -> None:
        """Raises ENOMEM where QEMU would fail to allocate."""
        if number > self.free(size_kib):
            raise refuse(ENOMEM, f"node{self.number}: {number} pages of {size_kib} kB")
        self.used[size_kib] = self.used.get(size_kib, 0) + number

    def give(self, size_kib: int, number: int) -> None:
        self.used[size_kib] -= number

    def resize(self, size_kib: int, text: str) -> None:
        """nr_hugepages: never below what is in use, and short where memory lacks, both without an error."""
        if not text.isdecimal():
            raise refuse(EINVAL, "nr_hugepages")
        now = self.pages[size_kib]
        room = now + self.free(SMALL_KIB) * SMALL_KIB // size_kib
        self.pages[size_kib] = max(self.used.get(size_kib, 0), min(int(text), room))

    def meminfo(self) -> str:
        free = self.free(SMALL_KIB) * SMALL_KIB
        total = self.spec.mem_mib * 1024
        rows = {"MemTotal": total, "MemFree": free, "MemUsed": total - free, "FilePages": 0, "SReclaimable": 0}
        return "\n".join(f"Node {self.number} {name + ':':<16}{kib:>8} kB" for name, kib in rows.items())


def build_nodes(tree: Tree, machine: Machine) -> dict[int, Node]:
    """Files of every node; the nodes by number."""
    nodes = {number: Node(number, spec) for number, spec in machine.nodes.items()}
    numbers = tuple(nodes)
    rows = {"online": numbers, "possible": numbers,
            "has_cpu": tuple(n for n in nodes if machine.nodes[n].cpus),
            "has_memory": tuple(n for n in nodes if machine.nodes[n].mem_mib)}
    for name, members in rows.items():
        tree.put(f"{NODES}/{name}", File(format_cpus(members)))
    for node in nodes.values():
        _node_files(tree, node, numbers)
    _cpu_files(tree, machine)
    total_kib = sum(spec.mem_mib for spec in machine.nodes.values()) * 1024
    tree.put("/proc/meminfo", File(f"MemTotal:       {total_kib:>8} kB"))
    for group, cpus in machine.cgroups.items():
        tree.put(f"/sys/fs/cgroup/{group}/cpuset.cpus.effective".replace("//", "/"), File(cpus))
    return nodes


def _node_files(tree: Tree, node: Node, numbers: tuple[int, ...]) -> None:
    folder = f"{NODES}/node{node.number}"
    distances = node.spec.distances or tuple(LOCAL if other == node.number else REMOTE for other in numbers)
    tree.put(f"{folder}/cpulist", File(node.spec.cpus))
    tree.put(f"{folder}/distance", File(" ".join(map(str, distances))))
    tree.put(f"{folder}/meminfo", File(node.meminfo))
    for size in node.pages:
        _page_files(tree, node, size)


def _page_files(tree: Tree, node: Node, size_kib: int) -> None:
    folder = f"{NODES}/node{node.number}/hugepages/hugepages-{size_kib}kB"
    total = File(lambda: str(node.pages[size_kib]), lambda text: node.resize(size_kib, text))
    tree.put(f"{folder}/nr_hugepages", total)
    tree.put(f"{folder}/free_hugepages", File(lambda: str(node.free(size_kib))))
    tree.put(f"{folder}/surplus_hugepages", File("0"))


def _cpu_files(tree: Tree, machine: Machine) -> None:
    for name in ("online", "possible", "present"):
        tree.put(f"{CPUS}/{name}", File(machine.all_cpus))
    tree.put(f"{CPUS}/isolated", File(machine.isolated))
    for number, spec in machine.nodes.items():
        for cpu in parse_cpus(spec.cpus):
            siblings = format_cpus(machine.siblings(cpu))
            topology = f"{CPUS}/cpu{cpu}/topology"
            tree.put(f"{topology}/thread_siblings_list", File(siblings))
            tree.put(f"{topology}/core_cpus_list", File(siblings))
            tree.put(f"{topology}/physical_package_id", File(str(number if spec.package is None else spec.package)))
