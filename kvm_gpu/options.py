"""The command line: one table of verbs and options, a small parser for a VM start, argparse for the rest.

`parse` reads a regular command line by the table alone. Help, and the message for anything irregular, come
from argparse built from the same table: importing it would cost every VM start 7 ms.
"""
from __future__ import annotations

from kvm_gpu.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from typing import Final, NamedTuple, NoReturn, Optional
else:
    from kvm_gpu.light import NamedTuple


class Option(NamedTuple):
    name: str
    value: Optional[str]            # what help calls its value; None: a flag
    help: str
    many: bool = False              # may be given more than once
    number: bool = False
    words: tuple[str, ...] = ()     # the only values it takes; empty: any
    needed: bool = False


class Operand(NamedTuple):
    name: str
    help: str


class Verb(NamedTuple):
    name: str
    help: str
    options: tuple[Option, ...] = ()
    operands: tuple[Operand, ...] = ()


class Arguments(NamedTuple):
    """A command line as it was read. An option or operand that is absent has no entry in `given`."""
    verb: str
    given: dict[str, tuple[str, ...]]

    def flag(self, name: str) -> bool:
        return name in self.given

    def text(self, name: str) -> Optional[str]:
        return self.given[name][0] if name in self.given else None

    def number(self, name: str) -> Optional[int]:
        return int(self.given[name][0]) if name in self.given else None

    def texts(self, name: str) -> tuple[str, ...]:
        return self.given.get(name, ())


# ---- the table -------------------------------------------------------------------------------------

STRICT: Final = ("required", "preferred", "none")

GLOBAL: Final = (
    Option("--root", "DIR", "find /sys, /proc, /run, /dev, /etc and /var below DIR (also: KVM_GPU_ROOT)"),
    Option("--state", "DIR", "folder of the ledger (default: /var/lib/kvm-gpu)"),
    Option("--config", "DIR", "folder of the configuration (default: /etc/kvm-gpu)"),
    Option("--json", None, "answer with one JSON object; errors are JSON on stderr"),
)
WISHES: Final = (
    Option("--offer", "NAME", "what the operator sells under this name"),
    Option("--profile", "NAME", "profile, or its type id: A16-4Q, flex170-vf, rtx6000, 713"),
    Option("--mechanism", "KIND", "whole, vf, mdev, nvidia_vfio, or mig for a profile on a MIG instance"),
    Option("--vendor", "NAME", "vendor by name or PCI id"),
    Option("--model", "NAME", "model as `inventory` names it"),
    Option("--fb-mib", "MIB", "frame buffer of at least MIB", number=True),
    Option("--cards", "N", "number of devices (default: 1)", number=True),
    Option("--numa", "HOW", "card, CPUs and memory on one node: required, preferred (default), none", words=STRICT),
    Option("--close", "HOW", "several cards close together: required, preferred (default), none", words=STRICT),
    Option("--cpu", "MODE", "dedicated, shared, none (default)", words=("dedicated", "shared", "none")),
    Option("--keep", None, "hold the slot while the VM is stopped"),
)
REQUEST: Final = (
    Option("--vm", "ID", "domain name (libvirt, OpenNebula) or vmid (Proxmox)"),
    Option("--user", "NAME", "owner of the VM"),
    Option("--group", "NAME", "group of the owner; may be repeated", many=True),
    *WISHES,
    Option("--request", "FILE", "the whole request as TOML or JSON, instead of the options above; - is stdin"),
)
RELEASE: Final = (
    Option("--vm", "ID", "whose claim", needed=True),
    Option("--claim", "ID", "this claim alone; nothing happens if the VM has another one by now"),
    Option("--force", None, "also what a stopped VM keeps, and though the kernel refuses; never from a running VM"),
)
BOARD: Final = (Operand("BOARD", "PCI address of the board, as `inventory` names it"),)

VERBS: Final = {verb.name: verb for verb in (
    Verb("inventory", "the boards and NUMA nodes of this host"),
    Verb("capacity", "what can be given: total, taken, free, sellable"),
    Verb("explain", "what `claim` would decide, and why; changes nothing", REQUEST),
    Verb("claim", "take devices, CPUs and memory for a VM and make the devices ready", REQUEST),
    Verb("inject", "claim for the domain XML on stdin; the finished XML on stdout", REQUEST),
    Verb("release", "give back what a VM holds", RELEASE),
    Verb("list", "the claims"),
    Verb("show", "all that one VM holds", operands=(Operand("VM", "its id"),)),
    Verb("reconcile", "compare the ledger with kernel and running VMs, free what nobody holds"),
    Verb("cordon", "give no new VM a place on a board", (Option("--why", "TEXT", "reason, for the others"),), BOARD),
    Verb("uncordon", "end a cordon", operands=BOARD),
    Verb("events", "what happened, newest last", (Option("--limit", "N", "at most N (default: 50)", number=True),)),
    Verb("demo", "a tour on a bundled machine; needs no GPU and changes nothing"),
)}


# ---- the usual way ---------------------------------------------------------------------------------

def parse(argv: list[str]) -> Arguments:
    """The command line `argv`. Raises RequestError; SystemExit after --help."""
    try:
        "".join(argv).encode()
    except UnicodeEncodeError:
        raise RequestError("the command line is not UTF-8") from None
    return quick(argv) or careful(argv)


def quick(argv: list[str]) -> Optional[Arguments]:
    """A regular command line; None where argparse has to say something."""
    verb: Optional[Verb] = None
    known = {option.name: option for option in GLOBAL}
    given: dict[str, tuple[str, ...]] = {}
    operands: list[str] = []
    words = iter(argv)
    for word in words:
        if word.startswith("-"):
            if not _take(word, words, known, given):
                return None
        elif verb:
            operands.append(word)
        elif word in VERBS:
            verb = VERBS[word]
            known.update((option.name, option) for option in verb.options)
        else:
            return None
    return _complete(verb, given, operands)


def _take(word: str, words: Iterator[str], known: dict[str, Option], given: dict[str, tuple[str, ...]]) -> bool:
    """Put one option with its value into `given`; False where it is not regular."""
    name, equals, value = word.partition("=")
    option = known.get(name)
    if option is None or (equals and option.value is None):
        return False
    if option.value is not None and not equals:
        value = next(words, "--")
        if value.startswith("-") and value != "-":
            return False
    if (option.words and value not in option.words) or (option.number and not is_number(value)):
        return False
    given[name] = (given.get(name, ()) if option.many else ()) + (value,)
    return True


def _complete(verb: Optional[Verb], given: dict[str, tuple[str, ...]], operands: list[str]) -> Optional[Arguments]:
    if verb is None or len(operands) != len(verb.operands):
        return None
    if any(option.needed and option.name not in given for option in verb.options):
        return None
    for operand, word in zip(verb.operands, operands, strict=True):
        given[operand.name] = (word,)
    return Arguments(verb.name, given)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


# ---- the irregular way -----------------------------------------------------------------------------

def careful(argv: list[str]) -> Arguments:
    """The same by argparse, whose messages are worth its price. Raises RequestError; SystemExit after --help."""
    found = vars(_parser().parse_args(argv))
    verb = found.pop("verb")
    return Arguments(verb, {name: tuple(value) if isinstance(value, list) else (value,)
                            for name, value in found.items()})


def _parser() -> ArgumentParser:
    from argparse import ArgumentParser

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise RequestError(message, f"{self.prog} --help")

    parser = Parser("kvm-gpu", description="Shares the GPUs of a KVM host among virtual machines.", allow_abbrev=False)
    _add_options(parser, GLOBAL)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS.values():
        below = verbs.add_parser(verb.name, help=verb.help, description=verb.help, allow_abbrev=False)
        for operand in verb.operands:
            below.add_argument(operand.name, help=operand.help)
        _add_options(below, GLOBAL + verb.options)
    return parser


def _add_options(parser: ArgumentParser, options: tuple[Option, ...]) -> None:
    from argparse import SUPPRESS

    for option in options:
        if option.value is None:
            parser.add_argument(option.name, dest=option.name, help=option.help,
                                action="store_const", const="", default=SUPPRESS)
        else:
            parser.add_argument(option.name, dest=option.name, help=option.help, metavar=option.value,
                                action="append" if option.many else "store", choices=option.words or None,
                                type=_number if option.number else str, required=option.needed, default=SUPPRESS)


def _number(text: str) -> str:
    from argparse import ArgumentTypeError

    if not is_number(text):
        raise ArgumentTypeError(f"{text!r} is not a number")
    return text
