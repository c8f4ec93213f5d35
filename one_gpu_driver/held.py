"""What a VM of OpenNebula has, between its start and its end.

A file for each VM under HELD tells oneadmin's side, which cannot read the ledger, that it has to ask. It may outlive
the claim: then the answer is no, and it goes.
"""
from __future__ import annotations

import posix

from kvm_gpu import claims
from kvm_gpu.errors import HostError, OwnershipError
from kvm_gpu.holder import boottime, holder_of
from one_gpu_driver.vmm import HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.site import Site


def mark(site: Site, vm: str) -> None:
    """Raises HostError."""
    folder = site.sysfs.root + HELD
    try:
        _make_readable(folder)
        posix.close(posix.open(f"{folder}/{vm}", posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o644))
    except OSError as error:
        raise HostError(f"{folder}/{vm}: {error.strerror}") from None


def _make_readable(folder: str) -> None:
    """For oneadmin, whatever umask sudo gave us."""
    try:
        posix.mkdir(folder)
    except FileExistsError:
        return
    posix.chmod(folder, 0o755)


def unmark(site: Site, vm: str) -> None:
    if site.ledger.claim_of(vm) is None:
        try:
            posix.unlink(f"{site.sysfs.root}{HELD}/{vm}")
        except FileNotFoundError:
            return


def refuse_saving(site: Site, vm: str) -> None:
    """Raises OwnershipError where the VM has a device: its state cannot be saved, and no checkpoint would start. oned
    saves a VM also to migrate it, unless it is asked to power it off."""
    devices = _in_words(site, vm)
    if devices:
        raise OwnershipError(f"{vm} cannot be suspended, stopped or moved by saving it, with {devices}",
                             "power it off, undeploy it, or move it with migrate --poff")


def refuse_migration(site: Site, vm: str) -> None:
    """Raises OwnershipError where the VM has a device."""
    devices = _in_words(site, vm)
    if devices:
        raise OwnershipError(f"{vm} cannot be migrated live with {devices} passed through",
                             "move it with migrate --poff: it is powered off, moved and started again")


def begin_stop(site: Site, vm: str, pid: int) -> Optional[str]:
    """The VM's claim, `releasing` in the name of the process `pid` until `end_stop` or `still_runs`; None where it has
    none, or somebody frees it already."""
    with site.ledger.note():
        held = site.ledger.claim_of(vm)
        if held is not None and held.state != "releasing":
            site.ledger.set_state(held.id, "releasing", "being stopped", holder=holder_of(pid),
                                  deadline=boottime() + site.config.release_deadline_s)
            return held.id
    unmark(site, vm)
    return None


def end_stop(site: Site, vm: str, claim: str, pid: int) -> tuple[str, ...]:
    """Free a claim whose VM was stopped by `pid`; what happened, in words."""
    if not _take_back(site, claim, pid):
        return ()
    done = claims.release(site, vm, claim)
    unmark(site, vm)
    return done


def still_runs(site: Site, claim: str, pid: int) -> None:
    """The stock script could not stop the VM."""
    held = site.ledger.claim(claim)
    if held is not None and held.state == "releasing" and held.holder == holder_of(pid):
        with site.ledger.note():
            site.ledger.set_state(claim, "active")


def failed(site: Site, vm: str, claim: str) -> tuple[str, ...]:
    """Free the claim of a start that failed, unless its domain is there all the same; what happened, in words."""
    if site.running(vm):
        return (f"VM {vm}: runs all the same",)
    done = claims.release(site, vm, claim)
    unmark(site, vm)
    return done


def _take_back(site: Site, claim: str, pid: int) -> bool:
    """Make this process the holder: only who has its name on a `releasing` claim may undo what was done for it."""
    with site.ledger.note():
        held = site.ledger.claim(claim)
        if held is None or held.state != "releasing" or held.holder != holder_of(pid):
            return False
        return site.ledger.set_state(claim, "releasing", held.note, holder=holder_of(posix.getpid()))


def _in_words(site: Site, vm: str) -> str:
    held = site.ledger.claim_of(vm)
    devices = site.ledger.devices(held.id) if held else ()
    return ", ".join(f"{device.hold.profile} at {device.hold.slot}" for device in devices)
