"""The CPUs, memory and PCI window of a domain, as new elements. What the platform wrote is never written again."""
from __future__ import annotations

from kvm_gpu.cpulist import format_cpus
from kvm_gpu.domrecord import FW_CFG
from kvm_gpu.domvalue import VCPUS, number
from kvm_gpu.domxml import QEMU, Element, New
from kvm_gpu.guestpci import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.domxml import Attributes
    from kvm_gpu.model import Placement

IOTHREADS: Final = 1024
WINDOW_MIB: Final = 32 << 10        # OVMF, and QEMU's q35
PC_WINDOW_MIB: Final = 2 << 10      # QEMU's i440fx
ARG: Final = f"{QEMU} arg"


def pins(domain: Element, placement: Placement) -> list[New]:
    """For <cputune>: vCPUs to the CPUs of their node, emulator threads and iothreads to `placement.emulator`.
    Raises RequestError."""
    pinned = [number("vcpupin", pin.attributes.get("vcpu"), VCPUS) for pin in domain.all("cputune", "vcpupin")]
    news = [New("vcpupin", (("vcpu", str(vcpu)), ("cpuset", format_cpus(cpus))))
            for use in placement.uses for vcpu, cpus in use.pins if vcpu not in pinned]
    if not placement.emulator:
        return news
    cpuset = ("cpuset", format_cpus(placement.emulator))
    if not domain.first("cputune", "emulatorpin"):
        news.append(New("emulatorpin", (cpuset,)))
    pinned = [number("iothreadpin", pin.attributes.get("iothread"), IOTHREADS)
              for pin in domain.all("cputune", "iothreadpin")]
    return news + [New("iothreadpin", (("iothread", str(thread)), cpuset))
                   for thread in iothreads(domain) if thread not in pinned]


def iothreads(domain: Element) -> list[int]:
    """Ids of the iothreads: those listed, and the lowest free ones up to the number in <iothreads>.
    Raises RequestError. Source: libvirt, virDomainDefIOThreadsFill."""
    ids = {number("iothread", thread.attributes.get("id"), IOTHREADS)
           for thread in domain.all("iothreadids", "iothread")}
    missing = number("iothreads", domain.value("iothreads") or "0", IOTHREADS) - len(ids)
    free = [thread for thread in range(1, 2 * IOTHREADS) if thread not in ids]
    return sorted([*ids, *free[:max(missing, 0)]])


def binding(domain: Element, placement: Placement) -> list[New]:
    """For <numatune>: the guest's memory, and that of each of its cells, to the nodes of the uses. Nothing where the
    platform bound any of it."""
    nodes = [(use.guest_node, use.node) for use in placement.uses if use.node is not None]
    if placement.memory is None or domain.first("numatune", "memory") or domain.first("numatune", "memnode"):
        return []
    news = _bind("memory", (), placement.memory, [node for _, node in nodes])
    cells = domain.all("cpu", "numa", "cell")
    for cell in range(len(cells)):      # ids have no gaps
        mine = [node for guest, node in nodes if guest == cell or len(cells) == 1]
        news += _bind("memnode", (("cellid", str(cell)),), placement.memory, mine)
    return news


def _bind(name: str, cell: Attributes, mode: str, nodes: list[int]) -> list[New]:
    # libvirt before 9.3 starts no guest that prefers several nodes
    if not nodes or (mode == "preferred" and len(set(nodes)) > 1):
        return []
    return [New(name, (*cell, ("mode", mode), ("nodeset", format_cpus(tuple(nodes)))))]


def pages(domain: Element, placement: Placement) -> list[New]:
    """For <hugepages>: the page size of each use. Nothing where the platform asked for huge pages."""
    if domain.first("memoryBacking", "hugepages"):
        return []
    sizes: dict[Optional[int], list[int]] = {}
    for use in placement.uses:
        sizes.setdefault(use.page_kib, []).append(use.guest_node)
    return [New("page", (("size", str(size)), ("unit", "KiB"),
                         *((("nodeset", format_cpus(tuple(guests))),) if len(sizes) > 1 else ())))
            for size, guests in sizes.items() if size is not None]


def firmware_window(domain: Element, placement: Placement) -> list[New]:
    """For <qemu:commandline>: OVMF's window for 64-bit BARs, where its default is too small for the devices.
    Source: edk2, OvmfPkg/Library/PlatformInitLib (opt/ovmf/X-PciMmio64Mb)."""
    size = _window_mib(placement)
    given = any(arg.attributes.get("value", "").startswith(FW_CFG) for arg in domain.all(f"{QEMU} commandline", ARG))
    if size <= WINDOW_MIB or given or not _uefi(domain):
        return []
    return [New(ARG, (("value", "-fw_cfg"),)), New(ARG, (("value", f"{FW_CFG}{size}"),))]


def root_bus_window(domain: Element, placement: Placement) -> list[New]:
    """For the controller of the root bus: QEMU's window for 64-bit BARs, where SeaBIOS has too little of it.
    Source: libvirt, formatdomain, pcihole64; QEMU, hw/pci-host/q35.c and i440fx.c."""
    size = _window_mib(placement)
    default = PC_WINDOW_MIB if machine(domain) == "pc" else WINDOW_MIB
    if size <= default or domain.first("devices", "controller", "pcihole64") or _uefi(domain):
        return []
    return [New("pcihole64", (("unit", "KiB"),), (), str(size << 10))]


def _window_mib(placement: Placement) -> int:
    total = sum([device.bar_mib or 0 for device in placement.devices])
    return 1 << (total - 1).bit_length() if total else 0


def _uefi(domain: Element) -> bool:
    return (any(system.attributes.get("firmware") == "efi" for system in domain.all("os"))
            or any(loader.attributes.get("type") == "pflash" for loader in domain.all("os", "loader")))
