"""What NVIDIA's two ways of serving vGPUs have in common: how types become profiles in cells. Cold path.

Time-sliced types share the board's frame buffer, by default in one size only. MIG-backed types draw on GPU
instances, which sysfs does not list: of those there are as many as run, and one more where the driver would
create one. That is a lower bound, and honest.
"""
from __future__ import annotations

from kvm_gpu.model import Cell, Profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvm_gpu.profiles import VgpuType


def cells(types: tuple[VgpuType, ...], offered: frozenset[str], held: tuple[str, ...]) -> tuple[Cell, ...]:
    """`types`: all that the board is known to have; `offered`: type ids that the driver would create now;
    `held`: type ids that are set, one for each vGPU."""
    from kvm_gpu.profiles import is_mig
    known = {kind.type_id: kind for kind in types}
    mig = any(is_mig(known[number].name) for number in offered | frozenset(held) if number in known)
    if mig:
        return tuple(_instance(kind, held.count(kind.type_id) + (kind.type_id in offered))
                     for kind in types if is_mig(kind.name))
    sliced = tuple(kind for kind in types if not is_mig(kind.name))
    if not held:
        sliced = tuple(kind for kind in sliced if kind.type_id in offered)
    sizes = {known[number].fb_mib for number in held if number in known}
    return (Cell("board", len(sizes) < 2, tuple(map(_slice, sliced))),)


def _slice(kind: VgpuType) -> Profile:
    return Profile(kind.name, kind.type_id, kind.fb_mib, kind.fb_mib,
                   tuple(number * kind.fb_mib for number in range(kind.max_instance)))


def _instance(kind: VgpuType, number: int) -> Cell:
    return Cell("gi " + kind.name, False, (Profile(kind.name, kind.type_id, kind.fb_mib, 1, tuple(range(number))),))


def merge(table: tuple[VgpuType, ...], listed: tuple[tuple[str, str], ...], vfs: int) -> tuple[VgpuType, ...]:
    """The table's types, and those (type id, name) that the driver lists beyond it, by type id. Sizes of the latter
    come from their names, their number from the largest type's frame buffer and the VFs."""
    from kvm_gpu.profiles import VgpuType, fb_from_name
    types = {kind.type_id: kind for kind in table}
    board = max([kind.fb_mib for kind in table] + [fb_from_name(name) or 0 for _, name in listed], default=0)
    for number, name in listed:
        fb_mib = fb_from_name(name)
        if number in types:
            types[number] = types[number]._replace(name=name)
        elif fb_mib:
            types[number] = VgpuType(number, name, fb_mib, min(vfs, board // fb_mib))
    return tuple(types[number] for number in sorted(types, key=int))
