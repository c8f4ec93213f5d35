"""/dev/vfio/N: there while a VFIO driver has a device of the group, open for one user at a time.
Source: drivers/vfio/group.c, vfio_group_fops_open and vfio_device_remove_group."""
from __future__ import annotations

from errno import EBUSY, ENOENT

from tests.fakekernel.tree import CharDevice, File, Tree, refuse

FIRST_HANDLE = 1 << 20      # never a descriptor of the test's own process


class WouldHang(AssertionError):
    """The real kernel would wait here until the VM ends, in state D."""


class Vfio:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.served: dict[int, set[str]] = {}       # group -> devices that a VFIO driver has
        self.user: dict[int, str | int] = {}        # group -> a VM's name or a handle
        self.handles = FIRST_HANDLE
        tree.put("/dev/vfio/vfio", File(""))

    def serve(self, group: int | None, name: str) -> None:
        if group is not None:
            self.served.setdefault(group, set()).add(name)
            self.tree.put(f"/dev/vfio/{group}", CharDevice(group))

    def withdraw(self, group: int | None, name: str) -> None:
        """The device leaves VFIO. That waits for a VM; a group that is merely open does not hinder it."""
        self.must_be_idle(group, name)
        if group is None or name not in self.served.get(group, ()):
            return
        self.served[group].remove(name)
        if not self.served[group]:
            del self.served[group]
            self.user.pop(group, None)
            self.tree.drop(f"/dev/vfio/{group}")

    def must_be_idle(self, group: int | None, name: str) -> None:
        if self.in_vm(group):
            raise WouldHang(f"{name} is in use by VM {self.user[group or 0]}")

    def in_vm(self, group: int | None) -> bool:
        """A VM has the devices of this group open, not merely somebody the group."""
        return group is not None and isinstance(self.user.get(group), str)

    def open(self, group: int, user: str | None = None) -> int:
        """A handle. Raises ENOENT, and EBUSY while somebody has the group."""
        if group not in self.served:
            raise refuse(ENOENT, f"/dev/vfio/{group}")
        if group in self.user:
            raise refuse(EBUSY, f"/dev/vfio/{group}")
        self.handles += 1
        self.user[group] = user or self.handles
        return self.handles

    def close(self, user: str | int) -> None:
        self.user = {group: holder for group, holder in self.user.items() if holder != user}
