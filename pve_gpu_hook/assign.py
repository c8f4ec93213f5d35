"""Gives a VM its wish for GPUs before it starts, in its configuration, where the admin sees it."""
from __future__ import annotations

from kvm_gpu.errors import RequestError
from kvm_gpu.site import Site
from pve_gpu_hook import wish as wishes
from pve_gpu_hook.cluster import Cluster
from pve_gpu_hook.guest import MEMORY_MIB
from pve_gpu_hook.qmconf import HOSTPCI, number, properties
from pve_gpu_hook.sizes import of_node
from pve_gpu_hook.tags import OFFER, joined, split
from pve_gpu_hook.vmchange import VmChange, change
from pve_gpu_hook.wish import HostPciValue, Machine, Wish


def assign(site: Site, cluster: Cluster, node: str, vmid: int, wish: Wish) -> VmChange:
    """What is to change. Raises RequestError, NoCapacity where the host has to be asked and refuses now, HostError."""
    guest = cluster.guest(vmid)
    if guest.node != node:
        raise RequestError(f"VM {vmid}: is on {guest.node}", "run it there: only a node knows its own boards")
    config = cluster.config(guest)
    machine = machine_of(config)
    devices = wishes.devices(site, str(vmid), machine, wish)
    _check_mapped(cluster, node, devices)
    numa = wishes.numa(site, str(vmid), machine, wish)
    if numa:
        _check_numa(vmid, config)
    return change(guest, config, {**_hostpci(config, devices), **numa, "tags": _tags(config, wish)})


def machine_of(config: dict[str, str]) -> Machine:
    vcpus = number(config.get("sockets"), 1) * number(config.get("cores"), 1)
    memory = properties(config.get("memory", ""), "current").get("current")
    return Machine(vcpus, number(memory, MEMORY_MIB), "q35" in config.get("machine", ""))


def mapping_of(hostpci: str) -> str:
    """Its mapping; empty for a raw device."""
    return properties(hostpci, "host").get("mapping", "")


def _hostpci(config: dict[str, str], devices: tuple[HostPciValue, ...]) -> dict[str, str | None]:
    """Devices with a mapping of ours are replaced, others stay where they are."""
    free = [key for key in HOSTPCI if key not in config or mapping_of(config[key]).startswith("gpu-")]
    if len(devices) > len(free):
        raise RequestError(f"{len(devices)} devices, but only {len(free)} of the VM's {len(HOSTPCI)} are free")
    return {**dict.fromkeys(free), **dict(zip(free, map(str, devices), strict=False))}


def _check_mapped(cluster: Cluster, node: str, devices: tuple[HostPciValue, ...]) -> None:
    known = cluster.mappings()
    for id in (device.mapping for device in devices):
        if id not in known or not of_node(known[id], node):
            raise RequestError(f"no mapping {id} on {node}", "pve-gpu mapping sync")


def _check_numa(vmid: int, config: dict[str, str]) -> None:
    own = sorted(key for key in config if key[:4] == "numa" and key[4:].isdigit() and key != "numa0")
    if own:
        raise RequestError(f"VM {vmid}: has NUMA nodes of its own: {', '.join(own)}",
                           "remove them, or leave out --numa and --hugepages")


def _tags(config: dict[str, str], wish: Wish) -> str | None:
    before = config.get("tags", "")
    tags = [tag for tag in split(before) if not tag.startswith(OFFER)]
    return joined(tags + ([OFFER + wish.offer] if wish.offer else []), before)
