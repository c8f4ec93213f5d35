"""A request as a file (`--request FILE`), TOML or JSON. Hostile input: sizes and depth are limited before parsing.

    {"vm": {"id": "one-42", "user": "ann", "groups": ["staff"]},
     "wants": [{"profile": "A16-4Q", "cards": 2}], "numa": "required",
     "guest": [{"id": 0, "vcpus": [0, 1], "mem_mib": 8192, "page_kib": 1048576}]}

`offer` stands in place of wants, numa, close, cpu and keep. The fields are those of model.py. Cold path.
"""
from __future__ import annotations

from kvm_gpu.errors import RequestError
from kvm_gpu.model import GuestNode, Request, Vm, Want
from kvm_gpu.request import CPU_MODES, STRICT, check, from_offer, shown
from kvm_gpu.strict import Table, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Optional

    from kvm_gpu.model import Offer

LIMIT: Final = 1 << 20
DEPTH: Final = 16
HUGE: Final = 1 << 62
WISHES: Final = ("wants", "numa", "close", "cpu", "keep")


def parse(text: bytes, name: str, offers: tuple[Offer, ...] = ()) -> Request:
    """The checked request in a file called `name`. Raises RequestError that names every wrong field by its path
    ("wants[0].cards: ..."), OwnershipError where the offer is not for this VM's owner."""
    if len(text) > LIMIT:
        raise RequestError(f"{name}: larger than {LIMIT} bytes")
    try:
        table = Table(_parsed(text.decode("utf-8")), [])
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestError(f"{name}: {reason}") from None
    vm, guest, wished = _vm(table.table("vm")), _guest(table), _wished(table)
    sold = _sold(table, offers)
    table.done()
    if table.problems:
        raise RequestError("\n".join(f"{name}: {problem.text}" for problem in table.problems))
    request = wished if sold is None else from_offer(sold, vm)
    return check(request._replace(vm=vm, guest=guest))


def _parsed(text: str) -> dict[str, Any]:
    """Raises ValueError, RecursionError."""
    return _json(text) if text.lstrip()[:1] == "{" else _toml(text)


def _json(text: str) -> dict[str, Any]:
    import json
    table: dict[str, Any] = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    return table


def _toml(text: str) -> dict[str, Any]:
    """tomllib's time grows with the square of a key's depth, so the depth is counted before."""
    import tomllib

    from kvm_gpu.tomllines import depth
    if depth(text) > DEPTH:
        raise ValueError(f"nested more than {DEPTH} levels")
    return tomllib.loads(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a later key win silently; here that is an error."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one table")
    return table


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _vm(table: Table) -> Vm:
    identity = table.text("id")
    if identity is None:
        table.problem("expected the VM's id", "id")
    vm = Vm(identity or "", table.text("user"), table.texts("groups") or ())
    table.done()
    return vm


def _wished(table: Table) -> Request:
    wants = tuple(map(_want, table.tables("wants")))
    return Request(Vm(""), wants, (), table.word("numa", STRICT, "preferred"), table.word("close", STRICT, "preferred"),
                   table.word("cpu", CPU_MODES, "none"), table.flag("keep"), table.texts("uuids") or ())


def _want(table: Table) -> Want:
    want = Want(table.text("profile"), table.text("mechanism"), table.text("vendor"), table.text("model"),
                _number(table, "fb_mib"), table.text("address"), table.number("cards", -HUGE, HUGE, 1) or 0,
                table.texts("among") or ())
    table.done()
    return want


def _number(table: Table, key: str) -> Optional[int]:
    return table.number(key, -HUGE, HUGE)


def _guest(table: Table) -> tuple[GuestNode, ...]:
    return tuple(_guest_node(node) for node in table.tables("guest"))


def _guest_node(table: Table) -> GuestNode:
    number, mem_mib = _number(table, "id"), _number(table, "mem_mib")
    for key, value in (("id", number), ("mem_mib", mem_mib)):
        if value is None:
            table.problem("expected a number", key)
    node = GuestNode(number or 0, table.numbers("vcpus") or (), mem_mib or 0, _number(table, "page_kib"),
                     _pins(table), table.numbers("bound"))
    table.done()
    return node


def _pins(table: Table) -> Optional[tuple[tuple[int, tuple[int, ...]], ...]]:
    """[[vcpu, [cpu, ...]], ...]"""
    pins = table.items("pinned")
    if not all(map(_is_pin, pins)):
        table.problem("expected a list of [vCPU, [host CPUs]]", "pinned")
        return None
    return tuple((vcpu, tuple(cpus)) for vcpu, cpus in pins) if table.has("pinned") else None


def _is_pin(pin: Any) -> bool:
    return (type(pin) is list and len(pin) == 2 and type(pin[0]) is int and type(pin[1]) is list
            and all(type(cpu) is int for cpu in pin[1]))


def _sold(table: Table, offers: tuple[Offer, ...]) -> Optional[Offer]:
    """The offer that the file names, None where it names none."""
    name = table.text("offer")
    if name is not None and any(map(table.has, WISHES)):
        table.problem(f"stands alone: leave out {', '.join(filter(table.has, WISHES))}", "offer")
    found = next((offer for offer in offers if offer.name == name), None)
    if name is not None and found is None:
        near = did_you_mean(name, [offer.name for offer in offers])
        table.problem(f"no offer is called {shown(name)}{near}", "offer")
    return found
