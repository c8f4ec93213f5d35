"""What a VM of OpenNebula asks for, as a Request.

    GPU = [ OFFER = "vdi-light" ]                         what the operator sells under this name
    GPU = [ PROFILE = "A16-4Q", CARDS = "2" ]             several of these vectors may be given
    GPU_PROFILE = "A16-4Q"                                the same for one, as Sunstone's lists set it
    PCI = [ ... ]                                         a device that oned chose: adopted if it is one of ours
                                                          a GPU slot that oned chose: its size (pcislots.py)
    GPU = [ NUMA = "required" ]                           beside PCI: how, since PCI says what
"""
from __future__ import annotations

from kvm_gpu.errors import RequestError
from kvm_gpu.model import Request, Vm, Want
from kvm_gpu.request import CPU_MODES, STRICT, check, from_offer, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final, Optional

    from kvm_gpu.model import Board, Host, Offer
    from one_gpu_driver.vmxml import Card, Vector, VmXml

    Wishes = dict[str, str]         # numa, close and cpu, those that are stated

WISHES: Final[dict[str, tuple[str, ...]]] = {"NUMA": STRICT, "CLOSE": STRICT, "CPU": CPU_MODES}
SAYING_WHAT: Final = ("OFFER", "PROFILE", "MECHANISM", "VENDOR", "MODEL", "FB_MIB")
KNOWN: Final = (*SAYING_WHAT, "CARDS", *WISHES, "KEEP")
YES_NO: Final = ("yes", "no")
LEGACY: Final = ("", "legacy")      # MDEV_MODE of devices that get an mdev; their PROFILE is a folder's name


def wanted(
    vm: VmXml, offers: tuple[Offer, ...], cards: tuple[Card, ...], sizes: tuple[str, ...] = (),
) -> Optional[Request]:
    """The request, without the guest's CPUs and memory; None where nothing is asked of us. The adopted `cards`, then
    the `sizes` of GPU slots come first: their places in the guest are given. Raises RequestError, OwnershipError where
    an offer is not for this owner."""
    who = Vm(vm.name, vm.user, (vm.group,))
    given = (*map(_adoption, cards), *map(Want, sizes))
    asked = [_asked(vector, who, offers, bool(given)) for vector in _vectors(vm)]
    wants = given + tuple(want for request, _ in asked for want in request.wants)
    if not wants:
        return None
    wishes = _agreed([stated for _, stated in asked])
    return check(Request(who, wants, **wishes))


def adopted(vm: VmXml, host: Host) -> tuple[Card, ...]:
    """The PCI devices of the VM that are ours to give. oned gives the functions of a card one by one."""
    found: dict[str, Card] = {}
    for pci in vm.pci:
        board = next((board for board in host.boards if pci.address in _addresses(board)), None)
        if board is not None:
            own = {function.address for function in board.functions}
            card = board.address if pci.address in own else pci.address
            found[card] = (*found.get(card, ()), pci)
    return tuple(found.values())


# ---- the vectors -----------------------------------------------------------------------------------

def _vectors(vm: VmXml) -> tuple[Vector, ...]:
    if vm.gpus and vm.flat:
        raise RequestError(f"GPU=[...] and GPU_{min(vm.flat)} at once: ask in one of the two ways")
    return vm.gpus or ((vm.flat,) if vm.flat else ())


def _asked(vector: Vector, who: Vm, offers: tuple[Offer, ...], beside: bool) -> tuple[Request, Wishes]:
    """The request of one vector, and the wishes that it states. `beside` others of the VM it may say only how."""
    unknown = sorted(vector.keys() - set(KNOWN))
    if unknown:
        raise RequestError(f"GPU: {shown(', '.join(unknown))[1:-1]} not known; known are {', '.join(KNOWN)}")
    asked = _sold(vector, who, offers) if "OFFER" in vector else _described(vector, who, beside)
    if asked[0].keep:       # nothing calls us when such a VM is terminated: what it keeps would stay kept
        raise RequestError("GPU: none is kept for a VM that is off: OpenNebula does not tell us when such a VM ends",
                           "a PCI device that oned chose stays with its VM")
    return asked


def _sold(vector: Vector, who: Vm, offers: tuple[Offer, ...]) -> tuple[Request, Wishes]:
    others = sorted(vector.keys() - {"OFFER"})
    if others:
        raise RequestError(f"GPU: an OFFER stands alone; leave out {', '.join(others)}")
    for offer in offers:
        if offer.name == vector["OFFER"]:
            request = from_offer(offer, who)
            return request, {"numa": request.numa, "close": request.close, "cpu": request.cpu}
    raise RequestError(f"GPU: no offer {shown(vector['OFFER'])} on this host",
                       f"offers: {', '.join(offer.name for offer in offers) or 'none'}")


def _described(vector: Vector, who: Vm, beside: bool) -> tuple[Request, Wishes]:
    wants = () if beside and vector.keys() <= WISHES.keys() else (_want(vector),)
    wishes = {name.lower(): _word(vector, name, words) for name, words in WISHES.items() if name in vector}
    return Request(who, wants, keep="KEEP" in vector and _word(vector, "KEEP", YES_NO) == "yes"), wishes


def _want(vector: Vector) -> Want:
    if vector.keys().isdisjoint(SAYING_WHAT):
        raise RequestError(f"GPU: says how, not what: give one of {', '.join(SAYING_WHAT)}")
    return Want(vector.get("PROFILE"), vector.get("MECHANISM"), vector.get("VENDOR"), vector.get("MODEL"),
                _number(vector, "FB_MIB"), cards=_number(vector, "CARDS") or 1)


def _number(vector: Vector, name: str) -> Optional[int]:
    text = vector.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise RequestError(f"GPU: {name} = {shown(text)} is not a number above 0")
    return None if text is None else int(text)


def _word(vector: Vector, name: str, words: tuple[str, ...]) -> str:
    word = vector[name].lower()
    if word not in words:
        raise RequestError(f"GPU: {name} = {shown(vector[name])} is not one of {', '.join(words)}")
    return word


def _agreed(stated: list[Wishes]) -> dict[str, Any]:
    """The wishes of the whole request: a VM has one set of CPUs, so its vectors must not differ."""
    wishes: Wishes = {}
    for name, word in (pair for words in stated for pair in words.items()):
        if wishes.setdefault(name, word) != word:
            raise RequestError(f"GPU: {name.upper()} is {wishes[name]} in one vector and {word} in another")
    return wishes


# ---- devices that oned chose -----------------------------------------------------------------------

def _adoption(card: Card) -> Want:
    """"nvidia-699" and "1150 (NVIDIA H100L-4-48C)" both begin with what the kernel calls the type."""
    pci = card[0]
    word = pci.profile.split()[0] if pci.profile else None
    if word is not None and pci.uuid and (pci.mdev_mode or "").lower() in LEGACY:
        word = word.rpartition("-")[2]
    return Want(profile=word, address=pci.address)


def _addresses(board: Board) -> Iterator[str]:
    """All by which oned may know a part of the board."""
    yield board.address
    yield from (function.address for function in board.functions)
    for layout in board.layouts:
        for slot in layout.slots:
            yield slot.path.rpartition("/")[2]
            yield from slot.functions
