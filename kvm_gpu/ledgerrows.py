"""Values of model.py as rows of the ledger, and back. CPUs come back sorted: they are sets."""
from __future__ import annotations

from kvm_gpu.cpulist import format_cpus, parse_cpus
from kvm_gpu.model import Attribute, Command, Device, Driver, Hold, Mdev, Use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, NamedTuple, Optional

    from kvm_gpu.model import Action, State

    Pins = tuple[tuple[int, tuple[int, ...]], ...]
else:
    from kvm_gpu.light import NamedTuple


class Claim(NamedTuple):
    """What one run of a VM holds. `holder` made it and answers for it while it is starting; after that `deadline`."""
    id: str
    vm: str
    user: Optional[str]
    groups: tuple[str, ...]
    state: State
    keep: bool                              # hold the slots while the VM is stopped
    boot_id: str                            # of the boot in which it was made
    holder: Optional[tuple[int, int]]       # (pid, start), see holder.py
    deadline: Optional[int]                 # CLOCK_BOOTTIME, seconds
    since: int                              # Unix time
    verified_at: Optional[int] = None       # Unix time when the kernel was last seen to agree
    note: Optional[str] = None


class Event(NamedTuple):
    time: int                               # Unix time
    claim: Optional[str]
    vm: Optional[str]
    event: str
    detail: Optional[str]


class Cordon(NamedTuple):
    board: str
    since: int                              # Unix time
    why: str


MAKING_READY: Final = "making ready"    # note of a claim whose devices its holder is making ready
CLAIM: Final = "id, vm, user, groups, state, keep, boot, holder_pid, holder_start, deadline, since, verified_at, note"
HOLD: Final = "slot, board, layout, cell, profile, start, size, vm, state"
DEVICE: Final = f"{HOLD}, mechanism, functions, uuid, bar_mib"
USE: Final = "vm, guest_node, node, pins, cpus, mib, page_kib, state in ('active', 'releasing')"
TAKEN: Final = USE.replace("pins", "''")     # place() needs what is taken, not who is pinned to it
ACTION: Final = "kind, target, value, before, through"


def claim_row(claim: Claim) -> tuple[Any, ...]:
    return (*claim[:3], lines(claim.groups), claim.state, claim.keep, claim.boot_id, *(claim.holder or (None, None)),
            *claim[8:])


def to_claim(row: tuple[Any, ...]) -> Claim:
    id, vm, user, groups, state, keep, boot_id, pid, start, *rest = row
    holder = None if pid is None else (pid, start)
    return Claim(id, vm, user, _unlines(groups), state, bool(keep), boot_id, holder, *rest)


def device_row(claim: str, device: Device, identity: Optional[str]) -> tuple[Any, ...]:
    hold = device.hold
    return (hold.slot, claim, *hold[1:7], device.mechanism, lines(device.functions), device.uuid, device.bar_mib,
            identity)


def to_device(row: tuple[Any, ...]) -> Device:
    mechanism, functions, uuid, bar_mib = row[9:]
    return Device(Hold(*row[:9]), mechanism, _unlines(functions), uuid, bar_mib)


def use_row(claim: str, use: Use) -> tuple[Any, ...]:
    pins = " ".join([f"{vcpu}:{format_cpus(cpus)}" for vcpu, cpus in use.pins])
    return (claim, use.guest_node, use.node, pins, format_cpus(use.cpus), use.mib, use.page_kib)


def to_use(row: tuple[Any, ...]) -> Use:
    vm, guest_node, node, pins, cpus, mib, page_kib, allocated = row
    return Use(vm, guest_node, node, _to_pins(pins), parse_cpus(cpus), mib, page_kib, bool(allocated))


def action_row(claim: str, seq: int, action: Action) -> tuple[Any, ...]:
    if isinstance(action, Attribute):
        return (claim, seq, "attribute", *action)
    if isinstance(action, Driver):
        return (claim, seq, "driver", *action, None)
    if isinstance(action, Mdev):
        return (claim, seq, "mdev", *action, None, None)
    return (claim, seq, "command", lines(action.argv), lines(action.undo), action.check, None)


def to_action(row: tuple[Any, ...]) -> Action:
    kind, target, value, before, through = row
    if kind == "attribute":
        return Attribute(target, value, before, through)
    if kind == "driver":
        return Driver(target, value, before)
    if kind == "mdev":
        return Mdev(target, value)
    return Command(_unlines(target), _unlines(value), before)


def _to_pins(text: str) -> Pins:
    return tuple([(int(vcpu), (int(cpus),) if cpus.isdigit() else parse_cpus(cpus))
                  for vcpu, _, cpus in [pin.partition(":") for pin in text.split()]])


def lines(items: tuple[str, ...]) -> str:
    return "\n".join(items)


def _unlines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()
