"""What a hostpciN may be on this node: the alternatives, in the order in which Proxmox VE tries them.

An alternative is one device, or several at once. A device without a function, "0000:3b:00", is all of a card.
"""
from __future__ import annotations

from kvm_gpu.request import canonical_address
from pve_gpu_hook.files import content
from pve_gpu_hook.qmconf import ETC, HOSTPCI, properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.model import PciAddress
    from pve_gpu_hook.qmconf import Conf

    Alternative = tuple[str, ...]
else:
    from kvm_gpu.light import NamedTuple

MAPPINGS: Final = ETC + "/mapping/pci.cfg"
NODE: Final = ETC + "/local"                    # a link to nodes/NAME


class HostPci(NamedTuple):
    """One hostpciN of a VM's configuration."""
    number: int
    name: str                                   # of the mapping; else the addresses as they are written
    alternatives: tuple[Alternative, ...]
    mdev: Optional[str]                         # "nvidia-713"

    def __str__(self) -> str:
        return f"hostpci{self.number} ({self.name})"


def devices(root: str, node: str, conf: Conf) -> tuple[HostPci, ...]:
    """All that the VM asks for; one that names no device of this node is left to Proxmox VE, which refuses it.
    Raises HostError."""
    mappings: Optional[str] = None
    found = []
    for number, key in enumerate(HOSTPCI):
        wish = properties(conf.get(key, ""), "host")
        if "mapping" in wish and mappings is None:
            mappings = content(root + MAPPINGS) or ""
        paths = of_node(mappings or "", wish["mapping"], node) if "mapping" in wish else (wish.get("host", ""),)
        alternatives = tuple(filter(None, map(_devices, paths)))
        if alternatives:
            found.append(HostPci(number, wish.get("mapping") or paths[0], alternatives, wish.get("mdev")))
    return tuple(found)


def of_node(text: str, mapping: str, node: str) -> tuple[str, ...]:
    """Paths of a mapping's devices on this node. Source: PVE::Mapping::PCI, PVE::SectionConfig."""
    entries = (properties(value, "") for key, value in _section(text, mapping) if key == "map")
    return tuple(entry.get("path", "") for entry in entries if entry.get("node") == node)


def first(device: str) -> PciAddress:
    """The device's first function."""
    return device if "." in device else device + ".0"


def covers(alternative: Alternative, address: PciAddress) -> bool:
    """Whether this function is a part of it."""
    return any(address in (device, f"{device}{address[-2:]}") for device in alternative)


def _section(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Keys and values of a section, without a look at the lines of all others: a mapping may have a thousand."""
    _, header, rest = ("\n" + text).partition(f"\n{name}\n")
    if header:
        for line in rest.split("\n\n", 1)[0].split("\n"):
            key, _, value = line.strip().partition(" ")
            yield key, value.strip()


def _devices(path: str) -> Alternative:
    """"3b:00;0000:5e:00.1" -> ("0000:3b:00", "0000:5e:00.1"); () where one is no address."""
    found = [(canonical_address(first(part)), "." in part) for part in path.split(";")]
    return tuple(address if function else address[:-2] for address, function in found if address
                 ) if all(address for address, _ in found) else ()
