"""IOMMU groups: numbers, /sys/kernel/iommu_groups and the iommu_group links."""
from __future__ import annotations

from tests.fakekernel.tree import Tree

GROUPS = "/sys/kernel/iommu_groups"


class IommuGroups:
    def __init__(self, tree: Tree, enabled: bool, reserved: frozenset[int]) -> None:
        self.tree = tree
        self.enabled = enabled
        self.reserved = reserved                    # numbers that the machine's description gives away itself
        self.members: dict[int, set[str]] = {}
        tree.folder(GROUPS)

    def join(self, name: str, folder: str, group: int | None = None) -> int | None:
        """Put a device in `group`, or in a new one with the lowest number free. None: the IOMMU is off."""
        if not self.enabled:
            return None
        if group is None:
            group = next(n for n in range(65536) if n not in self.members and n not in self.reserved)
        self.members.setdefault(group, set()).add(name)
        self.tree.link(f"{GROUPS}/{group}/devices/{name}", folder)
        self.tree.link(f"{folder}/iommu_group", f"{GROUPS}/{group}")
        return group

    def leave(self, name: str, group: int | None) -> None:
        if group is None:
            return
        self.tree.drop(f"{GROUPS}/{group}/devices/{name}")
        self.members[group].remove(name)
        if not self.members[group]:
            del self.members[group]
            self.tree.drop(f"{GROUPS}/{group}")
