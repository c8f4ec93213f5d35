"""Plain virtual functions (AMD MxGPU, Intel i915 and xe). What a VF has was decided when the VFs were made.

libvirt (managed='yes') and Proxmox bind the VF to vfio-pci and give it back; nothing is written at a start.
Source: Documentation/PCI/pci-iov-howto.rst; sizes of xe: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov.
"""
from __future__ import annotations

from kvm_gpu.mechanisms import Obstacle
from kvm_gpu.model import Cell, Layout, Profile, Slot
from kvm_gpu.sysfs import DEVICES, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.mechanisms import Card, Seen
    from kvm_gpu.model import Action


def layout(sysfs: Sysfs, card: Card) -> Optional[Layout]:
    """All VFs of a card are one size: per-VF quotas that differ are not told apart."""
    from kvm_gpu.pci import bar_mib, group_trouble
    if not card.vfs:
        return None
    bars = bar_mib(sysfs, card.vfs[0])
    slots = tuple(Slot(vf, (vf,), DEVICES + vf, ("board",), bars, group_trouble(sysfs, (vf,))) for vf in card.vfs)
    profile = Profile(card.model + "-vf", None, _fb_mib(sysfs, card.path), 1, tuple(range(len(slots))))
    return Layout("vf", "vf", slots, (Cell("board", False, (profile,)),))


def _fb_mib(sysfs: Sysfs, pf_path: str) -> Optional[int]:
    """Local memory of VF 1 as the xe driver tells it, None where it does not. Reads vram_quota, bytes."""
    quota = sysfs.number(pf_path + "/sriov_admin/vf1/profile/vram_quota")
    return quota >> 20 if quota else None


def seen(sysfs: Sysfs, layout: Layout) -> tuple[Seen, ...]:
    return ()       # a user shows as an open VFIO group: users.py


def look(sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[Obstacle]:
    return None if sysfs.exists(slot.path) else Obstacle("is gone")


def realise(sysfs: Sysfs, slot: Slot, profile: Profile, uuid: str) -> tuple[Action, ...]:
    return ()
