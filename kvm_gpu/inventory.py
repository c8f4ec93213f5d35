"""The host as the kernel shows it: nodes, and boards with what they are cut into. Cold path: read, then cached.

One broken device never stops the inventory: it is listed with its trouble.
"""
from __future__ import annotations

from kvm_gpu import pci
from kvm_gpu.cpulist import parse_cpus
from kvm_gpu.errors import HostError
from kvm_gpu.mechanisms import PROBE_ORDER, Card, mechanism
from kvm_gpu.model import Board, Function, Host
from kvm_gpu.partition import partitioner
from kvm_gpu.sysfs import DEVICES
from kvm_gpu.topology import boot_id, read_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.model import Layout, NumaNode, PciAddress
    from kvm_gpu.profiles import Tables
    from kvm_gpu.sysfs import Sysfs

MDEV_PARENTS: Final = "/sys/class/mdev_bus"
DOMAIN_DIGITS: Final = 4        # libvirt, QEMU and OpenNebula take 16 bits of PCI domain


def read_host(sysfs: Sysfs, ours: tuple[str, ...], tables: Tables) -> Host:
    """All of it, read afresh. `ours`: Policy.ours. Raises HostError where not even the nodes can be read."""
    nodes = read_nodes(sysfs)
    labels = pci.slot_labels(sysfs)
    slots: dict[str, list[PciAddress]] = {}
    for address in pci.functions(sysfs):
        slots.setdefault(address.rpartition(".")[0], []).append(address)
    cards = (_read_card(sysfs, members, ours, tables, nodes, labels) for members in slots.values())
    others = (_read_parent(sysfs, name) for name in sysfs.list(MDEV_PARENTS) if name in ours and ":" not in name)
    boards = sorted((board for board in (*cards, *others) if board), key=lambda board: board.address)
    return Host(boot_id(sysfs), nodes, tuple(boards))


def is_ours(ours: tuple[str, ...], function: Function) -> bool:
    """Whether the configuration lists the function: by address, or as vendor:device[:class] where `*` stands for
    anything and a class may be short (03, 0302, 030200). Without a list: whether it is a GPU."""
    if not ours:
        return pci.is_gpu(function.pci_class)
    return any(pattern == function.address or _matches(pattern, function) for pattern in ours)


def _matches(pattern: str, function: Function) -> bool:
    if "." in pattern:      # an address
        return False
    wanted = pattern.split(":")
    have = (*function.ids.split(":"), f"{function.pci_class:06x}")
    return all(word == "*" or word == part or (at == 2 and part.startswith(word))
               for at, (word, part) in enumerate(zip(wanted, have, strict=False)))


def _read_card(
    sysfs: Sysfs, members: list[PciAddress], ours: tuple[str, ...], tables: Tables,
    nodes: tuple[NumaNode, ...], labels: dict[str, str],
) -> Optional[Board]:
    """The board in one PCI slot, None where there is none of ours. VFs belong to their PF's board."""
    try:
        physical = [address for address in members if not pci.is_vf(sysfs, address)]
        functions = tuple(pci.read_function(sysfs, address) for address in physical)
        if not any(is_ours(ours, function) for function in functions):
            return None
        return _board(sysfs, functions, ours, tables, nodes, labels)
    except (HostError, ValueError) as error:
        return _broken(members[0], str(error)) if _may_be_ours(sysfs, members, ours) else None


def _may_be_ours(sysfs: Sysfs, members: list[PciAddress], ours: tuple[str, ...]) -> bool:
    """Whether a slot that cannot be read looks like one of ours by what can be."""
    if any(address in ours for address in members):
        return True
    try:
        return any(pci.is_gpu(int(sysfs.read(f"{DEVICES}{address}/class") or "0", 16)) for address in members)
    except (HostError, ValueError):
        return False


def _broken(address: str, trouble: str) -> Board:
    return Board(address, None, "unknown", None, None, "unknown", (), (), (), (trouble,))


def _board(
    sysfs: Sysfs, functions: tuple[Function, ...], ours: tuple[str, ...], tables: Tables,
    nodes: tuple[NumaNode, ...], labels: dict[str, str],
) -> Board:
    main = functions[0]
    subsystem = pci.subsystem(sysfs, main.address)
    vfs = pci.virtual_functions(sysfs, main.address)
    card = Card(functions, DEVICES + main.address, vfs, tables.model(main.ids, subsystem),
                tables.types(main.ids, subsystem), named=main.address in ours)
    path = pci.parents(sysfs, main.address)
    node, source = numa_node(sysfs, main.address, path, nodes)
    who = partitioner(main.driver, sysfs.exists(card.path + "/sriov_totalvfs"))
    layouts, trouble = _layouts(sysfs, card, who)
    if len(main.address.partition(":")[0]) > DOMAIN_DIGITS:
        trouble += ("its PCI domain has more than 16 bits, which no hypervisor takes",)
    identity = pci.serial(sysfs, main.address) or labels.get(main.address.rpartition(".")[0])
    return Board(main.address, identity, card.model, who, node, source, path, functions, layouts, trouble)


def _layouts(sysfs: Sysfs, card: Card, who: Optional[str]) -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """The present layout, then the whole card where nothing but being idle stands in the way; and the trouble met."""
    try:
        shown = (mechanism(name).layout(sysfs, card) for name in PROBE_ORDER)
        present = next((layout for layout in shown if layout), None)
    except HostError as error:
        return (), (str(error),)
    if present is None:
        return (), ("nothing of it can be given to a VM",)
    if present.mechanism == "whole" or (card.vfs and who != "sriov"):
        return (present,), ()
    whole = mechanism("whole").layout(sysfs, card)
    return (present, whole) if whole else (present,), ()


def _read_parent(sysfs: Sysfs, name: str) -> Board:
    """An mdev parent that is no PCI device, as the kernel's mtty sample."""
    target = sysfs.target(f"{MDEV_PARENTS}/{name}") or ""
    path = "/sys/devices/" + target.partition("devices/")[2]
    try:
        layout = mechanism("mdev").layout(sysfs, Card((), path, (), name, ()))
    except HostError as error:
        return _broken(name, str(error))
    return Board(name, None, name, None, None, "unknown", (), (), (layout,) if layout else ())


def numa_node(
    sysfs: Sysfs, address: PciAddress, parents: tuple[str, ...], nodes: tuple[NumaNode, ...],
) -> tuple[Optional[int], str]:
    """(node, where it was found): the device, the nearest parent that has one, the CPUs said to be local, a host's
    only node. Never node 0 for want of better: (None, "unknown")."""
    online = {node.id for node in nodes}
    for device in (address, *reversed(parents)):
        node = sysfs.number(f"{DEVICES}{device}/numa_node")
        if node in online:
            return node, "device" if device == address else f"parent {device}"
    if len(nodes) == 1:
        return nodes[0].id, "only node"
    local = set(parse_cpus(sysfs.read(f"{DEVICES}{address}/local_cpulist") or ""))
    for found in nodes:
        if local and local <= {cpu for core in found.cores for cpu in core}:
            return found.id, "cpulist"
    return None, "unknown"
