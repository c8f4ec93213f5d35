"""What people see: the same functions as jsonout.py, as text.

`claim`, `inject`, `release` and `explain` draw no table, and so do not import rich.
"""
from __future__ import annotations

from time import localtime, strftime

from kvm_gpu.claims import wanted
from kvm_gpu.cpulist import format_cpus
from kvm_gpu.model import Attribute, Command, Driver
from kvm_gpu.tables import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Optional

    from kvm_gpu.capacity import Row
    from kvm_gpu.errors import GpuError
    from kvm_gpu.ledgerrows import Claim, Event
    from kvm_gpu.model import Action, Board, Decision, Device, Host, NumaNode, Refusal, Request, Use


def inventory(host: Host) -> str:
    boards = table(("BOARD", "MODEL", "NODE", "DRIVER", "LAYOUT", "SLOTS", "ALSO", "TROUBLE"),
                    map(_board, host.boards), "No GPU on this host.", rare=("ALSO", "TROUBLE"))
    nodes = table(("NODE", "CPUS", "MEMORY", "FREE", "HUGE PAGES"), map(_node, host.nodes), "No NUMA node.")
    return f"{boards}\n{nodes}"


def capacity(rows: tuple[Row, ...]) -> str:
    drawn = table(
        ("BOARD", "MODEL", "NODE", "MECHANISM", "PROFILE", "TOTAL", "TAKEN", "FREE", "SELLABLE",
         "FOREIGN", "STUCK", "RETIRING", "NOT RESTORED", "STRANDED", "WHY"),
        ((row.board, row.model, row.numa_node, row.mechanism, row.profile, row.total, row.taken, row.free,
          row.sellable, row.foreign, row.stuck, row.retiring, row.not_restored, _mib(row.stranded_mib or None),
          row.why)
         for row in rows), "Nothing to give on this host.",
        rare=("FOREIGN", "STUCK", "RETIRING", "NOT RESTORED", "STRANDED", "WHY"))
    return drawn + ("\nThe rows of one board are alternatives: do not add them up.\n" if rows else "")


def decision(made: Decision) -> str:
    """What a VM got, or would get where nothing was claimed."""
    if made.refusal:
        return refused(made.request, made.refusal)
    assert made.placement
    verb = f"has claim {made.claim}" if made.claim else "would get"
    nodes = {board.address: board.numa_node for board in made.host.boards}
    return _lines(
        f"VM {made.request.vm.id} {verb}:",
        *(f"  {_device(device)}, {_node_name(nodes.get(device.hold.board))}" for device in made.placement.devices),
        *map(_use, made.placement.uses),
        *(f"  {_action(action)}" for action in made.actions),
        *(f"Warning: {warning}" for warning in made.placement.warnings))


def refused(request: Request, refusal: Refusal) -> str:
    return _lines(
        f"VM {request.vm.id}: {wanted(request)}: refused on this host",
        *(f"  {reason.candidate}: {reason.why}" for reason in refusal.reasons),
        *([f"Hint: {refusal.hint}"] if refusal.hint else ()))


def claims(held: Iterable[tuple[Claim, tuple[Device, ...]]]) -> str:
    return table(
        ("VM", "OWNER", "STATE", "KEEP", "SLOTS", "PROFILES", "SINCE", "CLAIM", "NOTE"),
        ((claim.vm, claim.user, claim.state, "yes" if claim.keep else None,
          " ".join(device.hold.slot for device in devices), " ".join(device.hold.profile for device in devices),
          _time(claim.since), claim.id, claim.note) for claim, devices in held),
        "No claims.", rare=("OWNER", "KEEP", "NOTE"))


def show(claim: Claim, devices: tuple[Device, ...], uses: tuple[Use, ...], actions: tuple[Action, ...]) -> str:
    owner = f" of {claim.user}" if claim.user else ""
    return _lines(
        f"VM {claim.vm}{owner}: claim {claim.id}, {claim.state} since {_time(claim.since)}",
        *(f"  {_device(device)}" for device in devices),
        *map(_use, uses),
        *(f"  {_action(action)}" for action in actions),
        *([f"Note: {claim.note}"] if claim.note else ()))


def events(happened: tuple[Event, ...]) -> str:
    return table(("TIME", "VM", "EVENT", "DETAIL", "CLAIM"),
                  ((_time(event.time), event.vm, event.event, event.detail, event.claim) for event in happened),
                  "Nothing has happened yet.", rare=("CLAIM",))


def done(sentences: tuple[str, ...]) -> str:
    return _lines(*(sentences or ("Nothing to do.",)))


def error(failure: GpuError) -> str:
    """For stderr."""
    return _lines(f"kvm-gpu: {failure.message}", *([f"Hint: {failure.hint}"] if failure.hint else ()))


# ---- words -----------------------------------------------------------------------------------------

def _board(board: Board) -> tuple[object, ...]:
    here = board.layouts[0] if board.layouts else None
    driver = board.functions[0].driver if board.functions else None
    return (board.address, board.model, board.numa_node, driver, here and here.name, here and len(here.slots),
            " ".join(layout.name for layout in board.layouts[1:]), "; ".join(board.trouble))


def _node(node: NumaNode) -> tuple[object, ...]:
    pages = ", ".join(f"{page.free} of {page.total} x {_kib(page.size_kib)}" for page in node.pages if page.total)
    cpus = format_cpus(tuple(cpu for core in node.cores for cpu in core))
    return node.id, cpus, _mib(node.mem_mib), _mib(node.free_mib), pages


def _node_name(node: Optional[int]) -> str:
    return "node unknown" if node is None else f"node {node}"


def _device(device: Device) -> str:
    uuid = f", mdev {device.uuid}" if device.uuid else ""
    return f"{device.hold.slot}: {device.hold.profile} ({device.mechanism}){uuid}"


def _use(use: Use) -> str:
    where = "anywhere" if use.node is None else f"on node {use.node}"
    pages = f" in pages of {_kib(use.page_kib)}" if use.page_kib else ""
    together: dict[tuple[int, ...], tuple[int, ...]] = {}
    for vcpu, cpus in use.pins:
        together[cpus] = (*together.get(cpus, ()), vcpu)
    pins = "".join(f", vCPU {format_cpus(vcpus)} on CPU {format_cpus(cpus)}" for cpus, vcpus in together.items())
    return f"  guest node {use.guest_node}: {use.mib} MiB{pages} {where}{pins}"


def _action(action: Action) -> str:
    if isinstance(action, Attribute):
        return f"{action.path} = {action.value}"
    if isinstance(action, Driver):
        return f"{action.function} bound to {action.driver or 'no driver'}"
    if isinstance(action, Command):
        return f"run {' '.join(action.argv)}"
    return f"mdev {action.uuid} of {action.type_path}"


def _time(seconds: int) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(seconds))


def _mib(mib: Optional[int]) -> Optional[str]:
    return None if mib is None else f"{mib} MiB"


def _kib(kib: int) -> str:
    return f"{kib >> 20} GiB" if kib >> 20 else f"{kib >> 10} MiB" if kib >> 10 else f"{kib} KiB"


# ---- layout ----------------------------------------------------------------------------------------

def _lines(*lines: str) -> str:
    return "".join(line + "\n" for line in lines)
