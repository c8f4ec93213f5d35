"""What an injection wrote into a domain, so that it can be taken out again to the byte.

Hostdevs and PCI controllers carry an alias of ours. Everything else is repeated, in our namespace, below the claim
in the domain's metadata:

    <kvm-gpu:claim xmlns:kvm-gpu='urn:kvm-gpu:domain:1' id='c-17' added='cputune'>
      <kvm-gpu:vcpupin vcpu='0' cpuset='4-5'/>
    </kvm-gpu:claim>

A VM's owner may have planted it. So only elements that we do write count, only where we write them, only with the
recorded values, and each record for one element. What is left: a planted record that names the very pins of the
platform lifts them. Nothing in the document can tell; the ledger can, since it knows the claims of the VM.
"""
from __future__ import annotations

from kvm_gpu import hostdev
from kvm_gpu.domxml import OURS, QEMU, Element, New, close, cut, insert, rest, splice
from kvm_gpu.guestpci import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Final, Optional

    from kvm_gpu.domxml import Attributes, Edit

    Path = tuple[str, ...]
    Mark = tuple[str, tuple[tuple[str, str], ...], str]

CLAIM: Final = f"{OURS} claim"
METADATA: Final = ("metadata",)
DEVICES: Final = ("devices",)
ROOT_BUS: Final = ("devices", "controller")
CPUTUNE: Final = ("cputune",)
NUMATUNE: Final = ("numatune",)
HUGEPAGES: Final = ("memoryBacking", "hugepages")
COMMANDLINE: Final = (f"{QEMU} commandline",)
RECORDED: Final = {
    "vcpupin": CPUTUNE, "emulatorpin": CPUTUNE, "iothreadpin": CPUTUNE,
    "memory": NUMATUNE, "memnode": NUMATUNE,
    "page": HUGEPAGES,
    "pcihole64": ROOT_BUS,
    f"{QEMU} arg": COMMANDLINE,
}
FW_CFG: Final = "name=opt/ovmf/X-PciMmio64Mb,string="
BEGINS: Final = {       # of what we record: an attribute, and how its value begins whenever we write it
    "memory": ("mode", ("strict", "preferred")), "memnode": ("mode", ("strict", "preferred")),
    "pcihole64": ("unit", ("KiB",)),
    "arg": ("value", ("-fw_cfg", FW_CFG)),
}
CONTAINERS: Final = (HUGEPAGES, HUGEPAGES[:1], CPUTUNE, NUMATUNE, COMMANDLINE, ROOT_BUS, DEVICES, METADATA)


def claim_id(domain: Element) -> Optional[str]:
    """The claim named by the metadata, None without one. The owner's word: to be checked against the ledger."""
    claim = domain.first(*METADATA, CLAIM)
    text = claim.attributes.get("id", "") if claim else ""
    return text if 0 < len(text) <= 64 and text.isascii() and text.isprintable() else None


def written(domain: Element) -> set[Element]:
    """The elements that an earlier injection wrote."""
    claims = domain.all(*METADATA, CLAIM)
    ours = {device for device in domain.all("devices", "hostdev") + domain.all(*ROOT_BUS) if hostdev.ours(device)}
    recorded: dict[Mark, int] = {}
    for note in claims[0].children if claims else ():
        attribute, begins = BEGINS.get(_local(note.name), ("", ("",)))
        if note.attributes.get(attribute, "").startswith(begins):
            recorded[_mark(note)] = recorded.get(_mark(note), 0) + 1
    for name, path in RECORDED.items():
        place = container(domain, path)
        for element in reversed(place.all(name) if place else []):      # ours stand last
            if recorded.get(_mark(element), 0):
                recorded[_mark(element)] -= 1
                ours.add(element)
    return ours.union(claims)


def remove(xml: bytes, domain: Element) -> bytes:
    """The document without what an earlier injection wrote."""
    gone = written(domain)
    if not gone:
        return xml
    closed: set[Element] = set()
    claim = domain.first(*METADATA, CLAIM)
    added, opened = [claim.attributes.get(key, "").split() if claim else [] for key in ("added", "opened")]
    for path in CONTAINERS:
        element, name = container(domain, path), _local(path[-1])
        if element is None or element in gone or element.self_closing:
            continue
        if not rest(xml, element, gone).strip():
            if name in added:
                gone.add(element)
            elif name in opened:
                closed.add(element)
    return splice(xml, _removals(xml, domain, gone, closed))


def _removals(xml: bytes, element: Element, gone: AbstractSet[Element], closed: AbstractSet[Element]) -> Iterator[Edit]:
    for child in element.children:
        if child in gone:
            yield cut(xml, child)
        elif child in closed:
            yield close(xml, child)
        else:
            yield from _removals(xml, child, gone, closed)


def write(xml: bytes, domain: Element, news: Mapping[Path, Sequence[New]], claim: str) -> bytes:
    """The document with new elements at the end of their containers, and the claim with the record of them."""
    todo: dict[Path, list[New]] = {path: list(new) for path, new in news.items() if new}
    todo[METADATA] = [_claim(domain, todo, claim)]
    edits: list[Edit] = []
    while todo:
        path = max(todo, key=len)
        content, element = todo.pop(path), container(domain, path)
        if element is None:
            todo.setdefault(path[:-1], []).append(New(path[-1], _attributes(domain, path), tuple(content)))
        else:
            edits.append(insert(xml, element, content))
    return splice(xml, edits)


def _claim(domain: Element, news: Mapping[Path, Sequence[New]], claim: str) -> New:
    notes = tuple([New(f"kvm-gpu:{_local(new.name)}", new.attributes, (), new.text)
                   for path, content in news.items() for new in content
                   if RECORDED.get(new.name) == path])
    added, opened = [], []
    for path in CONTAINERS:
        if path == METADATA or any(place[:len(path)] == path for place in news):
            element = container(domain, path)
            if element is None:
                added.append(_local(path[-1]))
            elif element.self_closing:
                opened.append(_local(path[-1]))
    words = [(key, " ".join(names)) for key, names in (("added", added), ("opened", opened)) if names]
    return New(CLAIM, (("id", claim), *words), notes)


def _attributes(domain: Element, path: Path) -> Attributes:
    if path != ROOT_BUS:
        return ()
    return ("type", "pci"), ("index", "0"), ("model", "pci-root" if machine(domain) == "pc" else "pcie-root")


def container(domain: Element, path: Path) -> Optional[Element]:
    """The element that takes new content: the first at the path; of the PCI controllers the root bus."""
    for element in domain.all(*path):
        if path != ROOT_BUS or element.attributes.get("model") in ("pci-root", "pcie-root"):
            return element
    return domain if not path else None


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _mark(element: Element) -> Mark:
    return _local(element.name), tuple(sorted(element.attributes.items())), element.text.strip()
