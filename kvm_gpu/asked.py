"""The request of a command line: by options, by the name of an offer, or from a file."""
from __future__ import annotations

from kvm_gpu.errors import RequestError
from kvm_gpu.model import Request, Vm, Want
from kvm_gpu.options import WISHES
from kvm_gpu.request import check, from_offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from kvm_gpu.model import Config
    from kvm_gpu.options import Arguments

LIMIT: Final = 1 << 20      # bytes of a request or a domain XML; one more is read, so that its parser sees the excess
WHO: Final = ("--vm", "--user", "--group")


def request(config: Config, given: Arguments) -> Request:
    """What is asked for, without the guest's CPUs and memory unless a file tells them. Raises RequestError,
    OwnershipError where an offer is not for this owner."""
    name, vm, offer = given.text("--request"), given.text("--vm"), given.text("--offer")
    if name is not None:
        return _from_file(config, name, given)
    if vm is None:
        raise RequestError(f"{given.verb}: which VM?", "--vm ID, or --request FILE")
    who = Vm(vm, given.text("--user"), given.texts("--group"))
    return _from_options(who, given) if offer is None else _from_offer(config, who, offer, given)


def read(name: str) -> bytes:
    """The file, or stdin for "-", up to one byte beyond LIMIT. Raises RequestError."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            return file.read(LIMIT + 1)
    except OSError as error:
        raise RequestError(f"{name}: {error.strerror}") from None


def _from_file(config: Config, name: str, given: Arguments) -> Request:
    from kvm_gpu import requestfile

    _alone("--request", given, *WHO, *(wish.name for wish in WISHES))
    return requestfile.parse(read(name), "stdin" if name == "-" else name, config.offers)


def _from_offer(config: Config, who: Vm, name: str, given: Arguments) -> Request:
    _alone("--offer", given, *(wish.name for wish in WISHES if wish.name != "--offer"))
    for offer in config.offers:
        if offer.name == name:
            return from_offer(offer, who)
    known = ", ".join(offer.name for offer in config.offers)
    raise RequestError(f"VM {who.id}: no offer {name!r} on this host", f"offers: {known or 'none'}")


def _from_options(who: Vm, given: Arguments) -> Request:
    cards = given.number("--cards")
    want = Want(given.text("--profile"), given.text("--mechanism"), given.text("--vendor"), given.text("--model"),
                given.number("--fb-mib"), cards=1 if cards is None else cards)
    numa, close, cpu = given.text("--numa"), given.text("--close"), given.text("--cpu")
    return check(Request(who, (want,), (), numa or "preferred", close or "preferred",  # type: ignore[arg-type]
                         cpu or "none", given.flag("--keep")))      # type: ignore[arg-type]  # words of the table


def _alone(name: str, given: Arguments, *others: str) -> None:
    clash = [other for other in others if given.flag(other)]
    if clash:
        raise RequestError(f"{name} says it all; not together with {', '.join(clash)}")
