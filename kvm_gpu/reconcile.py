"""Ledger against kernel against running VMs: what a crash, a reboot or a guest's own shutdown left behind.

A device that is open outweighs any list of VMs that says otherwise. Nothing foreign is touched.
"""
from __future__ import annotations

import posix
from time import time

from kvm_gpu.apply import undo
from kvm_gpu.errors import HostError
from kvm_gpu.holder import alive, boottime, holder_of
from kvm_gpu.inuse import InUse, device_paths, refuse_in_use
from kvm_gpu.ledgerrows import MAKING_READY
from kvm_gpu.topology import boot_id
from kvm_gpu.users import user, vfio_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from kvm_gpu.ledgerrows import Claim
    from kvm_gpu.site import Site

    Verdict = Literal["leave", "active", "free"]


def reconcile(site: Site) -> tuple[str, ...]:
    """Bring the ledger up to what is; one sentence for each thing that changed. Raises HostError, BusyError."""
    done = []
    users, boot = vfio_users(site.sysfs), boot_id(site.sysfs)
    for claim in site.ledger.claims():
        verdict = judge(site, claim, users, boot)
        if verdict == "active" and claim.state != "active":
            with site.ledger.note():
                site.ledger.set_state(claim.id, "active", verified_at=int(time()))
                site.ledger.event(claim.id, claim.vm, "active", "its device is open")
            done.append(f"VM {claim.vm}: runs on its device")
        elif verdict == "free":
            done.append(free(site, claim, boot))
    done += _follow_kept(site, boot)
    site.ledger.tidy()
    return tuple(done)


def _follow_kept(site: Site, boot: str) -> tuple[str, ...]:
    """Find what stopped VMs keep after a reboot, though the cards may have other addresses."""
    from kvm_gpu.moved import follow, strangers
    return follow(site, site.fresh_view().host) if strangers(site, boot) else ()


def outcome(site: Site) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of the claims that `reconcile` would end, and of those that it would keep for a stopped VM; changes
    nothing."""
    users, boot = vfio_users(site.sysfs), boot_id(site.sysfs)
    over = [claim for claim in site.ledger.claims() if judge(site, claim, users, boot) == "free"]
    kept = frozenset(claim.id for claim in over if _stays(site, claim))
    return frozenset(claim.id for claim in over) - kept, kept


def judge(site: Site, claim: Claim, users: dict[str, int], boot: str) -> Verdict:
    """What is to be done about one claim. A `starting` one is freed only if who started it is dead, no VM of that
    name runs, and nobody has the device open."""
    if claim.state == "kept":
        return "leave"
    if claim.boot_id != boot:
        return "free"
    paths = tuple(path for device in site.ledger.devices(claim.id) for path in device_paths(device))
    opened, running = user(site.sysfs, paths, users) is not None, site.running(claim.vm)
    if claim.state == "releasing":
        return "leave" if opened or _is_anothers(claim) else "free"
    if opened:
        return "active" if running else "leave"
    if running or (claim.state == "starting" and _being_started(claim)):
        return "leave"
    return "free"


def _is_anothers(claim: Claim) -> bool:
    """Whether another process is at it; we are not: we are here."""
    return claim.holder not in (None, holder_of(posix.getpid())) and alive(claim.holder)


def _being_started(claim: Claim) -> bool:
    if claim.holder is not None and alive(claim.holder):
        return True
    return claim.deadline is not None and boottime() < claim.deadline


def free(site: Site, claim: Claim, boot: str, keep: bool = True, force: bool = False) -> str:
    """Undo what the claim made ready and end it; it stays `releasing` while a VM has the device open. `keep`: a claim
    that asks for it holds its slots on; `force`: end it though the kernel refuses a step. Answers what happened, in
    words.

    Only who has put its own name on a `releasing` claim undoes: else a slow one could clear the next owner's vGPU.
    """
    if not _take_over(site, claim):
        return f"VM {claim.vm}: is seen to by another process"
    if keep and _stays(site, claim):
        return _keep(site, claim)
    try:
        if claim.boot_id == boot:
            _undo(site, claim)
    except InUse as error:
        return _postpone(site, claim, f"still in use: {error.message}")
    except HostError as error:
        if not force:
            return _postpone(site, claim, error.message)
    with site.ledger.note():
        site.ledger.remove(claim.id)
        site.ledger.event(claim.id, claim.vm, "released", "")
    return f"VM {claim.vm}: released"


def _stays(site: Site, claim: Claim) -> bool:
    """Whether the stopped VM keeps what it holds: it asked for that, and has no newer claim."""
    newest = site.ledger.claim_of(claim.vm)
    return claim.keep and newest is not None and newest.id == claim.id


def _take_over(site: Site, claim: Claim) -> bool:
    """False where the claim is not any more as it was read, or somebody else is at it. One who makes it ready will
    see that it is released, and give it back: undoing now would be too early."""
    with site.ledger.note():
        if site.ledger.claim(claim.id) != claim or (claim.state == "releasing" and _is_anothers(claim)):
            return False
        readied = claim.note == MAKING_READY and _is_anothers(claim)
        holder = claim.holder if readied else holder_of(posix.getpid())
        deadline = None if claim.state == "releasing" else boottime() + site.config.release_deadline_s
        site.ledger.set_state(claim.id, "releasing", claim.note, holder=holder, deadline=deadline)
    return not readied


def _undo(site: Site, claim: Claim) -> None:
    """Raises InUse where a VM is inside, HostError where the kernel refuses."""
    refuse_in_use(site.sysfs, site.ledger.devices(claim.id))
    undo(site.sysfs, site.ledger.actions(claim.id))


def _keep(site: Site, claim: Claim) -> str:
    with site.ledger.note():
        site.ledger.set_state(claim.id, "kept")
        site.ledger.free_compute(claim.id)
        site.ledger.event(claim.id, claim.vm, "kept", "held by a stopped VM")
    return f"VM {claim.vm}: stopped, keeps its device"


def _postpone(site: Site, claim: Claim, why: str) -> str:
    with site.ledger.note():
        site.ledger.set_state(claim.id, "releasing", why)
    return f"VM {claim.vm}: releasing, {why}"
