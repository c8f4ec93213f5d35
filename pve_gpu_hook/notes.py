"""What a VM holds, told in the GUI: lines of its notes, and tags. What the admin wrote there stays."""
from __future__ import annotations

import re
from time import localtime, strftime
from typing import Final, NamedTuple

from kvm_gpu import private
from kvm_gpu.cpulist import format_cpus
from kvm_gpu.errors import GpuError
from kvm_gpu.ledgerrows import Claim
from kvm_gpu.site import RUN, Site
from pve_gpu_hook.cluster import Cluster
from pve_gpu_hook.tags import HOLDS, joined, split
from pve_gpu_hook.vmchange import VmChange, change

HEAD: Final = "- GPU: "                     # a list in Markdown, which the GUI renders
TAIL: Final = " (written by pve-gpu)"
FORMAT: Final = 1
SHOWN: Final = ("active", "kept")           # a VM that starts has its configuration locked


class Held(NamedTuple):
    lines: tuple[str, ...]
    tags: tuple[str, ...]


def held(site: Site) -> dict[str, Held]:
    """By VM."""
    nodes = {board.address: board.numa_node for board in site.view().host.boards}
    return {claim.vm: _held(site, claim, nodes) for claim in site.ledger.claims() if claim.state in SHOWN}


def is_told(site: Site, now: dict[str, Held]) -> bool:
    """Whether all of it was written already: asked every half minute, this must cost little."""
    return private.load(_told(site), FORMAT) == _rows(now)


def note_told(site: Site, now: dict[str, Held]) -> None:
    private.store(_told(site), FORMAT, _rows(now))


def changes(cluster: Cluster, node: str, now: dict[str, Held]) -> list[VmChange]:
    """For the node's VMs that hold something, or of which our tags say that they do."""
    found = []
    for guest in cluster.guests():
        told = any(tag.startswith(HOLDS) for tag in guest.tags)
        has = now.get(str(guest.vmid), Held((), ()))
        if guest.node == node and (told or has.lines):
            config = cluster.config(guest)
            found.append(change(guest, config, {
                "description": renewed(config.get("description", ""), has.lines),
                "tags": _tags(config.get("tags", ""), has.tags)}))
    return [todo for todo in found if todo]


def write(cluster: Cluster, todo: list[VmChange]) -> list[str]:
    """What went wrong: a VM that is locked, for a backup, is for the next time."""
    failures = []
    for each in todo:
        try:
            cluster.set_config(each.guest, each.old["digest"], each.values, each.delete)
        except GpuError as failure:
            failures.append(f"VM {each.guest.vmid}: {failure.message}")
    return failures


def renewed(notes: str, lines: tuple[str, ...]) -> str | None:
    """The notes with these lines at their end in place of ours of before; None: no notes."""
    before = notes.splitlines()
    own = [line for line in before if not (line.startswith(HEAD) and line.endswith(TAIL))]
    if not lines and len(own) == len(before):
        return notes or None
    text = "\n\n".join(part for part in ("\n".join(own).rstrip("\n"), "\n".join(lines)) if part)
    return notes if notes.rstrip("\n") == text else text or None


def _held(site: Site, claim: Claim, nodes: dict[str, int | None]) -> Held:
    devices = site.ledger.devices(claim.id)
    since = strftime("%Y-%m-%d %H:%M", localtime(claim.since))
    until = ", kept while it is stopped" if claim.state == "kept" else f", since {since}"
    lines = [f"{device.hold.profile} on {device.hold.slot}{_node(nodes.get(device.hold.board))}{until}"
             for device in devices]
    cpus = {cpu for use in site.ledger.uses(claim.id) for _, pins in use.pins for cpu in pins}
    lines += [f"CPUs {format_cpus(tuple(cpus))}"] if cpus else []
    return Held(tuple(HEAD + line + TAIL for line in lines),
                tuple(sorted({HOLDS + _tag(device.hold.profile) for device in devices})))


def _node(node: int | None) -> str:
    return "" if node is None else f", NUMA node {node}"


def _tag(profile: str) -> str:
    """Source: pve-tag in PVE::JSONSchema."""
    return re.sub(r"[^a-z0-9_.+-]", "-", profile.lower())


def _tags(before: str, tags: tuple[str, ...]) -> str | None:
    return joined([tag for tag in split(before) if not tag.startswith(HOLDS)] + list(tags), before)


def _rows(now: dict[str, Held]) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    return tuple((vm, *has) for vm, has in sorted(now.items()))


def _told(site: Site) -> str:
    return f"{site.sysfs.root}{RUN}/pve-notes"
