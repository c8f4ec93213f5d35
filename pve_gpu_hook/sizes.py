"""Which resource mappings a node's boards make, and what sets them apart from those that the cluster has. No I/O.

One mapping for each profile of a board's present layout: one missing device breaks a mapping for every VM, so what
another layout would bring is not in it.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Table
from typing import Final, NamedTuple

from kvm_gpu.model import Board, Layout, Profile, Slot
from pve_gpu_hook.cluster import Mapping, Pci
from pve_gpu_hook.qmconf import properties
from pve_gpu_hook.wanted import MEDIATED

OURS: Final = "Kept by pve-gpu."        # ends the description of a mapping that we may change


class Device(NamedTuple):
    """An alternative of a mapping on this node."""
    path: str                       # "0000:25:00.4"; "0000:3b:00" for all functions of a card
    pci: Pci

    def property_string(self, node: str) -> str:
        """As PVE writes it: keys in alphabetical order."""
        fields = {"id": self.pci.ids, "iommugroup": self.pci.iommugroup, "node": node, "path": self.path,
                  "subsystem-id": self.pci.subsystem}
        return ",".join(f"{key}={value}" for key, value in fields.items() if value is not None)


class Size(NamedTuple):
    """All that this node has of one profile."""
    profile: Profile
    mediated: bool
    mdev_type: str | None           # "nvidia-713": what the admin picks as MDev Type
    devices: tuple[Device, ...]

    @property
    def id(self) -> str:
        return mapping_id(self.profile.name)

    def merged(self, node: str, old: Mapping | None) -> Mapping:
        """`old` with these devices in place of those of this node; others' stay as they are, to the letter."""
        own = tuple(device.property_string(node) for device in self.devices)
        others = () if old is None else without(old, node).map
        return Mapping(self.id, self.description(), self.mediated, others + own)

    def description(self) -> str:
        """What the GUI shows beside the mapping's name."""
        memory = f", {self.profile.fb_mib} MiB" if self.profile.fb_mib else ""
        pick = f": choose MDev Type {self.mdev_type}" if self.mdev_type else ""
        return f"{self.profile.name}{memory}{pick}. {OURS}"


class Left(NamedTuple):
    """A slot that is in no mapping, and why."""
    slot: str
    why: str


def mapping_id(profile: str) -> str:
    """"A16-4Q" -> "gpu-a16-4q"; what an id may not hold becomes "-". Source: pve-configid in PVE::JSONSchema."""
    return "gpu-" + re.sub(r"[^a-z0-9_-]", "-", profile.lower())


def is_ours(mapping: Mapping) -> bool:
    return mapping.id.startswith("gpu-") and mapping.description.endswith(OURS)


def of_node(mapping: Mapping, node: str) -> tuple[dict[str, str], ...]:
    """The mapping's devices on one node."""
    return tuple(entry for text in mapping.map if (entry := properties(text, "")).get("node") == node)


def without(mapping: Mapping, node: str) -> Mapping:
    return mapping._replace(map=tuple(text for text in mapping.map if properties(text, "").get("node") != node))


# ---- from boards -----------------------------------------------------------------------------------

def sizes(
    boards: Iterable[Board], hardware: Table[str, Pci], types: Table[str, str],
) -> tuple[dict[str, Size], tuple[Left, ...]]:
    """Sizes by mapping id, and what is left out. `types`: MDev type by type id."""
    found: dict[str, Size] = {}
    left: dict[str, str] = {}
    for board in boards:
        for layout in board.layouts[:1] if not board.trouble else ():
            _add(layout, hardware, types, found, left)
        if board.trouble:
            left[board.address] = "; ".join(board.trouble)
    return dict(sorted(found.items())), tuple(Left(slot, why) for slot, why in sorted(left.items()))


def _add(
    layout: Layout, hardware: Table[str, Pci], types: Table[str, str], found: dict[str, Size], left: dict[str, str],
) -> None:
    mediated = layout.mechanism in MEDIATED
    for cell in layout.cells:
        slots = (slot for slot in layout.slots if cell.name in slot.cells)
        devices = tuple(_devices(slots, mediated, hardware, left))
        for profile in cell.profiles if devices else ():
            new = Size(profile, mediated, types.get(profile.type_id or "") if mediated else None, devices)
            known = found.setdefault(new.id, new)
            if (known.profile.name, known.mediated) == (profile.name, mediated):
                found[new.id] = known._replace(devices=tuple(dict.fromkeys(known.devices + devices)))
            else:
                left.update((device.path, f"as {profile.name} it would be in the mapping of {known.profile.name}")
                            for device in devices)


def _devices(
    slots: Iterable[Slot], mediated: bool, hardware: Table[str, Pci], left: dict[str, str],
) -> Iterator[Device]:
    for slot in slots:
        address = slot.path.rpartition("/")[2]      # of the first function, the VF or the mdev parent
        pci = hardware.get(address)
        if slot.trouble is not None:
            left[slot.name] = slot.trouble
        elif pci is None:
            left[slot.name] = "is no PCI device that Proxmox VE lists"
        elif pci.iommugroup is None:
            left[slot.name] = "is in no IOMMU group (is the IOMMU switched on?)"
        elif pci.mdev != mediated:
            left[slot.name] = ("its driver offers no mediated device" if mediated else
                               "its driver offers mediated devices: whole, it would break the mapping while in use")
        else:
            yield Device(address.partition(".")[0] if len(slot.functions) > 1 else address, pci)
