"""Where in the guest a device sits: addresses that are the same at every start, whatever card the host gives.

q35: the free `pcie-root-port` of the highest index, because libvirt fills devices without an address from the
lowest; where none is free, a port of our own with the next index. i440fx: slots of bus 0 from 0x1f downwards.
"""
from __future__ import annotations

from kvm_gpu.domvalue import number, pci_numbers
from kvm_gpu.domxml import Element
from kvm_gpu.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final, NamedTuple, Optional
else:
    from kvm_gpu.light import NamedTuple

PORT: Final = "pcie-root-port"
BUSES: Final = 255
LAST_SLOT: Final = 0x1f
FIRST_SLOT: Final = 3       # i440fx: 0 host bridge, 1 ISA and IDE, 2 primary video


class Spot(NamedTuple):
    """One guest slot, with room for eight functions."""
    bus: int
    slot: int
    new_port: bool = False  # the bus needs a root port that the domain does not declare


def machine(domain: Element) -> str:
    """"q35", "pc" (i440fx, also libvirt's default on x86), else the machine's name as it stands."""
    kind = domain.first("os", "type")
    name = kind.attributes.get("machine", "pc") if kind else "pc"
    if "q35" in name:
        return "q35"
    return "pc" if name == "pc" or name.startswith(("pc-", "pc_")) else name


def guest_spot(device: Element) -> Optional[Spot]:
    """Guest slot that a device is given by its own address, None where libvirt chooses. Raises RequestError."""
    address = device.first("address")
    if address is None or address.attributes.get("type") != "pci" or len(address.attributes) == 1:
        return None
    domain, bus, slot, _ = pci_numbers(address.attributes)
    return Spot(bus, slot) if domain == 0 else None


def free_spots(domain: Element, before: Sequence[Spot]) -> Iterator[Spot]:
    """Free guest slots, best first; those that devices had `before` lead. Raises RequestError when none is left."""
    taken = [spot for devices in domain.all("devices") for spot in map(guest_spot, devices.children) if spot]
    if machine(domain) == "pc":
        yield from _slots(taken, before)
    else:
        yield from _ports(domain, taken, before)
    raise RequestError("domain XML: no guest PCI slot is free")


def _slots(taken: Sequence[Spot], before: Sequence[Spot]) -> Iterator[Spot]:
    used = {spot.slot for spot in taken if spot.bus == 0}
    for slot in (*[spot.slot for spot in before if spot.bus == 0], *range(LAST_SLOT, FIRST_SLOT - 1, -1)):
        if slot >= FIRST_SLOT and slot not in used:
            used.add(slot)
            yield Spot(0, slot)


def _ports(domain: Element, taken: Sequence[Spot], before: Sequence[Spot]) -> Iterator[Spot]:
    models = {number("index of a PCI controller", index, BUSES): controller.attributes.get("model", PORT)
              for controller in domain.all("devices", "controller")
              if controller.attributes.get("type") == "pci" and (index := controller.attributes.get("index"))}
    used = {0, *[spot.bus for spot in taken]}
    following = max(used.union(models)) + 1
    buses = (*[spot.bus for spot in before], *sorted(models, reverse=True), *range(following, BUSES + 1))
    for bus in buses:
        if bus not in used and models.get(bus, PORT) == PORT:
            used.add(bus)
            yield Spot(bus, 0, bus not in models)
