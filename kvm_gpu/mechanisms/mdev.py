"""Mediated devices: several on a PF (T4, GVT-g, the kernel's mtty sample), or one on each VF (A16, A40 before 6.8).

The folder of a type carries the parent driver's name, which differs between VFs of one card ("nvidia-555",
"vfio-pci-555"): the suffix is the key. Source: Documentation/driver-api/vfio-mediated-device.rst.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError
from kvm_gpu.mechanisms import Obstacle, Seen
from kvm_gpu.model import Cell, Layout, Mdev, Profile, Slot
from kvm_gpu.sysfs import DEVICES, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.mechanisms import Card
    from kvm_gpu.model import Action
    from kvm_gpu.profiles import VgpuType

TYPES: Final = "/mdev_supported_types"
UUID_LENGTH: Final = 36


def layout(sysfs: Sysfs, card: Card) -> Optional[Layout]:
    parents = tuple(DEVICES + vf for vf in card.vfs) or (card.path,)
    if not sysfs.list(parents[0] + TYPES):
        return None
    held = {parent: mdevs(sysfs, parent) for parent in parents}
    idle = next((parent for parent in parents if not held[parent]), parents[0])
    cells = _cells(sysfs, idle, card.types, tuple(one.type_id for ones in held.values() for one in ones if one.type_id))
    names = tuple(cell.name for cell in cells)
    if card.vfs:
        slots = tuple(Slot(vf, (vf,), DEVICES + vf, names) for vf in card.vfs)
    else:
        most = sum(max((len(profile.starts) for profile in cell.profiles), default=0) for cell in cells)
        functions = tuple(function.address for function in card.functions[:1])
        parent = card.path.rpartition("/")[2]
        slots = tuple(Slot(f"{parent}#{number}", functions, card.path, names) for number in range(most))
    return Layout("mdev", "mdev", slots, cells)


def _cells(sysfs: Sysfs, parent: str, table: tuple[VgpuType, ...], held: tuple[str, ...]) -> tuple[Cell, ...]:
    """Types with a frame buffer are NVIDIA's and keep NVIDIA's rules; of others each takes a share of the parent.
    `parent` is one that holds nothing, if there is one: on a VF in use all types read 0."""
    from kvm_gpu.mechanisms.vgpu import cells
    types = _framed_types(sysfs, parent, table)
    offered = (suffix(folder) for folder in sysfs.list(parent + TYPES) if _available(sysfs, parent, folder))
    return cells(types, frozenset(offered), held) if types else (_shares(sysfs, parent, held),)


def _framed_types(sysfs: Sysfs, parent: str, table: tuple[VgpuType, ...]) -> tuple[VgpuType, ...]:
    """Types that have a frame buffer. Its size, and how many fit, come from the description, else from the table."""
    from kvm_gpu.profiles import VgpuType, parse_description, short_name
    known: dict[str, tuple[Optional[int], Optional[int]]] = {
        kind.type_id: (kind.fb_mib, kind.max_instance) for kind in table}
    types = []
    for folder in sysfs.list(parent + TYPES):
        number, path = suffix(folder), f"{parent}{TYPES}/{folder}"
        fb_mib, most = parse_description(sysfs.read(path + "/description") or "")
        if fb_mib is None or most is None:
            fb_mib, most = known.get(number, (None, None))
        if fb_mib is not None and most is not None:
            types.append(VgpuType(number, short_name(sysfs.read(path + "/name") or folder), fb_mib, most))
    return tuple(types)


def _shares(sysfs: Sysfs, parent: str, held: tuple[str, ...]) -> Cell:
    """Without frame buffers: a type's size is how many times the smallest's number exceeds its own."""
    free = {folder: _available(sysfs, parent, folder) for folder in sysfs.list(parent + TYPES)}
    most = max(free.values(), default=0)
    sizes = {folder: most // left if left else max(most, 1) for folder, left in free.items()}
    total = most + sum(size for folder, size in sizes.items() for number in held if number == suffix(folder))
    return Cell("board", False, tuple(
        Profile(folder, suffix(folder), None, size, tuple(range(0, total - size + 1, size)))
        for folder, size in sizes.items()))


def suffix(folder: str) -> str:
    """"nvidia-711" and "vfio-pci-711" -> "711", "i915-GVTg_V5_4" -> "GVTg_V5_4"."""
    return folder.rpartition("-")[2]


def _available(sysfs: Sysfs, parent: str, folder: str) -> int:
    return sysfs.number(f"{parent}{TYPES}/{folder}/available_instances") or 0


def mdevs(sysfs: Sysfs, parent: str, slot: Optional[str] = None) -> tuple[Seen, ...]:
    """What was made on the parent in folder `parent`, noted for `slot`."""
    found = []
    for name in sysfs.list(parent):
        if len(name) == UUID_LENGTH and name.count("-") == 4:
            folder = sysfs.link(f"{parent}/{name}/mdev_type")
            found.append(Seen(slot, folder and suffix(folder), name.lower(), f"mdev {name}"))
    return tuple(found)


def seen(sysfs: Sysfs, layout: Layout) -> tuple[Seen, ...]:
    numbered = layout.slots and "#" in layout.slots[0].name
    parents = {slot.path: None if numbered else slot.name for slot in layout.slots}
    return tuple(found for path, slot in parents.items() for found in mdevs(sysfs, path, slot))


def look(sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[Obstacle]:
    folder = type_folder(sysfs, slot, profile)
    if folder is None:
        return Obstacle("is gone, or its driver has no " + profile.name)
    if _available(sysfs, slot.path, folder):
        return None
    held = ", ".join(found.words for found in mdevs(sysfs, slot.path))
    numbered = "#" in slot.name
    return Obstacle(f"no instance of {profile.name} left{' beside ' + held if held else ''}", whole_board=numbered)


def type_folder(sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[str]:
    """Name of the type's folder on this very parent, None where it has none of this type."""
    return next((name for name in sysfs.list(slot.path + TYPES) if suffix(name) == profile.type_id), None)


def realise(sysfs: Sysfs, slot: Slot, profile: Profile, uuid: str) -> tuple[Action, ...]:
    folder = type_folder(sysfs, slot, profile)
    if folder is None:
        raise HostError(f"{slot.path}{TYPES}: no type {profile.name}")
    return (Mdev(uuid, f"{slot.path}{TYPES}/{folder}"),)
