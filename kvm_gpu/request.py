"""What makes a request sensible: sizes, words and forms. Its writer may be a tenant: nothing in it is trusted.

Hot path: every claim passes here, whether it came as options, as a file or from a platform.
"""
from __future__ import annotations

from kvm_gpu.errors import OwnershipError, RequestError
from kvm_gpu.model import Request, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final, Optional

    from kvm_gpu.model import CpuMode, GuestNode, Offer, PciAddress, Strict, Vm

    Found = Iterator[tuple[str, str]]           # (field, what is wrong with it)

MECHANISMS: Final = ("whole", "vf", "mdev", "nvidia_vfio", "mig")
STRICT: Final[tuple[Strict, ...]] = ("required", "preferred", "none")
CPU_MODES: Final[tuple[CpuMode, ...]] = ("dedicated", "shared", "none")
VENDORS: Final = {"nvidia": "10de", "amd": "1002", "intel": "8086"}
TEXT_LIMIT: Final = 200
MAX_CARDS: Final = 16
MAX_WANTS: Final = 16
MAX_FB_MIB: Final = 1 << 24
MAX_GROUPS: Final = 4096
UUID: Final = [8, 4, 4, 4, 12]                  # hex digits between the dashes
MAX_NODES: Final = 1024                         # of the host: CONFIG_NODES_SHIFT is at most 10
MAX_GUEST_NODES: Final = 128                    # QEMU's MAX_NODES, include/sysemu/numa.h
MAX_VCPUS: Final = 4096
MAX_MEM_MIB: Final = 64 << 20
MAX_CPU: Final = 65535
# Source: the kernel's Documentation/arch/arm64/hugetlbpage.rst and admin-guide/mm/hugetlbpage.rst (x86, ppc64, s390).
PAGES_KIB: Final = (64, 1024, 2048, 16384, 32768, 524288, 1048576, 2097152, 16777216)


def check(request: Request) -> Request:
    """The request with addresses and vendors in canonical form. Raises RequestError that names every wrong field."""
    found = [f"{field}: {text}" for field, text in _problems(request)]
    if found:
        raise RequestError(f"VM {shown(request.vm.id)}: " + "; ".join(found))
    return request._replace(wants=tuple(map(canonical_want, request.wants)))


def from_offer(offer: Offer, vm: Vm) -> Request:
    """What the offer's name stands for. Raises OwnershipError where the VM's owner may not use it, RequestError."""
    request = check(Request(vm, (offer.want,), (), offer.numa, offer.close, offer.cpu, offer.keep))
    if not offer.allows(vm):
        groups = shown(", ".join(vm.groups)) if vm.groups else "none"
        raise OwnershipError(f"VM {vm.id}: offer {offer.name} is not enabled for user {vm.user}, groups {groups}",
                             f"add the user or a group to enabled_for of [offer.{offer.name}] in offers.toml")
    return request


def canonical_want(want: Want) -> Want:
    """"d6:00.0" -> "0000:d6:00.0", "amd" -> "1002"; what has no canonical form stays."""
    vendor, address = want.vendor, want.address
    return want._replace(vendor=vendor and VENDORS.get(vendor.lower(), vendor.lower()),
                         address=address and (canonical_address(address) or address),
                         among=tuple([canonical_address(one) or one for one in want.among]))


def canonical_address(text: str) -> Optional[PciAddress]:
    """"d6:00.0", "0000:D6:00.0" or "00000000:D6:00.0" -> "0000:d6:00.0"; None for anything else."""
    place, _, function = text.lower().rpartition(".")
    parts = place.split(":")
    if len(parts) not in (2, 3):
        return None
    domain, bus, device = ["0000", *parts][-3:]
    sizes = (len(bus), len(device), len(function))
    if sizes != (2, 2, 1) or not 4 <= len(domain) <= 8 or not all(map(is_hex, (domain, bus, device, function))):
        return None
    if int(device, 16) > 31 or int(function, 16) > 7:
        return None
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def is_hex(text: str) -> bool:
    """Lower-case hexadecimal digits and nothing else."""
    return text != "" and not text.strip("0123456789abcdef")


def want_problems(want: Want) -> Found:
    """What is wrong with one want, as (field, text); field "" is the want as a whole."""
    if want._replace(cards=1) == Want():
        yield "", "asks for nothing: give a profile, mechanism, vendor, model, fb_mib or address"
    for field in ("profile", "mechanism", "vendor", "model", "address"):
        value = getattr(want, field)
        if value is not None and not is_text(value):
            yield field, f"{shown(value)} is not 1 to {TEXT_LIMIT} printable characters"
            return
    if want.mechanism is not None:
        yield from word_problems("mechanism", want.mechanism, MECHANISMS)
    if want.vendor is not None and not _is_vendor(want.vendor):
        yield "vendor", f"{shown(want.vendor)} is neither an id of four hex digits nor one of {', '.join(VENDORS)}"
    if want.fb_mib is not None:
        yield from number_problems("fb_mib", want.fb_mib, 1, MAX_FB_MIB)
    yield from number_problems("cards", want.cards, 1, MAX_CARDS)
    if want.address is not None and canonical_address(want.address) is None:
        yield "address", f"{shown(want.address)} is not like 0000:41:00.0"
    elif want.address is not None and want.cards != 1:
        yield "cards", f"{want.cards}: an address is one card"
    for address in want.among:
        if canonical_address(address) is None:
            yield "among", f"{shown(address)} is not like 0000:41:00.0"


def wish_problems(numa: str, close: str, cpu: str) -> Found:
    yield from word_problems("numa", numa, STRICT)
    yield from word_problems("close", close, STRICT)
    yield from word_problems("cpu", cpu, CPU_MODES)


def word_problems(field: str, word: str, words: tuple[str, ...]) -> Found:
    if word not in words:
        yield field, f"{shown(word)} is not one of {', '.join(words)}"


def number_problems(field: str, number: int, low: int, high: int) -> Found:
    if not low <= number <= high:
        yield field, f"{shown(number)} is not between {low} and {high}"


def _problems(request: Request) -> Found:
    yield from _vm_problems(request.vm)
    yield from number_problems("number of wants", len(request.wants), 1, MAX_WANTS)
    for number, want in enumerate(request.wants[:MAX_WANTS]):
        for field, text in want_problems(want):
            yield f"wants[{number}]" + (field and "." + field), text
    yield from wish_problems(request.numa, request.close, request.cpu)
    yield from _guest_problems(request.guest)
    yield from _uuid_problems(request)


def _vm_problems(vm: Vm) -> Found:
    if not is_text(vm.id) or "/" in vm.id or vm.id in (".", ".."):
        yield "vm.id", f"expected 1 to {TEXT_LIMIT} printable characters without '/'"
    if vm.user is not None and not is_text(vm.user):
        yield "vm.user", f"{shown(vm.user)} is not 1 to {TEXT_LIMIT} printable characters"
    if len(vm.groups) > MAX_GROUPS or not all(map(is_text, vm.groups)):
        yield "vm.groups", f"expected at most {MAX_GROUPS} names of 1 to {TEXT_LIMIT} printable characters"


def _uuid_problems(request: Request) -> Found:
    if request.uuids and len(request.uuids) != sum(want.cards for want in request.wants):
        yield "uuids", "expected one, or none, for each device"
    for uuid in request.uuids:
        if uuid is not None and ([*map(len, uuid.split("-"))] != UUID or not is_hex(uuid.replace("-", ""))):
            yield "uuids", f"{shown(uuid)} is no UUID in lower case"


def _guest_problems(guest: tuple[GuestNode, ...]) -> Found:
    yield from number_problems("number of guest nodes", len(guest), 0, MAX_GUEST_NODES)
    vcpus: set[int] = set()
    for number, node in enumerate(guest[:MAX_GUEST_NODES]):
        for field, text in _node_problems(node):
            yield f"guest[{number}].{field}", text
        if vcpus.intersection(node.vcpus):
            yield f"guest[{number}].vcpus", "a vCPU of another node"
        vcpus.update(node.vcpus)
    if len({node.id for node in guest}) != len(guest):
        yield "guest", "two nodes with one id"


def _node_problems(node: GuestNode) -> Found:
    yield from number_problems("id", node.id, 0, MAX_GUEST_NODES - 1)
    if not _all_within(node.vcpus, MAX_VCPUS - 1) or len(set(node.vcpus)) != len(node.vcpus):
        yield "vcpus", f"expected different numbers between 0 and {MAX_VCPUS - 1}"
    yield from number_problems("mem_mib", node.mem_mib, 0, MAX_MEM_MIB)
    if node.page_kib is not None and node.page_kib not in PAGES_KIB:
        yield "page_kib", f"{shown(node.page_kib)} is not one of {', '.join(map(str, PAGES_KIB))}"
    for vcpu, cpus in node.pinned or ():
        if vcpu not in node.vcpus or not cpus or not _all_within(cpus, MAX_CPU):
            yield "pinned", f"vCPU {shown(vcpu)}: expected a vCPU of the node, with CPUs between 0 and {MAX_CPU}"
            return
    if not _all_within(node.bound or (), MAX_NODES - 1):
        yield "bound", f"expected host nodes between 0 and {MAX_NODES - 1}"


def _all_within(numbers: tuple[int, ...], high: int) -> bool:
    return all(0 <= number <= high for number in numbers)


def _is_vendor(text: str) -> bool:
    return text.lower() in VENDORS or len(text) == 4 and is_hex(text.lower())


def is_text(text: str) -> bool:
    """One line that a message, a log and the ledger can show."""
    return 0 < len(text) <= TEXT_LIMIT and text.isprintable()


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
