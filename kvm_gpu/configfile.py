"""Strict reading of the configuration's TOML files. Cold path: config.py imports it when a file changed."""
from __future__ import annotations

import tomllib
from itertools import pairwise

from kvm_gpu import tomllines
from kvm_gpu.cpulist import parse_cpus
from kvm_gpu.errors import HostError
from kvm_gpu.model import CardLayout, Config, HostLayout, Offer, Policy, Want
from kvm_gpu.request import (
    CPU_MODES,
    MAX_CARDS,
    MAX_FB_MIB,
    STRICT,
    canonical_address,
    canonical_want,
    is_hex,
    shown,
    want_problems,
)
from kvm_gpu.strict import Table, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final, Optional, TypeVar

    from kvm_gpu.model import Order, Stamp
    from kvm_gpu.strict import Path

    Read = TypeVar("Read")

ORDERS: Final[tuple[Order, ...]] = ("pack", "spread", "keep-whole")
FILES: Final = ("config.toml", "offers.toml")
ADAPTERS: Final = ("opennebula.toml",)      # each read by its adapter
MAX_DEADLINE_S: Final = 86400
MAX_HELD_BACK: Final = 4096
NAME_LIMIT: Final = 64
NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.+")     # what a Proxmox tag may hold


def read(stamp: Stamp) -> Config:
    """The configuration in the files that `stamp` names. Raises HostError that tells every problem of every file."""
    complaints: list[str] = []
    config = Config(stamp=stamp)
    layouts: list[HostLayout] = []
    for path, *_ in stamp:
        folder, _, name = path.rpartition("/")
        if folder.endswith("/layouts"):
            layouts.extend(_checked(path, _layouts, complaints) or ())
        elif name == "config.toml":
            config = config._replace(**_checked(path, _settings, complaints) or {})
        elif name == "offers.toml":
            config = config._replace(offers=_checked(path, _offers, complaints) or ())
        elif name not in ADAPTERS:
            complaints.append(f"{path}: unknown file{did_you_mean(name, FILES + ADAPTERS)}")
    layouts.sort(key=lambda layout: layout.name)
    twice = [one.name for one, other in pairwise(layouts) if one.name == other.name]
    complaints.extend(f"layouts: {shown(name)} is the name of two" for name in twice)
    if complaints:
        raise HostError("\n".join(complaints))
    return config._replace(layouts=tuple(layouts))


def read_file(path: str, reader: Callable[[Table], Read]) -> Read:
    """What `reader` makes of one TOML file. Raises HostError that tells every problem with its line."""
    complaints: list[str] = []
    found: Read = _checked(path, reader, complaints)
    if complaints:
        raise HostError("\n".join(complaints))
    return found


def _checked(path: str, reader: Any, complaints: list[str]) -> Any:
    """What `reader` makes of one file. Problems are added to `complaints`, each with file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        table = Table(tomllib.loads(source), [])
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        complaints.append(f"{path}: {error}")
        return None
    result = reader(table)
    table.done()
    if table.problems:
        lines = tomllines.lines(source)
        found = sorted((_line(lines, problem.path), problem.text) for problem in table.problems)
        complaints.extend(f"{path}:{line}: {text}" for line, text in found)
    return result


def _line(lines: dict[Path, int], path: Path) -> int:
    """Of the key, else of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _settings(table: Table) -> dict[str, Any]:
    policy = Policy(table.word("policy", ORDERS, "pack"), _cpu_pool(table), _devices(table), _held_back(table))
    deadline_s = table.number("release_deadline_s", 1, MAX_DEADLINE_S, Config().release_deadline_s)
    return {"policy": policy, "release_deadline_s": deadline_s}


def _cpu_pool(table: Table) -> Optional[tuple[int, ...]]:
    cpus = table.table("cpus")
    text = cpus.text("dedicated")
    cpus.done()
    try:
        return None if text is None else parse_cpus(text)
    except ValueError:
        cpus.problem(f"{shown(text)} is not a list of CPUs like '8-31,40-63'", "dedicated")
        return None


def _devices(table: Table) -> tuple[str, ...]:
    """Addresses in canonical form, patterns in lower case."""
    ours = []
    for number, text in enumerate(table.texts("devices") or ()):
        address = canonical_address(text)
        if address is None and not _is_pattern(text.lower()):
            table.problem(f"{shown(text)} is neither an address like 0000:41:00.0 nor vendor:device[:class]",
                          "devices", number)
        ours.append(address or text.lower())
    return tuple(ours)


def _is_pattern(text: str) -> bool:
    """"10de:1e30", "10de:*", "1002:*:0300"."""
    sizes = [(4,), (4,), (2, 4, 6)]
    parts = text.split(":")
    return 2 <= len(parts) <= 3 and all(part == "*" or is_hex(part) and len(part) in size
                                        for part, size in zip(parts, sizes, strict=False))


def _held_back(table: Table) -> tuple[tuple[str, int], ...]:
    held_back = table.table("hold_back")
    return tuple((profile, held_back.number(profile, 0, MAX_HELD_BACK) or 0) for profile in sorted(held_back.names()))


def _offers(table: Table) -> tuple[Offer, ...]:
    offers = table.table("offer")
    return tuple(_offer(name, offers.table(name)) for name in sorted(offers.names()))


def _offer(name: str, table: Table) -> Offer:
    if not _is_name(name):
        table.problem(f"a name has 1 to {NAME_LIMIT} lower-case letters, digits, '-', '_', '.' or '+'")
    want = Want(table.text("profile"), table.text("mechanism"), table.text("vendor"), table.text("model"),
                table.number("fb_mib", 1, MAX_FB_MIB), None, table.number("cards", 1, MAX_CARDS, 1) or 1)
    for field, text in want_problems(want):
        table.problem(text, *filter(None, [field]))
    offer = Offer(name, canonical_want(want), table.word("numa", STRICT, "preferred"),
                       table.word("close", STRICT, "preferred"), table.word("cpu", CPU_MODES, "none"),
                       table.flag("keep"), *_enabled_for(table))
    table.done()
    return offer


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_LIMIT and NAME_CHARACTERS.issuperset(text) and text[0] not in "-.+"


def _enabled_for(table: Table) -> tuple[Optional[tuple[str, ...]], Optional[tuple[str, ...]]]:
    """(users, groups): both None where the key is absent."""
    whom = table.table("enabled_for")
    users, groups = whom.texts("users"), whom.texts("groups")
    whom.done()
    if table.has("enabled_for") and not whom.names():
        table.problem("expected users or groups; leave it out to enable the offer for everyone", "enabled_for")
    return users, groups


def _layouts(table: Table) -> tuple[HostLayout, ...]:
    name = table.text("name")
    if name is None:
        table.problem("expected the layout's name", "name")
    cards = tuple(map(_card, table.tables("card")))
    if not cards:
        table.problem("expected at least one [[card]]", "card")
    return (HostLayout(name or "", cards),)


def _card(table: Table) -> CardLayout:
    address, model, profiles = table.text("address"), table.text("model"), table.texts("profiles")
    if (address is None) == (model is None):
        table.problem("expected either address or model")
    elif address is not None and canonical_address(address) is None:
        table.problem(f"{shown(address)} is not like 0000:41:00.0", "address")
    if not profiles:
        table.problem("expected a list of profiles", "profiles")
    table.done()
    return CardLayout(address and canonical_address(address), model, profiles or ())
