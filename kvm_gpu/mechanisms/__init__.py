"""How a slot is seen and made ready for a VM. One module for each mechanism, imported when asked for.

A mechanism decides nothing: it reads what the kernel shows and says which actions make a slot ready.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, NamedTuple, Optional, Protocol

    from kvm_gpu.model import Action, Function, Layout, PciAddress, Profile, Slot
    from kvm_gpu.profiles import VgpuType
    from kvm_gpu.sysfs import Sysfs

    class Mechanism(Protocol):
        def layout(self, sysfs: Sysfs, card: Card) -> Optional[Layout]:
            """The card cut as this mechanism cuts it, None where the card shows nothing of it. Cold path."""

        def seen(self, sysfs: Sysfs, layout: Layout) -> tuple[Seen, ...]:
            """What the kernel shows on the slots, ours and others'. Cold path."""

        def look(self, sysfs: Sysfs, slot: Slot, profile: Profile) -> Optional[Obstacle]:
            """Why the kernel would not give this slot as `profile` now, None where it would. Writes nothing, opens
            no VFIO group: a VM may be starting on it."""

        def realise(self, sysfs: Sysfs, slot: Slot, profile: Profile, uuid: str) -> tuple[Action, ...]:
            """What makes the slot ready. Reads what was there before, for the undo."""
else:
    from kvm_gpu.light import NamedTuple

PROBE_ORDER: Final = ("nvidia_vfio", "mdev", "vf", "whole")


class Card(NamedTuple):
    """What a mechanism needs of a board to see its layout."""
    functions: tuple[Function, ...]     # of the slot, without VFs; empty where an mdev parent is not PCI
    path: str                           # folder of .0, or of the mdev parent
    vfs: tuple[PciAddress, ...]         # virtfn0, virtfn1, ...
    model: str
    types: tuple[VgpuType, ...]         # what the tables know of this card
    named: bool = False                 # the configuration lists this very address


class Seen(NamedTuple):
    """A slot on which the kernel shows a user or a vGPU."""
    slot: Optional[str]                 # None: on this parent, whichever number
    type_id: Optional[str]
    uuid: Optional[str]
    words: str                          # "mdev 1111...", "type 713"


class Obstacle(NamedTuple):
    why: str
    whole_board: bool = False           # no other slot of the board would do either


def mechanism(name: str) -> Mechanism:
    """The module of that name."""
    if name == "nvidia_vfio":
        from kvm_gpu.mechanisms import nvidia_vfio
        return nvidia_vfio
    if name == "mdev":
        from kvm_gpu.mechanisms import mdev
        return mdev
    if name == "vf":
        from kvm_gpu.mechanisms import vf
        return vf
    from kvm_gpu.mechanisms import whole
    return whole
