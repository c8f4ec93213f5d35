"""Making ready what was decided and recorded, and what becomes of the record where that fails."""
from __future__ import annotations

from kvm_gpu.apply import apply, stands
from kvm_gpu.errors import HostError
from kvm_gpu.holder import boottime
from kvm_gpu.inuse import InUse, refuse_in_use
from kvm_gpu.look import functions_of, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvm_gpu.look import Search
    from kvm_gpu.model import Decision, Device, Host
    from kvm_gpu.site import Site


def act(site: Site, decision: Decision, search: Search) -> bool:
    """Make the devices ready; False where somebody foreign turned out to be inside one: `search` knows it then. While
    this runs the claim's holder is this process: nobody frees a claim that is being made ready. Raises HostError."""
    assert decision.placement is not None
    try:
        refuse_in_use(site.sysfs, decision.placement.devices)   # others' starts do not look at what the ledger has
        apply(site.sysfs, decision.actions)
    except InUse as error:
        _drop(site, decision, search, error.message)
        search.renew(site.fresh_view())
        for device in decision.placement.devices:
            if error.device in _all_of(decision.host, device):
                search.veto(device.hold.board, device.hold.slot, error.message)
        return False
    except HostError as error:
        _drop(site, decision, search, error.message)
        raise
    return True


def _all_of(host: Host, device: Device) -> frozenset[str]:
    """Names of all that a VM could be inside of when this device is made ready."""
    return functions_of(parts(host, device)[0]) | {device.uuid or device.hold.slot}


def _drop(site: Site, decision: Decision, search: Search, why: str) -> None:
    """End a claim that came to nothing. What the VM had kept it keeps; what the kernel would not undo stays with the
    claim for the next reconcile."""
    claim_id, ledger = decision.claim, site.ledger
    assert claim_id is not None
    left = any(stands(site.sysfs, action) for action in decision.actions)
    with ledger.note():
        if search.kept is not None:
            ledger.set_state(claim_id, "kept", why)
            ledger.free_compute(claim_id)
        elif left:
            ledger.set_state(claim_id, "releasing", why, deadline=boottime() + site.config.release_deadline_s)
        else:
            ledger.remove(claim_id)
        ledger.event(claim_id, decision.request.vm.id, "failed", why)
    search.kept = search.kept and ledger.claim(claim_id)
