"""VM templates that ask for a GPU, made from templates/opennebula: with the sizes that the fleet has, and scheduled by
what the hosts' probes say."""
from __future__ import annotations

from pathlib import Path
from sysconfig import get_path
from typing import Any, Final, NamedTuple

from kvm_gpu.errors import HostError, RequestError
from kvm_gpu.request import MAX_CARDS, STRICT, number_problems, word_problems
from one_gpu_driver import pcislots
from one_gpu_driver.probe import attribute_name

KINDS: Final = ("sizes", "size", "offer", "slot")
PLACES: Final = (Path(__file__).parents[1] / "templates", Path(get_path("data")) / "share/kvm-gpu/templates",
                 Path("/usr/share/kvm-gpu/templates"))
ENDS_LIST: Final = frozenset("|,'")         # what Sunstone's lists and an XPath literal end with


class Wish(NamedTuple):
    """What a template is made of. None is left out: an existing template keeps its own."""
    profile: str | None = None
    offer: str | None = None
    cards: int = 1
    numa: str = "preferred"
    close: str = "preferred"
    sizes: tuple[str, ...] = ()
    cpu: str | None = None
    vcpus: int | None = None
    memory_mib: int | None = None


def render(kind: str, wish: Wish) -> str:
    """In oned's template syntax, without NAME. Raises RequestError, HostError where Jinja2 is not installed."""
    problems = list(_problems(kind, wish))
    if problems:
        raise RequestError(f"template {kind}: " + "; ".join(problems))
    return fill(kind, **wish._asdict())


def fill(template: str, **values: Any) -> str:
    """The text of templates/opennebula/TEMPLATE.j2, with every value safe within double quotes. Raises RequestError,
    HostError."""
    try:
        import jinja2
    except ImportError:
        raise HostError("the Python package jinja2 is not installed", "apt install python3-jinja2") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([place / "opennebula" for place in PLACES]), undefined=jinja2.StrictUndefined,
        finalize=_value, keep_trailing_newline=True, trim_blocks=True,
        autoescape=False)   # noqa: S701  # not HTML: _value escapes what oned's syntax needs
    environment.filters.update(attribute_name=attribute_name, slot_device=pcislots.number)
    environment.globals.update(slot_vendor=pcislots.VENDOR, slot_class=pcislots.CLASS)
    return environment.get_template(template + ".j2").render(values)


def _problems(kind: str, wish: Wish) -> Any:
    if kind == "sizes" and not wish.sizes:
        yield "no host has a GPU to give: see one-gpu fleet"
    for size in wish.sizes if kind == "sizes" else ():
        if ENDS_LIST.intersection(size):
            yield f"{size!r} cannot stand in a list: it has one of {' '.join(sorted(ENDS_LIST))}"
    if kind != "sizes" and wish.profile is None:
        yield "give --profile, the size by which it is scheduled"
    if kind == "offer" and wish.offer is None:
        yield "give --offer"
    for field, text in (*number_problems("cards", wish.cards, 1, MAX_CARDS), *word_problems("numa", wish.numa, STRICT),
                        *word_problems("close", wish.close, STRICT)):
        yield f"{field}: {text}"


def _value(value: Any) -> Any:
    """A value between double quotes. Source: src/parsers/template_parser.l."""
    if not isinstance(value, str):
        return value
    if not value.isprintable() or value.endswith("\\"):
        raise RequestError(f"{value!r} cannot stand in a template")
    return value.replace('"', '\\"')
