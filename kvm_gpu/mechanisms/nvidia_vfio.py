"""NVIDIA's vendor VFIO (kernel 6.8 and later): one vGPU for each VF, through <VF>/nvidia/current_vgpu_type.

The VF keeps its driver. Source: NVIDIA Virtual GPU Software User Guide, "Creating an NVIDIA vGPU on a Linux with
KVM Hypervisor that Uses a Vendor-Specific VFIO Framework"; file formats as seen on L40S and RTX PRO 6000 hosts.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError
from kvm_gpu.mechanisms import Obstacle, Seen
from kvm_gpu.model import Attribute, Layout, Slot
from kvm_gpu.sysfs import DEVICES, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.mechanisms import Card
    from kvm_gpu.model import Action, Profile

CURRENT: Final = "/nvidia/current_vgpu_type"
CREATABLE: Final = "/nvidia/creatable_vgpu_types"


def layout(sysfs: Sysfs, card: Card) -> Optional[Layout]:
    """A VF lists what could be created on it beside what its siblings hold: nothing at all on a full board."""
    if not card.vfs or sysfs.read(DEVICES + card.vfs[0] + CREATABLE) is None:
        return None
    from kvm_gpu.mechanisms.vgpu import cells, merge
    from kvm_gpu.pci import bar_mib
    current = {vf: sysfs.read(DEVICES + vf + CURRENT) for vf in card.vfs}
    free = [vf for vf in card.vfs if current[vf] == "0"]
    listed = creatable(sysfs, DEVICES + free[0]) if free else ()
    held = tuple(number for number in current.values() if number not in (None, "0"))
    if not listed and not held:
        raise HostError("the driver offers no vGPU type though none is set "
                        "(nvidia-vgpu-mgr or nvidia-vgpud not running, or MIG without GPU instances)")
    parts = cells(merge(card.types, listed, len(card.vfs)), frozenset(number for number, _ in listed), held)
    names = tuple(cell.name for cell in parts)
    bars = bar_mib(sysfs, card.vfs[0])
    slots = tuple(Slot(vf, (vf,), DEVICES + vf, names, bars) for vf in card.vfs)
    return Layout("nvidia_vfio", "nvidia_vfio", slots, parts)


def creatable(sysfs: Sysfs, path: str) -> tuple[tuple[str, str], ...]:
    """(type id, name) of each line "1148  : NVIDIA L40S-2Q" below the header; () for a header alone."""
    from kvm_gpu.profiles import short_name
    lines = (sysfs.read(path + CREATABLE) or "").split("\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return tuple((number.strip(), short_name(name)) for number, colon, name in pairs if colon)


def seen(sysfs: Sysfs, layout: Layout) -> tuple[Seen, ...]:
    found = ((slot.name, sysfs.read(slot.path + CURRENT)) for slot in layout.slots)
    return tuple(Seen(name, number, None, f"vGPU type {number}") for name, number in found if number not in (None, "0"))


def look(sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[Obstacle]:
    now = sysfs.read(slot.path + CURRENT)
    if now is None:
        return Obstacle("is gone")
    if now != "0":
        return Obstacle(f"vGPU type {now} is set on it, not by us")
    lines = (sysfs.read(slot.path + CREATABLE) or "").split("\n")
    if any(line.partition(":")[0].strip() == profile.type_id for line in lines[1:]):
        return None
    return Obstacle(f"the driver would not create {profile.name} now", whole_board=True)


def realise(sysfs: Sysfs, slot: Slot, profile: Profile, uuid: str) -> tuple[Action, ...]:
    """`before` is always "0": look() refuses a VF on which a type is set."""
    return (Attribute(slot.path + CURRENT, profile.type_id or "0", before="0", through="0"),)
