"""A VM's wish for GPUs as keys of its configuration: devices by mapping, guest NUMA, huge pages.

What the hook decides at each start (which device, which CPUs) is not among them.
"""
from __future__ import annotations

from typing import Final, NamedTuple

from kvm_gpu.claims import explain, wanted
from kvm_gpu.cpulist import format_cpus
from kvm_gpu.errors import NoCapacity, RequestError
from kvm_gpu.model import Decision, GuestNode, Offer, Request, Vm, Want
from kvm_gpu.request import check, from_offer
from kvm_gpu.site import Site
from pve_gpu_hook.mappingsync import mdev_types
from pve_gpu_hook.sizes import mapping_id
from pve_gpu_hook.wanted import MEDIATED

PAGES: Final = ("2", "1024")            # MiB; Proxmox VE makes them itself, at each start


class Wish(NamedTuple):
    """`offer` or `profile`. `numa`: the guest sees a NUMA node, bound to `host_node` (None: where its devices would be
    now). `hugepages`: "2" or "1024" MiB, which need that node."""
    profile: str | None = None
    offer: str | None = None
    cards: int = 1
    numa: bool = False
    host_node: int | None = None
    hugepages: str | None = None


class Machine(NamedTuple):
    """What the VM has besides."""
    vcpus: int
    memory_mib: int
    q35: bool


class HostPciValue(NamedTuple):
    """Of a hostpciN."""
    mapping: str
    mdev_type: str | None
    q35: bool

    def __str__(self) -> str:
        words = (f"mapping={self.mapping}", self.mdev_type and f"mdev={self.mdev_type}", self.q35 and "pcie=1")
        return ",".join(word for word in words if word)


def devices(site: Site, vm: str, machine: Machine, wish: Wish) -> tuple[HostPciValue, ...]:
    """Raises RequestError, NoCapacity where the host has to be asked and refuses now, HostError."""
    host = site.view().host
    here = {profile.name.lower(): (layout.mechanism in MEDIATED, profile.type_id or "") for board in host.boards
            for layout in board.layouts[:1] for cell in layout.cells for profile in cell.profiles}
    types = mdev_types(site, host.boards)
    found = []
    for profile in _profiles(site, _request(site, vm, machine, wish)):
        if profile.lower() not in here:
            raise RequestError(f"no board of this host has the profile {profile} as it is now", "kvm-gpu capacity")
        mediated, number = here[profile.lower()]
        found.append(HostPciValue(mapping_id(profile), types.get(number) if mediated else None, machine.q35))
    return tuple(found)


def numa(site: Site, vm: str, machine: Machine, wish: Wish) -> dict[str, str]:
    """One guest node with all vCPUs and all memory, bound to a host node; {} where it is not wished. Raises as
    `devices`."""
    if not wish.numa and not wish.hugepages:
        return {}
    if wish.hugepages and machine.memory_mib % int(wish.hugepages):
        raise RequestError(f"{machine.memory_mib} MiB is no multiple of {wish.hugepages} MiB")
    node = _home(site, _request(site, vm, machine, wish)) if wish.host_node is None else wish.host_node
    cpus = format_cpus(tuple(range(machine.vcpus)))
    values = {"numa": "1", "numa0": f"cpus={cpus},hostnodes={node},memory={machine.memory_mib},policy=bind"}
    return {**values, "hugepages": wish.hugepages} if wish.hugepages else values


def _request(site: Site, vm: str, machine: Machine, wish: Wish) -> Request:
    guest = GuestNode(0, tuple(range(machine.vcpus)), machine.memory_mib,
                      bound=None if wish.host_node is None else (wish.host_node,))
    if wish.offer is None:
        return check(Request(Vm(vm), (Want(wish.profile, cards=wish.cards),), (guest,)))
    return from_offer(_offer(site, wish.offer)._replace(users=None, groups=None), Vm(vm))._replace(guest=(guest,))


def _offer(site: Site, name: str) -> Offer:
    for offer in site.config.offers:
        if offer.name == name:
            return offer
    known = ", ".join(offer.name for offer in site.config.offers)
    raise RequestError(f"no offer {name!r} on this host", f"offers: {known or 'none'}")


def _profiles(site: Site, request: Request) -> tuple[str, ...]:
    """One for each device; where the request leaves it open, those that it would get now."""
    named = tuple(want.profile for want in request.wants for _ in range(want.cards) if want.profile)
    if all(want.profile for want in request.wants):
        return named
    placement = _placed(explain(site, request)).placement
    assert placement
    return tuple(device.hold.profile for device in placement.devices)


def _home(site: Site, request: Request) -> int:
    """The host node on which the VM would be now."""
    placement = _placed(explain(site, request._replace(numa="required"))).placement
    node = placement.uses[0].node if placement and placement.uses else None
    if node is None:
        raise RequestError("the NUMA node of its devices is not known", "give --host-node")
    return node


def _placed(decision: Decision) -> Decision:
    if decision.refusal:
        request = decision.request
        raise NoCapacity(f"VM {request.vm.id}: {wanted(request)}: refused on this host now", decision.refusal)
    return decision
