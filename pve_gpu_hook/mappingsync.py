"""Brings the cluster's resource mappings in line with the boards of this node: what would change, then the change."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from kvm_gpu.errors import BusyError
from kvm_gpu.model import Board
from kvm_gpu.site import Site
from pve_gpu_hook.cluster import Cluster, Mapping
from pve_gpu_hook.sizes import Left, Size, is_ours, mapping_id, of_node, sizes, without

ATTEMPTS: Final = 10                    # each is lost to another node that wrote the same file
SHOWN: Final = 8
NVIDIA: Final = "nvidia-"               # what PVE puts before the type ids of vendor VFIO


class Change(NamedTuple):
    """`new` in place of `old`; None: no such mapping. `size`: what it is made of, None where nothing is left here."""
    id: str
    old: Mapping | None
    new: Mapping | None
    size: Size | None


class Plan(NamedTuple):
    """`complaints`: what stays as it is though it does not fit; `left`: slots that are in no mapping."""
    changes: tuple[Change, ...]
    complaints: tuple[str, ...]
    left: tuple[Left, ...]


def plan(site: Site, cluster: Cluster, node: str, only: Collection[str] = (), refresh: bool = False) -> Plan:
    """What is to do. `only`: profiles, in any case; none: all of the node. `refresh`: only for mappings that the
    cluster has, and without removing the last device of one: at boot VFs may be late. Raises HostError."""
    boards = site.fresh_view().host.boards
    found, left = sizes(boards, cluster.hardware(node), mdev_types(site, boards))
    known = cluster.mappings()
    wanted = {mapping_id(name) for name in only} or found.keys() | known.keys()
    changes, complaints = [], [f"{name}: nothing of it on {node}" for name in only if mapping_id(name) not in found]
    for id in sorted(wanted & (found.keys() | known.keys())):
        old, size = known.get(id), found.get(id)
        new = _renewed(size, node, old)
        if new == old:
            continue
        if old is not None and not is_ours(old):
            complaints += [f"mapping {id}: was not made by pve-gpu, and stays as it is"] if size else []
        elif refresh and size is None:
            complaints.append(f"mapping {id}: none of its devices on {node} is there")
        elif old is not None or not refresh:
            changes.append(Change(id, old, new, size))
    return Plan(tuple(changes), tuple(complaints), left)


def make(cluster: Cluster, node: str, change: Change) -> None:
    """On the mapping as it is by now: other nodes write the same file. Raises HostError, BusyError."""
    for _ in range(ATTEMPTS):
        now = cluster.mapping(change.id)
        old = now[0] if now else None
        new = _renewed(change.size, node, old)
        try:
            if old is None and new is not None:
                cluster.create_mapping(new)
            elif new is None and old is not None:
                cluster.delete_mapping(change.id)
            elif new is not None and new != old and now is not None:
                cluster.update_mapping(new, now[1])
            return
        except BusyError:
            continue
    raise BusyError(f"mapping {change.id}: {ATTEMPTS} times changed by others meanwhile", "try again")


def mdev_types(site: Site, boards: Iterable[Board]) -> dict[str, str]:
    """What PVE calls the vGPU types of the boards, by type id: {"713": "nvidia-713"}."""
    return {kind: name for board in boards for kind, name in _named_types(site, board)}


def shown(change: Change, node: str) -> str:
    """For people, with the devices of this node that come or go; a device that is told differently goes and comes."""
    old, new = (of_node(mapping, node) if mapping else () for mapping in (change.old, change.new))
    if change.new is None:
        return f"remove mapping {change.id}\n"
    gone, come = ([entry for entry in mine if entry not in others] for mine, others in ((old, new), (new, old)))
    head = f"create mapping {change.id}" if change.old is None else f"change mapping {change.id}"
    if change.old is None or change.old.description != change.new.description:
        head += f": {change.new.description}"
    return f"{head}\n" + _lines("-", gone) + _lines("+", come)


def _renewed(size: Size | None, node: str, old: Mapping | None) -> Mapping | None:
    if size is not None:
        return size.merged(node, old)
    rest = without(old, node) if old else None
    return rest if rest and rest.map else None      # PVE takes no mapping without a device


def _named_types(site: Site, board: Board) -> Iterator[tuple[str, str]]:
    from kvm_gpu.mechanisms.mdev import type_folder
    for layout in board.layouts[:1]:
        for profile in (profile for cell in layout.cells for profile in cell.profiles if profile.type_id is not None):
            if layout.mechanism == "mdev":
                folders = (type_folder(site.sysfs, slot, profile) for slot in layout.slots)
                name = next((folder for folder in folders if folder), None)
            else:
                name = NVIDIA + str(profile.type_id)
            if name:
                yield str(profile.type_id), name


def _lines(sign: str, entries: list[dict[str, str]]) -> str:
    """One for each device, or one for all: a board with SR-IOV has dozens."""
    if len(entries) > SHOWN:
        return f"    {sign} {len(entries)} devices, {entries[0]['path']} to {entries[-1]['path']}\n"
    return "".join(f"    {sign} {entry['path']}  id {entry['id']}, IOMMU group {entry.get('iommugroup', '-')}\n"
                   for entry in entries)


