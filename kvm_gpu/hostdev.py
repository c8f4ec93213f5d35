"""Devices of the host in a domain: those it has, and those a placement gives it."""
from __future__ import annotations

from kvm_gpu.domvalue import pci_address, pci_parts, uuid
from kvm_gpu.domxml import Element, New
from kvm_gpu.errors import RequestError
from kvm_gpu.guestpci import PORT, free_spots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Final, Optional

    from kvm_gpu.domxml import Attributes
    from kvm_gpu.guestpci import Spot
    from kvm_gpu.model import Device, PciAddress

ALIAS: Final = "ua-kvm-gpu-"        # libvirt keeps aliases that begin with "ua-", since 3.9
WRITTEN: Final = {"hostdev": ("pci", "mdev"), "controller": (PORT,)}
TAKES_PCI: Final = (("hostdev", "pci"), ("interface", "hostdev"), ("disk", "nvme"))


def ours(device: Element) -> bool:
    """True for a hostdev or root port that carries an alias of ours."""
    alias = device.first("alias")
    kind = device.attributes.get("model" if device.name == "controller" else "type")
    return (kind in WRITTEN.get(device.name, ()) and alias is not None
            and alias.attributes.get("name", "").startswith(ALIAS))


def pci_source(device: Element) -> Optional[PciAddress]:
    """The PCI function of the host that a device of the guest takes, None where it takes none. Raises RequestError."""
    if (device.name, device.attributes.get("type")) not in TAKES_PCI:
        return None
    address = device.first("source", "address")
    if address is None:
        raise RequestError(f"domain XML: <{device.name}> without the address of its source")
    if device.name == "interface" and address.attributes.get("type") != "pci":
        return None
    return pci_address(address.attributes)


def mdev_source(device: Element) -> Optional[str]:
    """UUID of the mdev that a hostdev takes, None where it takes none. Raises RequestError."""
    if device.name != "hostdev" or device.attributes.get("type") != "mdev":
        return None
    address = device.first("source", "address")
    return uuid("UUID of an mdev", address.attributes.get("uuid") if address else None)


def sources(devices: Iterable[Element]) -> tuple[tuple[PciAddress, ...], tuple[str, ...]]:
    """PCI functions and mdevs of the host that these devices take. Raises RequestError."""
    listed = tuple(devices)
    return (tuple([address for address in map(pci_source, listed) if address]),
            tuple([mdev for mdev in map(mdev_source, listed) if mdev]))


def hostdevs(domain: Element, devices: Sequence[Device], before: Sequence[Spot]) -> list[New]:
    """Hostdevs for the devices, and root ports where the domain declares too few. What the domain has already, since
    the platform chose the device, stays as it is. Raises RequestError where the guest has no free slot."""
    functions, mdevs = sources([element for group in domain.all("devices") for element in group.children])
    spots = free_spots(domain, before)
    news: list[New] = []
    for device in devices:
        for card in _cards(device, {*functions, *mdevs}):
            spot = next(spots)
            if spot.new_port:
                news.append(_port(spot))
            news += [_hostdev(device, source, spot, function, len(card) > 1) for source, function in card]
    return news


def _cards(device: Device, present: Collection[str]) -> list[list[tuple[str, int]]]:
    """What shares one guest slot: (function or mdev of the host, guest function). The functions of a card keep their
    numbers, as drivers expect sound at .1; a slot needs a function 0, so a lone VF becomes it."""
    if device.mechanism == "mdev":
        assert device.uuid is not None
        return [[(device.uuid, 0)]] if device.uuid not in present else []
    cards: dict[str, list[str]] = {}
    for function in sorted(device.functions):
        if function not in present:
            cards.setdefault(function[:-2], []).append(function)
    return [[(function, int(function[-1]) if card[0].endswith(".0") else place) for place, function in enumerate(card)]
            for card in cards.values()]


def _hostdev(device: Device, source: str, spot: Spot, function: int, shared: bool) -> New:
    guest = _address(0, spot.bus, spot.slot, function)
    multifunction = (("multifunction", "on"),) if shared and function == 0 else ()
    if device.mechanism == "mdev":
        kind: Attributes = (("type", "mdev"), ("model", "vfio-pci"))
        address: Attributes = (("uuid", source),)
    else:       # a vGPU's VF keeps its vendor's driver; every other function libvirt binds to vfio-pci, and back
        kind = ("type", "pci"), ("managed", "no" if device.mechanism == "nvidia_vfio" else "yes")
        address = _address(*pci_parts(source))
    return New("hostdev", (("mode", "subsystem"), *kind), (
        New("source", (), (New("address", address),)),
        New("alias", (("name", f"{ALIAS}{spot.bus}-{spot.slot}-{function}"),)),
        New("address", (("type", "pci"), *guest, *multifunction))))


def _port(spot: Spot) -> New:
    return New("controller", (("type", "pci"), ("index", str(spot.bus)), ("model", PORT)),
               (New("alias", (("name", f"{ALIAS}port-{spot.bus}"),)),))


def _address(domain: int, bus: int, slot: int, function: int) -> Attributes:
    return (("domain", f"0x{domain:04x}"), ("bus", f"0x{bus:02x}"), ("slot", f"0x{slot:02x}"),
            ("function", f"0x{function}"))
