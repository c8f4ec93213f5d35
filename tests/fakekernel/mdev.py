"""Mediated devices: types below a parent, `create`, `remove`, links. The parent need not be PCI.
Source: drivers/vfio/mdev/mdev_sysfs.c and mdev_core.c (Linux 6.1)."""
from __future__ import annotations

from collections.abc import Callable
from errno import EEXIST, EINVAL, EUSERS
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from tests.fakekernel.machine import ShareType, VgpuType
from tests.fakekernel.room import Room
from tests.fakekernel.tree import File, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

MDEVS = "/sys/bus/mdev/devices"
CLASS = "/sys/class/mdev_bus"


class MdevType(NamedTuple):
    folder: str                     # "nvidia-557"
    name: str
    description: str
    share: VgpuType | ShareType     # what it takes of the parent's room


class Parent:
    """A device with mdev types. `limit`: at most so many mdevs on it, whatever the board has left."""

    def __init__(self, name: str, folder: str, room: Room[Any], types: tuple[MdevType, ...],
                 limit: int | None = None, extra: Callable[[str, str], None] | None = None) -> None:
        self.name = name
        self.folder = folder
        self.room = room
        self.types = types
        self.limit = limit
        self.extra = extra          # adds the vendor's files to a new mdev: uuid, its folder
        self.mdevs: list[str] = []

    def available(self, type: MdevType) -> int:
        left = self.room.most(type.share)
        return left if self.limit is None else min(left, self.limit - len(self.mdevs))


class MdevBus:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tree = kernel.tree
        self.mdevs: dict[str, tuple[Parent, int | None]] = {}   # uuid -> parent, IOMMU group
        self.parents: dict[str, Parent] = {}
        self.tree.folder(MDEVS)
        self.tree.folder(CLASS)

    def register(self, parent: Parent) -> None:
        self.parents[parent.name] = parent
        self.tree.link(f"{CLASS}/{parent.name}", parent.folder)
        for type in parent.types:
            self._type_files(parent, type)

    def _type_files(self, parent: Parent, type: MdevType) -> None:
        folder = f"{parent.folder}/mdev_supported_types/{type.folder}"
        self.tree.folder(f"{folder}/devices")
        files = {
            "name": File(type.name),
            "device_api": File("vfio-pci"),
            "available_instances": File(lambda: str(parent.available(type)), looked=parent.room.look),
            "create": File(None, lambda text: self._create(parent, type, text)),
        }
        if type.description:
            files["description"] = File(type.description)
        for name, file in files.items():
            self.tree.put(f"{folder}/{name}", file)

    def unregister(self, name: str) -> None:
        """The parent's driver leaves: its mdevs vanish. Raises WouldHang while a VM has one."""
        parent = self.parents[name]
        self.must_be_idle(name)
        for uuid in tuple(parent.mdevs):
            self._remove(uuid)
        del self.parents[name]
        self.tree.drop(f"{parent.folder}/mdev_supported_types")
        self.tree.drop(f"{CLASS}/{name}")

    def must_be_idle(self, name: str) -> None:
        for uuid in self.parents[name].mdevs if name in self.parents else ():
            self.kernel.vfio.must_be_idle(self.mdevs[uuid][1], uuid)

    def _create(self, parent: Parent, type: MdevType, text: str) -> None:
        uuid = _guid(text)
        if uuid in self.mdevs:
            raise refuse(EEXIST, uuid)
        if parent.available(type) < 1:
            raise refuse(EUSERS, type.folder)
        parent.room.take(uuid, type.share)
        parent.mdevs.append(uuid)
        folder = f"{parent.folder}/{uuid}"
        types = f"{parent.folder}/mdev_supported_types/{type.folder}"
        self.tree.put(f"{folder}/remove", File(None, lambda text: self._store_remove(uuid, text)))
        self.tree.link(f"{folder}/mdev_type", types)
        self.tree.link(f"{types}/devices/{uuid}", folder)
        self.tree.link(f"{MDEVS}/{uuid}", folder)
        group = self.kernel.iommu.join(uuid, folder)
        self.mdevs[uuid] = parent, group
        self.kernel.vfio.serve(group, uuid)
        if parent.extra:
            parent.extra(uuid, folder)

    def _store_remove(self, uuid: str, text: str) -> None:
        if not text.isdecimal():
            raise refuse(EINVAL, text)
        if int(text):
            self._remove(uuid)

    def _remove(self, uuid: str) -> None:
        parent, group = self.mdevs[uuid]
        self.kernel.vfio.withdraw(group, uuid)
        folder, types = f"{parent.folder}/{uuid}", f"{parent.folder}/mdev_supported_types"
        for type in parent.types:
            self.tree.drop(f"{types}/{type.folder}/devices/{uuid}")
        self.kernel.iommu.leave(uuid, group)
        self.tree.drop(f"{MDEVS}/{uuid}")
        self.tree.drop(folder)
        parent.room.give(uuid)
        parent.mdevs.remove(uuid)
        del self.mdevs[uuid]


def _guid(text: str) -> str:
    """Lower case. EINVAL unless it is 36 characters of a GUID."""
    try:
        uuid = str(UUID(text))
    except ValueError:
        raise refuse(EINVAL, text) from None
    if len(text) != len(uuid):
        raise refuse(EINVAL, text)
    return uuid
