"""What is wrong with the hook and the mappings, and what helps: on this node, and in the cluster."""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kvm_gpu.site import Site
from pve_gpu_hook import hookinstall, mappingsync
from pve_gpu_hook.assign import mapping_of
from pve_gpu_hook.cluster import Cluster, Guest
from pve_gpu_hook.qmconf import HOSTPCI, properties
from pve_gpu_hook.sizes import is_ours

TIMER: Final = "etc/systemd/system/timers.target.wants/kvm-gpu-reconcile.timer"


class Finding(NamedTuple):
    where: str
    what: str
    helps: str


def this_node(root: Path, node: str) -> Iterator[Finding]:
    """The files of this node."""
    program, link = root / hookinstall.PROGRAM.lstrip("/"), root / hookinstall.LINK
    if not os.access(program, os.X_OK):
        yield Finding(node, f"{hookinstall.PROGRAM} is not there: no VM with the hook starts",
                      "install the package pve-gpu-hook")
    if not (link.is_symlink() and os.readlink(link) == hookinstall.PROGRAM):
        yield Finding(node, f"/{hookinstall.LINK} is no link to it", "pve-gpu hook install")
    if not (root / TIMER).is_symlink():
        yield Finding(node, "GPUs of failed starts are not freed until somebody needs them",
                      "systemctl enable --now kvm-gpu-reconcile.timer")


def mappings(site: Site, cluster: Cluster, node: str) -> Iterator[Finding]:
    """What the node finds wrong with its mappings, and what differs from its boards."""
    plan = mappingsync.plan(site, cluster, node, refresh=True)
    ours = {id for id, mapping in cluster.mappings().items() if is_ours(mapping)}
    for id, messages in cluster.complaints(node).items():
        if id in ours:
            yield Finding(node, f"mapping {id}: no VM with it starts: {'; '.join(messages)}", "pve-gpu mapping sync")
    if plan.changes:
        names = ", ".join(change.id for change in plan.changes)
        yield Finding(node, f"mappings that do not list the devices that there are: {names}", "pve-gpu mapping sync")
    yield from (Finding(node, complaint, "pve-gpu mapping sync") for complaint in plan.complaints)
    yield from (Finding(node, f"{slot} is in no mapping: {why}", "") for slot, why in plan.left)


def guests(cluster: Cluster) -> Iterator[Finding]:
    """VMs of the whole cluster that use a mapping of ours, and do not do so rightly."""
    known = {id: mapping for id, mapping in cluster.mappings().items() if is_ours(mapping)}
    for guest in cluster.guests():
        config = cluster.config(guest)
        devices = {key: config[key] for key in HOSTPCI if key in config and mapping_of(config[key]) in known}
        if not devices:
            continue
        for key, value in devices.items():
            if known[mapping_of(value)].mdev and "mdev" not in properties(value, "host"):
                yield _finding(guest, f"{key} has no MDev Type: the VM does not start",
                               f"choose the one that mapping {mapping_of(value)} names, under Hardware")
        if config.get("hookscript") != hookinstall.VOLUME:
            yield _finding(guest, "has a GPU without the hook: Proxmox VE takes any free device, on any NUMA node",
                           f"pve-gpu hook install {guest.vmid}")


def nodes(cluster: Cluster) -> Iterator[Finding]:
    """Where VMs with the hook would not start."""
    for text in hookinstall.missing(cluster):
        where, _, what = text.partition(": ")
        yield Finding(where, what, "")


def told(findings: Iterable[Finding]) -> str:
    """For people."""
    return "".join(f"{where}: {what}\n    {helps}\n" if helps else f"{where}: {what}\n"
                   for where, what, helps in findings)


def _finding(guest: Guest, what: str, helps: str) -> Finding:
    return Finding(f"VM {guest.vmid} on {guest.node}", what, helps)
