"""Kept slots after a reboot: a card that was added or taken out may have shifted the others' PCI addresses.

A board is known again by its serial number, else by its slot's label; without either, or where several have the same,
only by what stands at its old address. Cold path: once for each kept claim and boot.
"""
from __future__ import annotations

from kvm_gpu.errors import NoCapacity
from kvm_gpu.model import Reason, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.ledgerrows import Claim
    from kvm_gpu.model import Board, Device, Host
    from kvm_gpu.site import Site

    Moves = tuple[tuple[Device, Device], ...]

ABSENT: Final = "recorded, absent since the reboot"     # what mdevs and vGPU types are, until the VM starts


def follow(site: Site, host: Host) -> tuple[str, ...]:
    """Bring all kept claims of earlier boots up to where their devices are now; one sentence for each. One that is
    nowhere, or could only be guessed, stays as it is."""
    found, said = [], []
    for claim in strangers(site, host.boot_id):
        try:
            found.append((claim, locate(site, claim, host)))
        except NoCapacity as error:
            said += [f"{error.message}: {reason.candidate}: {reason.why}" for reason in error.refusal.reasons]
    if found:
        _record(site, found, host.boot_id)
    return (*said, *(f"VM {claim.vm}: keeps {_slots(moves)} after the reboot" for claim, moves in found))


def strangers(site: Site, boot_id: str) -> tuple[Claim, ...]:
    """Kept claims that were made in, or last found in, an earlier boot."""
    return tuple(claim for claim in site.ledger.claims() if claim.state == "kept" and claim.boot_id != boot_id)


def locate(site: Site, claim: Claim, host: Host) -> Moves:
    """Each device of the claim as recorded and as it is now. Raises NoCapacity. Changes nothing."""
    identities = site.ledger.identities(claim.id)
    return tuple((device, _now(claim, device, identities[device.hold.board], host))
                 for device in site.ledger.devices(claim.id))


def _record(site: Site, found: list[tuple[Claim, Moves]], boot_id: str) -> None:
    """All at once: one card may have got the address of another."""
    with site.ledger.write():
        for claim, moves in found:
            site.ledger.enter_boot(claim.id, boot_id, ABSENT)
            for old, new in moves:
                if old != new:
                    site.ledger.event(claim.id, claim.vm, "moved", f"{old.hold.slot} -> {new.hold.slot}")
        site.ledger.move([(claim.id, old.hold.slot, new) for claim, moves in found for old, new in moves if old != new])


def _slots(moves: Moves) -> str:
    return ", ".join(new.hold.slot for _, new in moves)


def _now(claim: Claim, device: Device, identity: Optional[str], host: Host) -> Device:
    board = _board(host, device, identity)
    new = board and _at(device, board)
    if new is not None:
        return new
    name = f"with serial or label {identity}" if identity else "that has neither serial nor slot label"
    why = f"kept {device.hold.profile} there, on a board {name}: not found on this host any more"
    hint = f"`kvm-gpu release --vm {claim.vm} --force` gives up what it kept"
    raise NoCapacity(f"VM {claim.vm}: its card is gone", Refusal((Reason(device.hold.slot, why),), hint))


def _board(host: Host, device: Device, identity: Optional[str]) -> Optional[Board]:
    alike = [board for board in host.boards if board.identity == identity] if identity else list(host.boards)
    if identity and len(alike) == 1:
        return alike[0]
    return next((board for board in alike if board.address == device.hold.board), None)


def _at(device: Device, board: Board) -> Optional[Device]:
    """The device as it would be on `board`, None where that has no such slot: functions of a board keep their
    distance from the PF when bus numbers shift."""
    old = device.hold.board
    slot = _shift(device.hold.slot, old, board.address)
    functions = tuple(_shift(function, old, board.address) for function in device.functions)
    offered = any(known.name == slot for layout in board.layouts for known in layout.slots)
    return device._replace(hold=device.hold._replace(slot=slot, board=board.address),
                           functions=functions) if offered else None


def _shift(name: str, old: str, new: str) -> str:
    """"0000:41:00.4" with its PF moved from 0000:41:00.0 to 0000:42:00.0 -> "0000:42:00.4"; "#n" of an mdev stays."""
    address, mark, number = name.partition("#")
    if old == new or ":" not in address:
        return name
    routing = _routing_id(new) + _routing_id(address) - _routing_id(old)
    domain = new.rpartition(":")[0].rpartition(":")[0]
    return f"{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}{mark}{number}"


def _routing_id(address: str) -> int:
    """Bus, device and function as one number, as SR-IOV counts them."""
    _, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
