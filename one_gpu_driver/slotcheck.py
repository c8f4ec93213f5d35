"""Whether a host has what its GPU slots promise. oned gives away a slot and does not ask the host again."""
from __future__ import annotations

from kvm_gpu.capacity import capacity
from kvm_gpu.model import Request, Taken, Vm, Want
from kvm_gpu.plan import decide
from one_gpu_driver import pcislots, probe
from one_gpu_driver.doctor import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    from kvm_gpu.model import Host, Policy
    from kvm_gpu.site import Site, View
    from one_gpu_driver.pcislots import Slots

VM: Final = "slot {}"


def findings(site: Site, view: View) -> Iterator[Finding]:
    """Sizes of which oned is told more than fit. Raises HostError."""
    slots = pcislots.read(site.sysfs.root)
    others = Taken(tuple(view.foreign), (), site.ledger.taken().cordoned)
    fit = fitting(slots, view.host, others, site.config.policy)
    for size, many in slots:
        if fit[size] < many:
            told = f"oned is told of {many} slots {size}; with all slots in use {fit[size]} have a GPU"
            helps = f"lower it in {pcislots.FILE}; kvm-gpu capacity shows what there is of each size"
            yield Finding("this host", told, helps)


def fitting(slots: Slots, host: Host, others: Taken, policy: Policy) -> dict[str, int]:
    """How many of each size have a GPU when all slots are in use, beside what is not ours to give. The largest come
    first."""
    totals = {pool.profile: pool.total for pool in probe.pools(capacity(host, others, policy))}
    fit: dict[str, int] = {}
    taken = others
    for size, many in sorted(slots, key=lambda slot: (totals.get(slot[0], 0), slot)):
        fit[size] = 0
        for _ in range(many):
            placement = decide(Request(Vm(VM.format(len(taken.holds))), (Want(size),)), host, taken, policy)
            if placement is None:
                break
            taken = taken._replace(holds=(*taken.holds, *(device.hold for device in placement.devices)))
            fit[size] += 1
    return fit
