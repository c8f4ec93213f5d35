"""The VM as oned tells of it in vm.xml: whose it is, the GPUs it asks for, the PCI devices that oned gave it.

oned writes the file, and the VM's owner the values in it, which may end their CDATA: so what has to stand once has to
stand once.
"""
from __future__ import annotations

from kvm_gpu import domxml
from kvm_gpu.errors import RequestError
from kvm_gpu.request import canonical_address, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.domxml import Element
    from kvm_gpu.model import PciAddress

    Card = tuple["Pci", ...]    # functions of one card
    Vector = dict[str, str]
else:
    from kvm_gpu.light import NamedTuple

FLAT: Final = "GPU_"
TEMPLATES: Final = ("TEMPLATE", "USER_TEMPLATE")    # oned keeps what it does not know in the second


class Pci(NamedTuple):
    """A `PCI` vector for which oned chose a device."""
    address: PciAddress
    pci_class: str                  # "0302"
    uuid: Optional[str]             # of the mdev that the stock driver would make, or the sign that it sets a type
    mdev_mode: Optional[str]
    profile: Optional[str]          # "nvidia-699", "1150 (NVIDIA H100L-4-48C)"


class VmXml(NamedTuple):
    name: str                       # of the domain: "one-42"
    user: str
    group: str
    gpus: tuple[Vector, ...]        # GPU=[...]
    flat: Vector                    # GPU_PROFILE = "..." as {"PROFILE": "..."}
    pci: tuple[Pci, ...]


def read(xml: bytes) -> VmXml:
    """Raises RequestError on what is not the plain XML of one VM."""
    vm = _parse(xml)
    number, user, group = (_once(vm, name) for name in ("ID", "UNAME", "GNAME"))
    if not (number.isascii() and number.isdigit()):
        raise RequestError(f"VM XML: ID {shown(number)} is not a number")
    below = [child for name in TEMPLATES for template in _at_most_one(vm, name) for child in template.children]
    gpus = tuple(_vector(child) for child in below if child.name == "GPU")
    flat = _fields(child for child in below if child.name.startswith(FLAT))
    return VmXml(f"one-{number}", user, group, gpus,
                 {name.removeprefix(FLAT): value for name, value in flat.items()}, _pci(vm))


def without_uuids(xml: bytes, addresses: Collection[PciAddress]) -> bytes:
    """vm.xml with no `UUID` in the `PCI` of these devices: by it the stock scripts know what to make and remove."""
    gone = [domxml.cut(xml, uuid) for element in _pci_elements(_parse(xml)) if _address(element) in addresses
            for uuid in element.all("UUID")]
    return domxml.splice(xml, gone)


def _parse(xml: bytes) -> Element:
    try:
        vm = domxml.parse(xml)
    except RequestError as error:
        raise RequestError(error.message.replace("domain XML", "VM XML", 1)) from None
    if vm.name != "VM":
        raise RequestError(f"VM XML: begins with <{vm.name[:40]}>")
    return vm


def _at_most_one(vm: Element, name: str) -> list[Element]:
    found = vm.all(name)
    if len(found) > 1:
        raise RequestError(f"VM XML: <{name}> stands twice")
    return found


def _once(vm: Element, name: str) -> str:
    found = _at_most_one(vm, name)
    if not found:
        raise RequestError(f"VM XML: no <{name}>")
    return _text(found[0])


def _text(element: Element) -> str:
    if element.children:
        raise RequestError(f"VM XML: <{element.name[:40]}> has elements inside")
    return element.text.strip()


def _fields(elements: Iterator[Element]) -> Vector:
    """Name and value of each that has one: a field that Sunstone's user left empty is not given."""
    fields: Vector = {}
    for element in elements:
        if element.name in fields:
            raise RequestError(f"VM XML: {element.name[:40]} is given twice")
        fields[element.name] = _text(element)
    return {name: value for name, value in fields.items() if value}


def _vector(gpu: Element) -> Vector:
    if not gpu.children:
        raise RequestError(f'GPU = {shown(gpu.text.strip())}: write GPU = [ PROFILE = "..." ]')
    return _fields(iter(gpu.children))


def _pci(vm: Element) -> tuple[Pci, ...]:
    found = []
    for element in _pci_elements(vm):
        address = _address(element)
        if address is not None:
            fields = _fields(iter(element.children))
            found.append(Pci(address, fields.get("CLASS", ""), fields.get("UUID"), fields.get("MDEV_MODE"),
                             fields.get("PROFILE")))
    return tuple(found)


def _pci_elements(vm: Element) -> list[Element]:
    return vm.all("TEMPLATE", "PCI")


def _address(pci: Element) -> Optional[PciAddress]:
    """The device that oned chose; its SLOT is what we call the device's number."""
    fields = [pci.value(name) or "" for name in ("DOMAIN", "BUS", "SLOT", "FUNCTION")]
    return canonical_address("{}:{}:{}.{}".format(*fields))
