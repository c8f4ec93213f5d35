"""A VM's start, root's part: from vm.xml and the domain to the claim, and the domain with its devices."""
from __future__ import annotations

from kvm_gpu import claims, domain, domxml, hostdev, pci
from kvm_gpu.errors import GpuError, HostError, NoCapacity, OwnershipError, RequestError
from kvm_gpu.guestpci import PORT, guest_spot
from kvm_gpu.holder import holder_of
from kvm_gpu.model import Request, Vm
from kvm_gpu.request import canonical_address, shown
from one_gpu_driver import held, pcislots, vmxml
from one_gpu_driver.refused import NO_GPU
from one_gpu_driver.wanted import adopted, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.domxml import Element
    from kvm_gpu.model import Decision, Device
    from kvm_gpu.site import Site
    from one_gpu_driver.vmxml import Card, Pci, VmXml
else:
    from kvm_gpu.light import NamedTuple

METADATA: Final = "http://opennebula.org/xmlns/libvirt/1.0"
LISTED: Final = ("metadata", f"{METADATA} vm", f"{METADATA} pci_devices")
GPU_CLASSES: Final = ("03", "12")       # display controllers, processing accelerators


class Started(NamedTuple):
    """`claim` is None where the VM takes nothing of ours."""
    vm: str
    claim: Optional[str]
    domain: bytes
    vm_xml: bytes
    warnings: tuple[str, ...] = ()


def start(site: Site, vm_xml: bytes, xml: bytes, pid: int) -> Started:
    """Claim what the VM asks for; the process `pid` is the holder. Raises as claims.inject, RequestError for a template
    that asks in a wrong way."""
    vm = vmxml.read(vm_xml)
    slots, cards = pcislots.taken(vm.pci), _adopted(site, vm)
    own = [*slots, *(pci for card in cards for pci in card)]
    xml = _handed_over(xml, own)
    found = domain.read(xml)
    if found.name != vm.name:
        raise RequestError(f"the domain is called {found.name[:40]}, the VM {vm.name}")
    _refuse_arguments(vm, xml)
    request = wanted(vm, site.config.offers, cards, pcislots.sizes(site, slots))
    if request is None:
        claims.refuse_raw(site, Request(Vm(vm.name), ()), found)
        return Started(vm.name, None, domain.remove(xml), vm_xml)   # without what says that it is ours
    quiet = vmxml.without_uuids(vm_xml, {pci.address for pci in own})
    decision, injected = _claim(site, request, xml, pid)
    assert decision.placement is not None
    given = decision.placement.devices[len(cards):]
    listed = _listed(injected, [word for device in given for word in _identity(site, device)])
    return Started(vm.name, decision.claim, listed, quiet, decision.placement.warnings)


def _adopted(site: Site, vm: VmXml) -> tuple[Card, ...]:
    """What oned chose and is ours. A GPU that the cached host does not show may have come since."""
    if not vm.pci:
        return ()
    found = adopted(vm, site.view().host)
    missed = {pci for pci in vm.pci if pci.pci_class.startswith(GPU_CLASSES)}.difference(*found)
    return adopted(vm, site.fresh_view().host) if missed else found


def _refuse_arguments(vm: VmXml, xml: bytes) -> None:
    """Raises OwnershipError where an argument for QEMU takes a device of the host: libvirt would not know of it."""
    for argument in domxml.parse(xml).all(f"{domxml.QEMU} commandline", f"{domxml.QEMU} arg"):
        value = argument.attributes.get("value", "")
        if "vfio" in value and ("host" in value or "sysfsdev" in value):
            raise OwnershipError(f"VM {vm.name}: takes a device by the QEMU argument {shown(value)}",
                                 "ask for a profile")


def _claim(site: Site, request: Request, xml: bytes, pid: int) -> tuple[Decision, bytes]:
    """claims.inject, and a refusal in the words of oned's users."""
    held.mark(site, request.vm.id)
    try:
        return claims.inject(site, request, xml, holder_of(pid))
    except GpuError as failure:
        held.unmark(site, request.vm.id)
        if not isinstance(failure, NoCapacity):
            raise
        message = f"{NO_GPU} for {claims.wanted(request)} on this host: {failure.hint}"
        raise NoCapacity(message, failure.refusal) from None


# ---- the domain ------------------------------------------------------------------------------------

def _handed_over(xml: bytes, own: Collection[Pci]) -> bytes:
    """The domain with oned's hostdevs of adopted devices and slots marked as ours: the injection puts its own at their
    guest addresses. One on a bus that the domain does not declare, as oned may write where it pins, has none to
    keep."""
    if not own:
        return xml
    root = domxml.parse(xml)
    addresses, uuids = {pci.address for pci in own}, {pci.uuid.lower() for pci in own if pci.uuid}
    mark = [domxml.New("alias", (("name", f"{hostdev.ALIAS}adopted"),))]
    buses = {controller.attributes.get("index") for controller in root.all("devices", "controller")
             if controller.attributes.get("model") == PORT}
    return domxml.splice(xml, [
        domxml.insert(xml, device, mark) if (spot := guest_spot(device)) and str(spot.bus) in buses
        else domxml.cut(xml, device)
        for device in root.all("devices", "hostdev") if _takes(device, addresses, uuids)])


def _takes(device: Element, addresses: Collection[str], uuids: Collection[str]) -> bool:
    """As oned writes a source; a slot's domain is none that libvirt takes."""
    source = device.first("source", "address")
    if source is None:
        return False
    parts = [source.attributes.get(name, "").removeprefix("0x") for name in ("domain", "bus", "slot", "function")]
    return (canonical_address("{}:{}:{}.{}".format(*parts)) in addresses
            or source.attributes.get("uuid", "").lower() in uuids)


def _listed(xml: bytes, identities: Collection[str]) -> bytes:
    """The domain with these devices, and no slots, in oned's list of PCI devices, from which its monitor knows that a
    VM has a GPU."""
    element = domxml.parse(xml).first(*LISTED)
    if element is None or element.self_closing or element.children:
        return xml
    before = [word for word in element.text.strip().split(",") if word and not pcislots.is_slot_type(word)]
    text = domxml.escape(",".join([*before, *identities]))
    return domxml.splice(xml, [(xml.index(b">", element.start) + 1, element.end, text.encode())])


def _identity(site: Site, device: Device) -> Iterator[str]:
    """"10de:25b6:0302"; nothing where it has no PCI function, or cannot be read: only graphs need it."""
    try:
        for address in device.functions[:1]:
            function = pci.read_function(site.sysfs, address)
            yield f"{function.ids}:{function.pci_class >> 8:04x}"
    except HostError:
        return
