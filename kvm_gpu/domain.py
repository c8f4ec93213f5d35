"""libvirt domain XML: what the guest is, and the guest with its devices, CPUs and memory.

Every byte that is not ours stays; an injection replaces the one before it.
"""
from __future__ import annotations

from kvm_gpu import domrecord, hostdev, tune
from kvm_gpu.domvalue import CPUS, NODES, VCPUS, cpus, kib, number, uuid, wrong
from kvm_gpu.domxml import Element, parse
from kvm_gpu.errors import RequestError
from kvm_gpu.guestpci import guest_spot, machine
from kvm_gpu.model import GuestNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.model import PciAddress, Placement

    Pins = dict[int, tuple[int, ...]]
else:
    from kvm_gpu.light import NamedTuple

SMALL_PAGE_KIB: Final = 4            # x86
DEFAULT_PAGE_KIB: Final = 2048
PAIRS: Final = 1 << 20              # (vCPU, CPU) pairs of all pins together


class Domain(NamedTuple):
    name: str
    uuid: Optional[str]
    guest: tuple[GuestNode, ...]        # as the platform made it: pins and bindings of ours do not count
    hostdevs: tuple[PciAddress, ...]    # PCI functions of the host that it takes and we did not give
    mdevs: tuple[str, ...]              # UUIDs, likewise
    claim: Optional[str]                # as the metadata says; the owner may have written it
    machine: str                        # "q35", "pc" (i440fx), else the name as it stands


def read(xml: bytes) -> Domain:
    """What a domain is. Raises RequestError on what libvirt could read in another way, and on absurd numbers."""
    domain = _parse(xml)
    ours = domrecord.written(domain)
    functions, mdevs = hostdev.sources([device for devices in domain.all("devices") for device in devices.children
                                        if device not in ours])
    name, own_uuid = domain.value("name"), domain.value("uuid")
    if not name or not name.isprintable():
        raise wrong("name", name)
    return Domain(name, uuid("uuid", own_uuid) if own_uuid else None, _guest(domain, ours), functions, mdevs,
                  domrecord.claim_id(domain), machine(domain))


def inject(xml: bytes, placement: Placement, claim_id: str) -> bytes:
    """The domain with what the placement decided; what an earlier injection wrote is gone. Raises RequestError.

    No guest cells are added: they change what the guest's kernel sees, and only the platform that made the guest
    knows whether it may. The one use of a guest without cells binds it as a whole."""
    domain = _parse(xml)
    before = [guest_spot(device) for device in domain.all("devices", "hostdev") if hostdev.ours(device)]
    clean = domrecord.remove(xml, domain)
    if clean != xml:
        xml, domain = clean, parse(clean)
    return domrecord.write(xml, domain, {
        domrecord.CPUTUNE: tune.pins(domain, placement),
        domrecord.NUMATUNE: tune.binding(domain, placement),
        domrecord.HUGEPAGES: tune.pages(domain, placement),
        domrecord.DEVICES: hostdev.hostdevs(domain, placement.devices, [spot for spot in before if spot]),
        domrecord.ROOT_BUS: tune.root_bus_window(domain, placement),
        domrecord.COMMANDLINE: tune.firmware_window(domain, placement),
    }, claim_id)


def remove(xml: bytes) -> bytes:
    """The domain without what `inject` wrote, to the byte. Raises RequestError."""
    return domrecord.remove(xml, _parse(xml))


def _parse(xml: bytes) -> Element:
    domain = parse(xml)
    if domain.name != "domain":
        raise RequestError(f"domain XML: begins with <{domain.name[:40]}>")
    return domain


# ---- the guest -------------------------------------------------------------------------------------

def _guest(domain: Element, ours: Collection[Element]) -> tuple[GuestNode, ...]:
    total = number("vcpu", domain.value("vcpu") or "1", VCPUS)
    if total == 0:
        raise wrong("vcpu", "0")
    pins, bound, pages = _pins(domain, ours, total), _bound(domain, ours), _pages(domain, ours)
    nodes = []
    for node, vcpus, mib in _cells(domain, total):
        pinned = tuple([(vcpu, pins[vcpu]) for vcpu in vcpus if vcpu in pins])
        nodes.append(GuestNode(node, vcpus, mib, pages.get(node, pages.get(None)), pinned or None,
                               bound.get(node, bound.get(None))))
    return tuple(nodes)


def _cells(domain: Element, total: int) -> list[tuple[int, tuple[int, ...], int]]:
    """(id, vCPUs, MiB) of each guest cell, by id; of the whole guest where it has no cells."""
    cells = domain.all("cpu", "numa", "cell")
    if not cells:
        memory = domain.first("memory")
        unit = memory.attributes.get("unit") if memory else None
        return [(0, tuple(range(total)), _mib(domain.value("memory"), unit))]
    found = {}
    for place, cell in enumerate(cells):
        node = number("id of a cell", cell.attributes.get("id", str(place)), NODES)
        vcpus = cpus("cpus of a cell", cell.attributes["cpus"], total) if "cpus" in cell.attributes else ()
        found[node] = (node, vcpus, _mib(cell.attributes.get("memory"), cell.attributes.get("unit")))
    listed = [vcpu for _, vcpus, _ in found.values() for vcpu in vcpus]
    if sorted(found) != list(range(len(cells))) or len(listed) != len(set(listed)):
        raise RequestError("domain XML: guest cells share an id or a vCPU, or leave out an id")
    return [found[node] for node in sorted(found)]


def _mib(text: Optional[str], unit: Optional[str]) -> int:
    return -(-kib("memory", text, unit) // 1024)


def _pins(domain: Element, ours: Collection[Element], total: int) -> Pins:
    """CPUs by vCPU, as vcpupin says, else <vcpu cpuset=>."""
    pins: Pins = {}
    pairs = 0
    for pin in domain.all("cputune", "vcpupin"):
        if pin not in ours:
            vcpu = number("vcpupin", pin.attributes.get("vcpu"), VCPUS)
            if vcpu in pins:
                raise RequestError(f"domain XML: two vcpupin of vCPU {vcpu}")
            pins[vcpu] = cpus("vcpupin", pin.attributes.get("cpuset"), CPUS)
            pairs += len(pins[vcpu])
            if pairs > PAIRS:
                raise RequestError("domain XML: too many CPUs in vcpupin")
    everywhere = domain.first("vcpu")
    if everywhere is not None and everywhere.attributes.get("cpuset"):
        allowed = cpus("cpuset of vcpu", everywhere.attributes["cpuset"], CPUS)
        return {**dict.fromkeys(range(total), allowed), **pins}
    return pins


def _bound(domain: Element, ours: Collection[Element]) -> dict[Optional[int], tuple[int, ...]]:
    """Host nodes by guest cell; under None those of the guest as a whole."""
    bound: dict[Optional[int], tuple[int, ...]] = {}
    for memory in domain.all("numatune", "memory") + domain.all("numatune", "memnode"):
        if memory not in ours and "nodeset" in memory.attributes:
            cell = number("memnode", memory.attributes.get("cellid"), NODES) if memory.name == "memnode" else None
            if cell in bound:
                raise RequestError("domain XML: a guest cell is bound twice")
            bound[cell] = cpus("nodeset", memory.attributes["nodeset"], NODES)
    return bound


def _pages(domain: Element, ours: Collection[Element]) -> dict[Optional[int], Optional[int]]:
    """Huge page size in KiB by guest cell; under None that of every other cell."""
    listed = domain.all("memoryBacking", "hugepages", "page")
    asked = domain.first("memoryBacking", "hugepages") and not listed
    pages: dict[Optional[int], Optional[int]] = {None: DEFAULT_PAGE_KIB} if asked else {}
    for page in [page for page in listed if page not in ours]:
        size = kib("page", page.attributes.get("size"), page.attributes.get("unit"))
        nodeset = page.attributes.get("nodeset")
        for cell in cpus("nodeset of a page", nodeset, NODES) if nodeset else (None,):
            if cell in pages:
                raise RequestError("domain XML: two page sizes for one guest cell")
            pages[cell] = size if size > SMALL_PAGE_KIB else None
    return pages
