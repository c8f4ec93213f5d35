"""What `--json` prints: one object a line, format "kvm-gpu/1". Fields may be added to it, none renamed or removed.

Names and units are those of model.py; unknown is null; times are seconds since 1970.
"""
from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from kvm_gpu.capacity import Row
    from kvm_gpu.errors import GpuError
    from kvm_gpu.ledgerrows import Claim, Event
    from kvm_gpu.model import Action, Decision, Device, Host, Refusal, Request, Use

FORMAT: Final = "kvm-gpu/1"


def inventory(host: Host) -> str:
    return _line(nodes=_plain(host.nodes), boards=_plain(host.boards))


def capacity(rows: tuple[Row, ...]) -> str:
    return _line(rows=_plain(rows))


def decision(made: Decision) -> str:
    """The answer of `explain` and `claim`: placed, or refused with the reason of each candidate."""
    if made.refusal:
        return refused(made.request, made.refusal)
    assert made.placement
    nodes = {board.address: board.numa_node for board in made.host.boards}
    return _line(
        vm=made.request.vm.id, owner=made.request.vm.user, claim=made.claim, decision="placed",
        slots=[{**_slot(device), "numa_node": nodes.get(device.hold.board)} for device in made.placement.devices],
        cpus=_cpus(made.placement.uses), memory=_memory(made.placement.uses),
        warnings=list(made.placement.warnings), reasons=[], hint="", actions=_actions(made.actions))


def refused(request: Request, refusal: Refusal) -> str:
    return _line(
        vm=request.vm.id, owner=request.vm.user, claim=None, decision="refused", slots=[], cpus=[], memory=[],
        warnings=[], reasons=_plain(refusal.reasons), hint=refusal.hint, actions=[])


def claims(held: Iterable[tuple[Claim, tuple[Device, ...]]]) -> str:
    return _line(claims=[_claim(claim, devices) for claim, devices in held])


def show(claim: Claim, devices: tuple[Device, ...], uses: tuple[Use, ...], actions: tuple[Action, ...]) -> str:
    return _line(**_claim(claim, devices), cpus=_cpus(uses), memory=_memory(uses), actions=_actions(actions))


def events(happened: tuple[Event, ...]) -> str:
    return _line(events=_plain(happened))


def done(sentences: tuple[str, ...]) -> str:
    """The answer of a verb that has acted: one sentence for each thing done, none where there was nothing to do."""
    return _line(done=list(sentences))


def error(failure: GpuError) -> str:
    """For stderr."""
    told = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    return json.dumps({"error": told}) + "\n"


# ---- parts -----------------------------------------------------------------------------------------

def _line(**fields: object) -> str:
    return json.dumps({"format": FORMAT, **fields}) + "\n"


def _plain(value: object) -> object:
    """Named tuples as objects, tuples as lists, all the way down."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        parts = [_plain(part) for part in value]
        return dict(zip(fields, parts, strict=True)) if fields else parts
    return value


def _claim(claim: Claim, devices: tuple[Device, ...]) -> dict[str, object]:
    return {"claim": claim.id, "vm": claim.vm, "owner": claim.user, "state": claim.state, "keep": claim.keep,
            "slots": [_slot(device) for device in devices],
            "since": claim.since, "verified_at": claim.verified_at, "note": claim.note}


def _slot(device: Device) -> dict[str, object]:
    return {"board": device.hold.board, "slot": device.hold.slot, "mechanism": device.mechanism,
            "profile": device.hold.profile, "uuid": device.uuid}


def _cpus(uses: tuple[Use, ...]) -> list[dict[str, object]]:
    return [{"guest_node": use.guest_node, "host_node": use.node, "vcpu": vcpu, "pcpus": list(cpus)}
            for use in uses for vcpu, cpus in use.pins]


def _memory(uses: tuple[Use, ...]) -> list[dict[str, object]]:
    return [{"guest_node": use.guest_node, "host_node": use.node, "mib": use.mib, "page_kib": use.page_kib}
            for use in uses]


def _actions(actions: tuple[Action, ...]) -> list[dict[str, object]]:
    return [{"action": type(action).__name__.lower(), **dict(zip(action._fields, action, strict=True))}
            for action in actions]
