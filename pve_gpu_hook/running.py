"""post-start: QEMU runs. See what it really has, and bind its threads. What fails here stops nothing: it is told."""
from __future__ import annotations

from time import time

from kvm_gpu.errors import GpuError
from kvm_gpu.inuse import device_paths
from kvm_gpu.look import functions_of
from kvm_gpu.site import PROXMOX_PID
from kvm_gpu.sysfs import DEVICES
from kvm_gpu.users import nodes, opened
from pve_gpu_hook import reservation, scope
from pve_gpu_hook.pinning import pin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    from kvm_gpu.ledgerrows import Claim
    from kvm_gpu.model import Device
    from kvm_gpu.site import Site
    from pve_gpu_hook.lease import Lease

WARNING: Final = "WARN: "


def confirm(site: Site, vm: str, lease: Lease) -> Iterator[str]:
    """Lines for the task log. Raises GpuError."""
    reservation.let_go(site, vm, started=True)
    pid = site.sysfs.number(PROXMOX_PID.format(vm))
    claim = site.ledger.claim(lease.claim)
    if pid is None or claim is None:
        yield f"{WARNING}{'QEMU does not run' if pid is None else 'its claim was released meanwhile'}"
        return
    uses = site.ledger.uses(claim.id)
    yield from _devices(site, claim, pid)
    yield from _binding(site, vm, lease)
    if any(use.pins for use in uses):
        try:
            yield pin(site, vm, pid, uses, lease.emulator)
        except GpuError as failure:
            yield f"{WARNING}vCPUs not pinned: {failure.message}"


def _devices(site: Site, claim: Claim, pid: int) -> Iterator[str]:
    """Compare what QEMU has open with the claim, and note the outcome in the ledger."""
    devices = site.ledger.devices(claim.id)
    opens = frozenset(opened(site.sysfs, pid))
    missing = [device.hold.slot for device in devices if not _has(site, opens, device_paths(device))]
    instead = sorted(_others(site, devices, opens)) if missing else []
    note = f"QEMU has {' and '.join(instead) or 'nothing'} in place of {' and '.join(missing)}" if missing else None
    with site.ledger.note():
        site.ledger.set_state(claim.id, "active", note, verified_at=None if missing else int(time()))
        site.ledger.event(claim.id, claim.vm, "active", note or "its device is open")
    yield f"{WARNING}{note}" if note else "QEMU has " + " and ".join(device.hold.slot for device in devices)


def _others(site: Site, devices: tuple[Device, ...], opens: frozenset[str]) -> Iterator[str]:
    """Functions of our boards that QEMU has open, and the claim has not."""
    own = {function for device in devices for function in device.functions}
    return (function for board in site.view().host.boards for function in functions_of(board) - own
            if _has(site, opens, (DEVICES + function,)))


def _has(site: Site, opens: frozenset[str], paths: tuple[str, ...]) -> bool:
    return any(not opens.isdisjoint(nodes(site.sysfs, path)) for path in paths)


def _binding(site: Site, vm: str, lease: Lease) -> Iterator[str]:
    missed = scope.missed(site.sysfs, vm, lease.scope)
    if missed:
        yield f"{WARNING}the VM's scope has {missed}"
