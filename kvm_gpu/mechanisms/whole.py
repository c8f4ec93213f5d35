"""A whole card with every function of it. libvirt (managed='yes') and Proxmox bind to vfio-pci; we do not.

A card whose VFs are all idle can be given whole: its VFs are switched off first, and on again at release.
"""
from __future__ import annotations

from kvm_gpu.mechanisms import Obstacle
from kvm_gpu.mechanisms.mdev import mdevs
from kvm_gpu.model import Attribute, Cell, Layout, Profile, Slot
from kvm_gpu.sysfs import DEVICES, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.mechanisms import Card, Seen
    from kvm_gpu.model import Action


def layout(sysfs: Sysfs, card: Card) -> Optional[Layout]:
    from kvm_gpu.pci import bar_mib, group_trouble
    if not card.functions:
        return None
    addresses = tuple(function.address for function in card.functions)
    trouble = group_trouble(sysfs, addresses)
    if any(function.boot_vga for function in card.functions) and not card.named:
        trouble = "the console is on it (boot_vga); list its address under `devices` to give it all the same"
    slot = Slot(addresses[0], addresses, DEVICES + addresses[0], ("board",), bar_mib(sysfs, addresses[0]), trouble)
    fb_mib = max((kind.fb_mib for kind in card.types), default=None)
    return Layout("whole", "whole", (slot,), (Cell("board", False, (Profile(card.model, None, fb_mib, 1, (0,)),)),))


def seen(sysfs: Sysfs, layout: Layout) -> tuple[Seen, ...]:
    return ()       # a user shows as an open VFIO group: users.py


def look(sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[Obstacle]:
    if not sysfs.exists(slot.path):
        return Obstacle("is gone", whole_board=True)
    made = mdevs(sysfs, slot.path)      # not ours: the ledger would know; they would go with the driver
    return Obstacle(f"{made[0].words} is on it, not by us") if made else None


def realise(sysfs: Sysfs, slot: Slot, profile: Profile, uuid: str) -> tuple[Action, ...]:
    numvfs = sysfs.read(slot.path + "/sriov_numvfs")
    if numvfs in (None, "0"):
        return ()
    return (Attribute(slot.path + "/sriov_numvfs", "0", numvfs, through="0"),)
