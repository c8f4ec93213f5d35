"""The hook as a snippet of a node, and as the hookscript of VMs."""
from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from kvm_gpu.errors import HostError, RequestError
from pve_gpu_hook.cluster import Cluster, Guest
from pve_gpu_hook.vmchange import VmChange, change

STORAGE: Final = "local"
VOLUME: Final = "local:snippets/pve-gpu-hook"
LINK: Final = "var/lib/vz/snippets/pve-gpu-hook"
PROGRAM: Final = "/usr/libexec/kvm-gpu/pve-gpu-hook"


def has_link(root: Path) -> bool:
    """Raises HostError where another file has its name."""
    link = root / LINK
    if link.is_symlink() and os.readlink(link) == PROGRAM:
        return True
    if os.path.lexists(link):
        raise HostError(f"/{LINK}: is there and not a link to {PROGRAM}", "move it away")
    return False


def make_link(root: Path) -> None:
    """Raises HostError."""
    link = root / LINK
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(PROGRAM, link)
    except OSError as error:
        raise HostError(f"{link}: {error.strerror}") from None


def remove_link(root: Path) -> None:
    """Raises HostError."""
    try:
        (root / LINK).unlink()
    except OSError as error:
        raise HostError(f"{root / LINK}: {error.strerror}") from None


def chosen(cluster: Cluster, vmids: Collection[int], tag: str | None) -> tuple[Guest, ...]:
    """The VMs of these ids, and those with the tag. Raises RequestError for an id that no VM has."""
    guests = cluster.guests()
    unknown = sorted(set(vmids) - {guest.vmid for guest in guests})
    if unknown:
        raise RequestError(f"VM {unknown[0]}: no such VM in the cluster, or the token may not see it")
    return tuple(guest for guest in guests if guest.vmid in vmids or (tag is not None and tag in guest.tags))


def install(cluster: Cluster, guests: Iterable[Guest]) -> tuple[list[VmChange], list[str]]:
    """What is to change, and which VMs are left alone."""
    changes, complaints = [], []
    for guest, config in ((guest, cluster.config(guest)) for guest in guests):
        other = config.get("hookscript", VOLUME)
        if other == VOLUME:
            changes += [todo] if (todo := change(guest, config, {"hookscript": VOLUME})) else []
        else:
            complaints.append(f"VM {guest.vmid}: has another hookscript, {other}: left as it is")
    return changes, complaints


def remove(cluster: Cluster, guests: Iterable[Guest]) -> list[VmChange]:
    configs = ((guest, cluster.config(guest)) for guest in guests)
    return [change(guest, config, {"hookscript": None}) for guest, config in configs
            if config.get("hookscript") == VOLUME]


def users(cluster: Cluster) -> set[int]:
    """VMs of the whole cluster that have our hookscript."""
    return {guest.vmid for guest in cluster.guests() if cluster.config(guest).get("hookscript") == VOLUME}


def missing(cluster: Cluster, here: str | None = None) -> tuple[str, ...]:
    """What stands in the way of the hook on the nodes that are online: where it is missing, its VMs do not start.
    `here`: the node that is getting it."""
    found = []
    for node in (node.name for node in cluster.nodes() if node.online):
        volumes = cluster.snippets(node, STORAGE)
        if volumes is None:
            found.append(f"{node}: storage {STORAGE} may hold no snippets: add them under Datacenter > Storage")
        elif VOLUME not in volumes and node != here:
            found.append(f"{node}: has no {VOLUME}: run pve-gpu hook install there")
    return tuple(found)
