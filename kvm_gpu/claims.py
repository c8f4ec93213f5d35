"""The only place that joins the steps: read, decide, record, act, record. Adapters and the command call it.

    place from cache and ledger -> look at the chosen slots, without the lock -> under the lock place again and
    record: the one durable commit -> act outside the lock, undo on failure -> note that it is done
"""
from __future__ import annotations

import posix
from time import sleep, time

from kvm_gpu import domain
from kvm_gpu.act import act
from kvm_gpu.errors import BusyError, GpuError, NoCapacity, OwnershipError
from kvm_gpu.holder import alive, boottime, holder_of
from kvm_gpu.ledgerrows import MAKING_READY, Claim
from kvm_gpu.look import Search, functions_of, look_at
from kvm_gpu.model import Decision, Refusal
from kvm_gpu.plan import place
from kvm_gpu.request import check
from kvm_gpu.topology import boot_id, refresh, without_lost_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.capacity import Row
    from kvm_gpu.domain import Domain
    from kvm_gpu.model import Action, Device, Host, Placement, Request
    from kvm_gpu.site import Site, View

    Holder = tuple[int, int]
    Outcome = tuple[frozenset[str], frozenset[str]]     # ids of claims that end, and of those that keep their slots

ATTEMPTS: Final = 100           # each is lost to another start that took the choice: somebody gets on
READY: Final = "/run/kvm-gpu/ready"
READY_WAIT_S: Final = 5
APPEAR_S: Final = 120           # a VM whose starter is not known shows up within this time, or not at all


def explain(site: Site, request: Request) -> Decision:
    """The decision that `claim` would make now; changes nothing. Raises RequestError, HostError."""
    request = check(request)
    view = site.view()
    try:
        search = Search(view, *_kept(site, request, view, changing=False), request.uuids)
    except NoCapacity as gone:
        return Decision(request, view.host, None, None, gone.refusal)
    found = _settle(site, request, search, changing=False)
    if isinstance(found, Refusal):
        _refuse_unknown(site, request, search.view.host)
        return Decision(request, search.view.host, None, None, found)
    return Decision(request, search.view.host, None, search.finish(found), None, search.actions(found))


def claim(site: Site, request: Request, holder: Optional[Holder] = None) -> Decision:
    """Decide, record and make ready. `holder`: pid and start time of who starts the VM; while that lives, nobody
    frees the claim. Raises NoCapacity, RequestError, OwnershipError, HostError (a step failed and was undone),
    BusyError."""
    request = check(request)
    _await_restore(site)
    _end_previous(site, request)
    view = site.view()
    search = Search(view, *_kept(site, request, view, changing=True), request.uuids)
    for _ in range(ATTEMPTS):
        found = _settle(site, request, search, changing=True)
        if isinstance(found, Refusal):
            _refuse_unknown(site, request, search.view.host)
            raise NoCapacity(f"VM {request.vm.id}: {wanted(request)}: refused on this host", found)
        if search.gives_up(found):
            _give_up_kept(site, search)
            search = Search(site.view(), uuids=request.uuids)
            continue
        decision = _record(site, request, search, found)
        if decision is not None and act(site, decision, search):
            _hand_over(site, decision, holder)
            return decision
    raise BusyError(f"VM {request.vm.id}: lost {ATTEMPTS} times to other starts", "try again")


def inject(site: Site, request: Request, xml: bytes, holder: Optional[Holder] = None) -> tuple[Decision, bytes]:
    """Claim for a libvirt domain, and the domain with its devices, pins and memory binding. The request's guest nodes
    come from the domain where it names none. Raises as `claim`, RequestError for XML that is refused, OwnershipError
    where the XML takes one of our devices by itself."""
    found = domain.read(xml)
    request = check(request if request.guest else request._replace(guest=found.guest))
    refuse_raw(site, request, found)
    decision = claim(site, request, holder)
    assert decision.claim is not None and decision.placement is not None
    try:
        return decision, domain.inject(xml, decision.placement, decision.claim)
    except GpuError:
        release(site, request.vm.id, decision.claim)
        raise


def release(site: Site, vm_id: str, claim_id: Optional[str] = None, force: bool = False) -> tuple[str, ...]:
    """Free what the VM holds; () where nothing is left. With `claim_id` only that claim: a slot's next user may have
    the same name. What a VM still has open stays `releasing` to the next reconcile. `force`: also what it would keep
    while stopped, and though the kernel refuses a step. Raises HostError, BusyError."""
    from kvm_gpu.reconcile import free
    held = site.ledger.claim_of(vm_id) if claim_id is None else site.ledger.claim(claim_id)
    if held is None or held.vm != vm_id:
        return ()
    if held.state == "kept" and not force:
        return (f"VM {vm_id}: keeps its device while it is stopped; `release --force` gives it up",)
    said = free(site, held, boot_id(site.sysfs), keep=not force, force=force)
    site.ledger.tidy()
    return (said,)


def capacity(site: Site) -> tuple[Row, ...]:
    """What is had, taken, free and sellable, from the host read afresh. What the next start would free counts as free,
    but for claims whose release was begun and may hang."""
    from kvm_gpu.capacity import capacity as count
    from kvm_gpu.reconcile import outcome
    view = site.fresh_view()
    releasing = [held for held in site.ledger.claims() if held.state == "releasing"]
    stuck = (held.id for held in releasing if held.deadline is not None and held.deadline < boottime())
    slots = (device.hold.slot for claim_id in stuck for device in site.ledger.devices(claim_id))
    ended, kept = outcome(site)
    taken = site.taken(view, ended.difference([held.id for held in releasing]), kept)
    return count(view.host, taken, site.config.policy, frozenset(slots))


def wanted(request: Request) -> str:
    """The wants in words: "2 x A16-4Q"."""
    words = []
    for want in request.wants:
        fields = (want.profile, want.mechanism, want.vendor, want.model, want.address)
        size = f"with at least {want.fb_mib} MiB" if want.fb_mib is not None else None
        words.append(f"{want.cards} x " + " ".join(word for word in (*fields, size) if word))
    return ", ".join(words) or "no device"


# ---- deciding ----------------------------------------------------------------------------------------

def _settle(site: Site, request: Request, search: Search, changing: bool) -> Placement | Refusal:
    """A placement all of whose slots were looked at and would do, or a refusal on a host that was read afresh and
    a ledger that was reconciled; an explanation reckons without what a reconcile would free."""
    ended, kept = _given_up(site, request)
    while True:
        search.version = site.ledger.version()
        search.freed = _boards(site, ended)
        taken = site.taken(search.view, ended, kept)
        host = _refreshed(site, request, search)
        found = place(request, host, taken, site.config.policy)
        if isinstance(found, Refusal):
            if search.cleaned:
                return found
            would_end, would_keep = _clean(site, changing)
            ended, kept = ended | would_end, kept | would_keep
            search.renew(site.fresh_view())
            search.cleaned = True
        elif look_at(site.sysfs, found, search, taken):
            return found
        elif not search.view.fresh:
            search.renew(site.fresh_view())


def _clean(site: Site, changing: bool) -> Outcome:
    """Free what nobody uses any more; for an explanation only say which claims that would end, and which would keep
    their slots."""
    from kvm_gpu import reconcile
    if not changing:
        return reconcile.outcome(site)
    reconcile.reconcile(site)
    return frozenset(), frozenset()


def _refreshed(site: Site, request: Request, search: Search) -> Host:
    """The host as the search sees it, with what there is now of the memory and CPUs that the guest asks for."""
    host = search.host()
    sizes = frozenset(node.page_kib for node in request.guest)
    nodes = without_lost_cpus(site.sysfs, host.nodes) if request.cpu != "none" else host.nodes
    search.nodes = refresh(site.sysfs, nodes, sizes)
    return host._replace(nodes=search.nodes)


def _kept(
    site: Site, request: Request, view: View, changing: bool,
) -> tuple[Optional[Claim], tuple[Device, ...], tuple[Action, ...]]:
    """The claim that keeps this VM's slots while it is stopped, or would if it stopped now, with its devices and what
    was done for them. Raises NoCapacity where they are gone since a reboot."""
    held = site.ledger.claim_of(request.vm.id)
    if held is None or not (held.state == "kept" or (held.keep and not changing and held.state != "releasing")):
        return None, (), ()
    if held.boot_id == view.host.boot_id:
        return held, site.ledger.devices(held.id), site.ledger.actions(held.id)
    from kvm_gpu.moved import follow, locate
    devices = tuple(new for _, new in locate(site, held, view.host))
    if changing:
        follow(site, view.host)
        held = site.ledger.claim(held.id)
    return held, devices, ()


def _give_up_kept(site: Site, search: Search) -> None:
    """Free what the VM kept and does not want any more; what cannot be freed yet stays `releasing`."""
    from kvm_gpu.reconcile import free
    if search.kept is not None:
        free(site, search.kept, search.view.host.boot_id, keep=False)


def _given_up(site: Site, request: Request) -> Outcome:
    """The VM's own claim as a start would first make it: ended, or with its slots kept."""
    held = site.ledger.claim_of(request.vm.id)
    if held is None or held.state in ("kept", "releasing"):
        return frozenset(), frozenset()
    own = frozenset([held.id])
    return (frozenset(), own) if held.keep else (own, frozenset())


def _boards(site: Site, claims: frozenset[str]) -> frozenset[str]:
    return frozenset(device.hold.board for claim_id in claims for device in site.ledger.devices(claim_id))


def _refuse_unknown(site: Site, request: Request, host: Host) -> None:
    """Raises RequestError for a profile or an address that neither this host nor a table knows."""
    from kvm_gpu.unknown import check_known
    check_known(site, request, host)


# ---- before ------------------------------------------------------------------------------------------

def _await_restore(site: Site) -> None:
    """Raises BusyError while layouts are configured and not made yet: what they change must not be given."""
    waited = 0.0
    while site.config.layouts and not site.sysfs.exists(READY):
        if waited >= READY_WAIT_S:
            raise BusyError(f"{READY}: not there after {READY_WAIT_S} s: the layouts of this boot are not made yet",
                            "see the state of the restore service")
        sleep(0.1)
        waited += 0.1


def _end_previous(site: Site, request: Request) -> None:
    """End the claim of an earlier start of this VM. Raises OwnershipError where that still goes on, or runs."""
    held = site.ledger.claim_of(request.vm.id)
    if held is None or held.state == "kept":
        return
    if site.running(request.vm.id):
        raise OwnershipError(f"VM {request.vm.id}: runs, with claim {held.id}", "stop the VM first")
    if held.state == "releasing":
        return          # what cannot be freed yet stays so; the VM gets another slot
    if held.note == MAKING_READY and held.holder is not None and alive(held.holder):
        raise OwnershipError(f"VM {request.vm.id}: is being started by process {held.holder[0]}")
    release(site, request.vm.id)


def refuse_raw(site: Site, request: Request, found: Domain) -> None:
    """What the platform, or a template's author, wrote into the domain by hand must not be one of ours, unless the
    request adopts it."""
    if not found.hostdevs and not found.mdevs:
        return
    adopted = {want.address for want in request.wants}
    taken = {function for board in site.view().host.boards for function in functions_of(board)}
    raw = [address for address in found.hostdevs if address in taken and address not in adopted]
    raw += [uuid for uuid in found.mdevs if uuid.lower() in site.ledger.uuids()]
    if raw:
        raise OwnershipError(f"VM {request.vm.id}: its XML takes {', '.join(raw)} by itself, which is ours to give",
                             "ask for a profile, or adopt the device by its address")


# ---- recording ---------------------------------------------------------------------------------------

def _record(site: Site, request: Request, search: Search, found: Placement | Refusal) -> Optional[Decision]:
    """Under the lock: place again if the ledger has changed since, and record if every slot was looked at. None:
    others were faster."""
    with site.ledger.write():
        held = site.ledger.claim_of(request.vm.id)
        if held is not None and held.state == "releasing":
            held = None
        if held is not None and (search.kept is None or held.id != search.kept.id):
            raise OwnershipError(f"VM {request.vm.id}: is being started by another process (claim {held.id})")
        if site.ledger.version() != search.version:
            host = search.host()._replace(nodes=search.nodes)
            found = place(request, host, site.taken(search.view), site.config.policy)
        if isinstance(found, Refusal) or not search.knows(found):
            return None
        if held is not None:
            site.ledger.remove(held.id)
        placement, actions = search.finish(found), search.actions(found)
        new = Claim(posix.urandom(8).hex(), request.vm.id, request.vm.user, request.vm.groups, "starting", request.keep,
                    search.view.host.boot_id, holder_of(posix.getpid()), None, int(time()), None, MAKING_READY)
        boards = {board.address: board.identity for board in search.view.host.boards}
        site.ledger.add(new, placement, actions, boards)
        site.ledger.event(new.id, new.vm, "claimed", ", ".join(device.hold.slot for device in placement.devices))
    return Decision(request, search.view.host, new.id, placement, None, actions)


def _hand_over(site: Site, decision: Decision, holder: Optional[Holder]) -> None:
    """From here the claim lives as long as who starts the VM; where that is not known, for a while.
    Raises OwnershipError, with all given back, where somebody released the VM meanwhile."""
    assert decision.claim is not None
    deadline = boottime() + APPEAR_S if holder is None else None
    with site.ledger.note():
        held = site.ledger.claim(decision.claim)
        if held is not None and held.state == "starting":
            site.ledger.set_state(held.id, "starting", holder=holder, deadline=deadline)
            return
    vm = decision.request.vm.id
    release(site, vm, decision.claim)
    raise OwnershipError(f"VM {vm}: was released while it was being made ready")
