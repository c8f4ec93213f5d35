"""What sysfs says of PCI functions: identity, driver, group, parents, BARs. Cold path, but for `virtual_functions`.

Source of the files: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError
from kvm_gpu.model import Function
from kvm_gpu.sysfs import DEVICES, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.model import PciAddress

GROUPS: Final = "/sys/kernel/iommu_groups/"
DISPLAY: Final = 0x03
ACCELERATOR: Final = 0x12
BRIDGE: Final = 0x06
MEM_64_PREFETCH: Final = 0x00102000     # IORESOURCE_MEM_64 | IORESOURCE_PREFETCH, include/linux/ioport.h
BARS: Final = 6
SERIAL_CAPABILITY: Final = 0x0003       # PCI Express: Device Serial Number extended capability
CLASS_WORDS: Final = {
    0x0106: "SATA controller", 0x0107: "SAS controller", 0x0108: "NVMe disk", 0x0200: "Ethernet controller",
    0x0207: "InfiniBand controller", 0x0403: "audio device", 0x0c03: "USB controller",
}


def functions(sysfs: Sysfs) -> tuple[PciAddress, ...]:
    """Addresses of all PCI functions of the host, sorted."""
    return sysfs.list(DEVICES.rstrip("/"))


def read_function(sysfs: Sysfs, address: PciAddress) -> Function:
    """Raises HostError where vendor, device or class are missing or cannot be read."""
    path = DEVICES + address
    vendor, device, pci_class = (sysfs.read(f"{path}/{name}") for name in ("vendor", "device", "class"))
    if vendor is None or device is None or pci_class is None:
        raise HostError(f"{path}: no vendor, device or class")
    group = sysfs.link(path + "/iommu_group")
    return Function(address, f"{vendor[2:]}:{device[2:]}", int(pci_class, 16), sysfs.link(path + "/driver"),
                    None if group is None else int(group), sysfs.read(path + "/boot_vga") == "1")


def subsystem(sysfs: Sysfs, address: PciAddress) -> Optional[str]:
    """"10de:14a9", None where the function has none."""
    vendor = sysfs.read(f"{DEVICES}{address}/subsystem_vendor")
    device = sysfs.read(f"{DEVICES}{address}/subsystem_device")
    return None if vendor is None or device is None else f"{vendor[2:]}:{device[2:]}"


def is_gpu(pci_class: int) -> bool:
    """Display controllers (03xx) and processing accelerators (12xx)."""
    return pci_class >> 16 in (DISPLAY, ACCELERATOR)


def is_vf(sysfs: Sysfs, address: PciAddress) -> bool:
    return sysfs.target(f"{DEVICES}{address}/physfn") is not None


def virtual_functions(sysfs: Sysfs, pf: PciAddress) -> tuple[PciAddress, ...]:
    """Addresses of virtfn0, virtfn1, ... in the order of their numbers (names sort 0, 1, 10)."""
    names = [name for name in sysfs.list(DEVICES + pf) if name.startswith("virtfn")]
    names.sort(key=lambda name: int(name[6:]))
    return tuple(address for name in names if (address := sysfs.link(f"{DEVICES}{pf}/{name}")))


def parents(sysfs: Sysfs, address: PciAddress) -> tuple[str, ...]:
    """Root complex and bridges above the function, outermost first: ("pci0000:26", "0000:26:01.0")."""
    target = sysfs.target(DEVICES + address)
    if target is None:
        raise HostError(f"{DEVICES}{address}: no such device")
    return tuple(part for part in target.split("/")[:-1] if part not in ("..", "devices"))


def bar_mib(sysfs: Sysfs, address: PciAddress) -> Optional[int]:
    """MiB of 64-bit prefetchable BARs, None where `resource` is not there. Lines are "start end flags" in hex."""
    text = sysfs.read(f"{DEVICES}{address}/resource")
    if text is None:
        return None
    total = 0
    for line in text.split("\n")[:BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        if flags & MEM_64_PREFETCH == MEM_64_PREFETCH:
            total += end - start + 1
    return -(-total >> 20)


def serial(sysfs: Sysfs, address: PciAddress) -> Optional[str]:
    """Device Serial Number "00-11-22-..." as lspci prints it, None where the card has no such capability.
    Source: PCI Express Base Specification, Device Serial Number Extended Capability (id 0003h)."""
    config = sysfs.binary(f"{DEVICES}{address}/config") or b""
    offset, seen = 0x100, 0
    while 0x100 <= offset <= len(config) - 12 and seen < 64:
        header = int.from_bytes(config[offset:offset + 4], "little")
        if header & 0xffff == SERIAL_CAPABILITY:
            number = config[offset + 4:offset + 12][::-1].hex()
            return "-".join(number[at:at + 2] for at in range(0, 16, 2))
        offset, seen = header >> 20, seen + 1
    return None


def slot_labels(sysfs: Sysfs) -> dict[str, str]:
    """{"0000:41:00": "GPU3"}: the chassis' own names of its slots. Reads /sys/bus/pci/slots."""
    labels = {}
    for label in sysfs.list("/sys/bus/pci/slots"):
        address = sysfs.read(f"/sys/bus/pci/slots/{label}/address")
        if address:
            labels[address] = label
    return labels


def group_trouble(sysfs: Sysfs, addresses: tuple[PciAddress, ...]) -> Optional[str]:
    """Why VFIO would not give these functions to a VM alone, None where it would: every other function of the group
    that is not a bridge must be without a host driver, and no second GPU. Source: Documentation/driver-api/vfio.rst."""
    for address in addresses:
        group = sysfs.link(f"{DEVICES}{address}/iommu_group")
        if group is None:
            return f"{address} is in no IOMMU group (is the IOMMU switched on?)"
        for member in sysfs.list(f"{GROUPS}{group}/devices"):
            if member not in addresses and (use := _use(sysfs, member)):
                return f"IOMMU group {group} also holds {member} ({use})"
    return None


def _use(sysfs: Sysfs, address: PciAddress) -> Optional[str]:
    """What keeps a group member from being left alone, None where nothing does."""
    pci_class = int(sysfs.read(f"{DEVICES}{address}/class") or "0", 16)
    if pci_class >> 16 == BRIDGE:
        return None
    driver = sysfs.link(f"{DEVICES}{address}/driver")
    if is_gpu(pci_class):
        return "another GPU"
    if driver is None or driver in ("vfio-pci", "pci-stub"):
        return None
    return f"{CLASS_WORDS.get(pci_class >> 8, f'class {pci_class >> 8:04x}')}, driver {driver}"
