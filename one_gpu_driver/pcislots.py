"""GPU slots: PCI devices that only oned knows, as many of a size as the administrator says this host has.

oned gives them away one by one, like any PCI device, and counts them. At the VM's start the host sees by the address
which size the VM has got, and chooses the GPU itself. The number in the address's domain is made of the size's name, so
it is the same on every host and needs no table; its highest bit is set, which no domain of a real device has (the
kernel's pci_domain_nr is an int).
"""
from __future__ import annotations

import posix
from binascii import crc32

from kvm_gpu.errors import HostError
from kvm_gpu.request import is_text
from kvm_gpu.site import CONFIG
from one_gpu_driver.refused import NO_GPU

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from kvm_gpu.model import Host
    from kvm_gpu.site import Site
    from kvm_gpu.strict import Table
    from one_gpu_driver.vmxml import Pci

    Slots = tuple[tuple[str, int], ...]     # (size, how many), by size

FILE: Final = f"{CONFIG}/opennebula.toml"
MOST: Final = 4096
VENDOR: Final = "fff0"          # nobody's in the PCI ID list, so that no template asks for it by chance
CLASS: Final = "ff00"           # "unassigned class"
HIGHEST_BIT: Final = 1 << 31
PLACES: Final = 32              # device numbers on a bus


def number(size: str) -> str:
    """"A16-4Q" -> "97d62cf9": DEVICE of its slots, and the domain of their addresses. CRC-32 of the name in lower case,
    as names are compared; 16 bits would not tell the known sizes apart."""
    return f"{crc32(size.lower().encode()) | HIGHEST_BIT:08x}"


# ---- what oned is told -----------------------------------------------------------------------------

def read(root: str) -> Slots:
    """What the administrator's file says; nothing where there is none. Raises HostError. Cold path."""
    try:
        posix.stat(root + FILE)
    except FileNotFoundError:
        return ()
    from kvm_gpu.configfile import read_file
    return read_file(root + FILE, _slots)


def lines(slots: Slots) -> str:
    """As oned's own probe tells of devices. Source: OpenNebula 7.5.80, im/kvm-probes.d/host/system/pci.rb."""
    return "".join(_line(size, place) for size, many in slots for place in range(many))


def _slots(table: Table) -> Slots:
    sizes = table.table("pci_slots")
    slots = tuple((size, sizes.number(size, 0, MOST) or 0) for size in sorted(sizes.names()))
    known: dict[str, str] = {}
    for size, _ in slots:
        if not is_text(size) or '"' in size:
            sizes.problem("not the name of a size", size)
        elif known.setdefault(number(size), size) != size:
            sizes.problem(f"oned cannot tell it from {known[number(size)]}", size)
    return slots


def _line(size: str, place: int) -> str:
    domain, bus, device = number(size), f"{place // PLACES:02x}", f"{place % PLACES:02x}"
    fields = {"TYPE": f"{VENDOR}:{domain}:{CLASS}", "VENDOR": VENDOR, "VENDOR_NAME": "kvm-gpu", "DEVICE": domain,
              "DEVICE_NAME": size, "CLASS": CLASS, "CLASS_NAME": "GPU slot",
              "ADDRESS": f"{domain}:{bus}:{device}:0", "SHORT_ADDRESS": f"{domain}:{bus}:{device}.0",
              "DOMAIN": domain, "BUS": bus, "SLOT": device, "FUNCTION": "0",
              "NUMA_NODE": "-", "IFNAME": "-", "SRIOV": "no"}
    words = ",".join(f'{name}="{value}"' for name, value in fields.items())
    return f"PCI=[{words}]\n"


# ---- what oned gave a VM ---------------------------------------------------------------------------

def taken(devices: Iterable[Pci]) -> tuple[Pci, ...]:
    """Those of a VM's PCI devices that are slots."""
    return tuple([pci for pci in devices if int(_domain(pci), 16) & HIGHEST_BIT])


def sizes(site: Site, slots: Iterable[Pci]) -> tuple[str, ...]:
    """The size of each slot. A card that the cached host does not show may have come since. Raises HostError."""
    numbers = [_domain(pci) for pci in slots]
    if not numbers:
        return ()
    names = _names(site.view().host)
    if not names.keys() >= set(numbers):
        names = _names(site.fresh_view().host)
    for missing in set(numbers) - names.keys():
        raise HostError(f"{NO_GPU}: no card of this host has the size of GPU slot {missing}",
                        f"compare [pci_slots] in {FILE} with kvm-gpu capacity")
    return tuple([names[size] for size in numbers])


def is_slot_type(word: str) -> bool:
    """Whether oned's "vendor:device:class" is that of a slot."""
    return word.startswith(VENDOR + ":")


def _domain(pci: Pci) -> str:
    return pci.address.partition(":")[0]


def _names(host: Host) -> dict[str, str]:
    """By number, every size that the host's boards know in any layout."""
    return {number(profile.name): profile.name for board in host.boards for layout in board.layouts
            for cell in layout.cells for profile in cell.profiles}
