"""pre-start: from the configuration to the claim, and Proxmox VE steered to the devices that were chosen.

Nothing is written to the VM's configuration or to a mapping: this start would not see it.
"""
from __future__ import annotations

from kvm_gpu import claims, pci
from kvm_gpu.errors import BusyError, GpuError, HostError, NoCapacity
from kvm_gpu.holder import holder_of
from kvm_gpu.model import Reason, Refusal
from pve_gpu_hook import lease, mapping, reservation, scope, wanted
from pve_gpu_hook.pools import pools
from pve_gpu_hook.qmconf import flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Final

    from kvm_gpu.model import Decision, Device, PciAddress, Placement, Request
    from kvm_gpu.site import Site
    from pve_gpu_hook.mapping import HostPci
    from pve_gpu_hook.qmconf import Conf
    from pve_gpu_hook.wanted import Asked

    Barred = Mapping[int, Mapping[PciAddress, str]]     # hostpciN -> address -> why it may not have it
    Chosen = list[PciAddress]

ATTEMPTS: Final = 20            # each is lost to a start without this hook, or to the order of a mapping


def start(site: Site, vm: str, conf: Conf, pid: int) -> tuple[str, ...]:
    """Lines for the task log. The process `pid` is the claim's holder. Raises GpuError, with nothing changed."""
    root = site.sysfs.root
    asked = _asked(site, vm, conf)
    if not asked:
        scope.bind(root, vm, {})
        return ()
    decision, chosen = _claim(site, vm, conf, asked, pid)
    assert decision.claim is not None
    assert decision.placement is not None
    try:
        settings = scope.settings(decision.placement)
        scope.bind(root, vm, settings)
        lease.write(root, vm, lease.Lease(decision.claim, decision.placement.emulator, settings))
    except GpuError:
        give_back(site, vm, decision.claim)
        raise
    return (*_told(decision, asked, chosen), *_bound(settings), *decision.placement.warnings)


def give_back(site: Site, vm: str, claim: str) -> tuple[str, ...]:
    """End a claim, with what leads Proxmox VE and systemd to it; what happened, in words. Raises GpuError."""
    try:
        scope.bind(site.sysfs.root, vm, {})
        reservation.let_go(site, vm, started=False)
        lease.remove(site.sysfs.root, vm)
    finally:
        done = claims.release(site, vm, claim)
    return done


# ---- what is asked ---------------------------------------------------------------------------------

def _asked(site: Site, vm: str, conf: Conf) -> tuple[Asked, ...]:
    """() for a template, which Proxmox VE starts without its devices to back it up."""
    if flag(conf.get("template")):
        return ()
    node = site.sysfs.link(mapping.NODE) or ""
    devices = mapping.devices(site.sysfs.root, node, conf)
    host = site.view().host
    found = wanted.asked(site.sysfs, host, vm, devices)
    if len(found) < len(devices) and any(_is_new(site, device, found) for device in devices):
        found = wanted.asked(site.sysfs, site.fresh_view().host, vm, devices)
    return found


def _is_new(site: Site, device: HostPci, found: Sequence[Asked]) -> bool:
    """Whether it is a GPU that the cached host does not show: it may have come since."""
    address = mapping.first(device.alternatives[0][0])
    if any(one.device == device for one in found):
        return False
    try:
        return pci.is_gpu(pci.read_function(site.sysfs, address).pci_class)
    except HostError:
        return False


# ---- deciding together with Proxmox VE -------------------------------------------------------------

def _claim(site: Site, vm: str, conf: Conf, asked: tuple[Asked, ...], pid: int) -> tuple[Decision, Chosen]:
    """A claim that Proxmox VE will follow, and the alternative that each hostpciN gets."""
    groups = pools(site.sysfs.root, vm) if "tags" in conf else ()
    order: dict[int, dict[PciAddress, str]] = {}
    for _ in range(ATTEMPTS):
        reserved = reservation.of_others(site, vm)
        barred = {one.device.number: {**_reserved(one, reserved), **order.get(one.device.number, {})} for one in asked}
        wants = tuple(one.among(barred[one.device.number]) for one in asked)
        _refuse_reserved(vm, asked, barred)
        request = wanted.request(vm, conf, wants, tuple(one.uuid for one in asked), site.config.offers, groups)
        decision = _decide(site, request, pid, barred)
        assert decision.claim is not None
        assert decision.placement is not None
        chosen = [_alternative(one, device) for one, device in zip(asked, decision.placement.devices, strict=True)]
        try:
            swapped = _swapped(asked, chosen)
            if not swapped and reservation.steer(site, vm, *_lines(asked, chosen)):
                return decision, chosen
        except GpuError:
            claims.release(site, vm, decision.claim)
            raise
        claims.release(site, vm, decision.claim)
        for index, addresses in swapped.items():
            order.setdefault(index, {}).update(addresses)
    raise BusyError(f"VM {vm}: lost {ATTEMPTS} times to other starts", "try again")


def _decide(site: Site, request: Request, pid: int, barred: Barred) -> Decision:
    """claims.claim for devices on boards of their own; where that is refused, for all on one, as Proxmox VE would give
    them. A refusal also tells what only Proxmox VE knows."""
    try:
        return claims.claim(site, request, holder_of(pid))
    except NoCapacity as refused:
        together = request._replace(close="required")
        if len(request.wants) > 1 and request.close == "preferred" and claims.explain(site, together).placement:
            return claims.claim(site, together, holder_of(pid))
        found = refused.refusal
        reasons = found.reasons + tuple(_reasons(barred))
        raise NoCapacity(refused.message, found._replace(reasons=reasons)) from None


def _refuse_reserved(vm: str, asked: tuple[Asked, ...], barred: Barred) -> None:
    for one in asked:
        if not one.alternatives.keys() - barred[one.device.number].keys():
            raise NoCapacity(f"VM {vm}: {one.device}: none is free", Refusal(
                tuple(_reasons({0: barred[one.device.number]})), "stop one of these VMs"))


def _reasons(barred: Barred) -> Iterator[Reason]:
    found = {address: why for addresses in barred.values() for address, why in addresses.items()}
    return (Reason(address, why) for address, why in sorted(found.items()))


def _reserved(one: Asked, reserved: Mapping[PciAddress, str]) -> dict[PciAddress, str]:
    return {address: f"reserved by Proxmox VE for VM {other}" for address, alternative in one.alternatives.items()
            for function, other in reserved.items() if mapping.covers(alternative, function)}


def _alternative(one: Asked, device: Device) -> PciAddress:
    """The one that is this device."""
    parts = {device.hold.slot, *device.functions}
    return next(address for address in one.alternatives if address in parts)


def _swapped(asked: tuple[Asked, ...], chosen: Chosen) -> dict[int, dict[PciAddress, str]]:
    """Proxmox VE takes the first in a mapping's order that is reserved for the VM, whichever hostpciN of the VM it is
    meant for: equal ones may change places, others must not. What a later hostpciN may then not have, by its number."""
    own = {address: one for one, address in zip(asked, chosen, strict=True) if one.uuid is None}
    for one, address in zip(asked, chosen, strict=True):
        taken = next((other for other in one.alternatives if other in own), address)
        if one.uuid is None and own[taken].want != one.want:
            before = list(one.alternatives)[:list(one.alternatives).index(address)]
            return {own[taken].device.number: dict.fromkeys(before, f"hostpci{one.device.number} would take it")}
        own.pop(taken, None)
    return {}


def _lines(asked: tuple[Asked, ...], chosen: Chosen) -> tuple[set[PciAddress], set[PciAddress]]:
    """What to reserve for the VM, and what for nobody. Mediated devices of the classic kind have no reservation: there
    Proxmox VE takes the one on which the mdev of its UUID is."""
    wanted: set[PciAddress] = set()
    others: set[PciAddress] = set()
    for one, address in zip(asked, chosen, strict=True):
        if one.uuid is None:
            wanted.update(map(mapping.first, one.alternatives[address]))
            others.update(mapping.first(alternative[0]) for alternative in one.device.alternatives)
    return wanted, others - wanted


# ---- words -----------------------------------------------------------------------------------------

def _told(decision: Decision, asked: tuple[Asked, ...], chosen: Collection[PciAddress]) -> Iterator[str]:
    placement: Placement | None = decision.placement
    assert placement is not None
    nodes = {board.address: board.numa_node for board in decision.host.boards}
    for one, address, device in zip(asked, chosen, placement.devices, strict=True):
        node = nodes[device.hold.board]
        where = "NUMA node unknown" if node is None else f"NUMA node {node}"
        yield f"{one.device}: {device.hold.profile} at {address}, {where}"


def _bound(settings: dict[str, str]) -> Iterator[str]:
    words = {"AllowedCPUs": "CPUs", "AllowedMemoryNodes": "memory on node"}
    return (f"{words[name]} {value}" for name, value in settings.items())
