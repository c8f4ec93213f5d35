"""Is a device inside a VM? Asked by opening its VFIO group, which the kernel gives to one user at a time.

A driver asked to take a device from a running VM waits until the VM ends, in state D, and so does everybody who
reads the same attribute afterwards. So the group is held open across such a write: no VM has it, none can start.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError
from kvm_gpu.sysfs import DEVICES, MDEVS, Sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.model import Device


class InUse(HostError):
    """A VM has the device open; nothing was written."""

    def __init__(self, device: str, group: int) -> None:
        super().__init__(f"{device}: a VM has it open (VFIO group {group})", "stop the VM first")
        self.device = device
        self.group = group


class Kept:
    """`with Kept(sysfs, folders):` no VM can open any of these devices meanwhile.
    Reads iommu_group. Raises InUse for the first that a VM has, HostError."""

    def __init__(self, sysfs: Sysfs, folders: tuple[str, ...]) -> None:
        self._sysfs = sysfs
        self._folders = folders
        self._held: dict[int, int] = {}     # group -> descriptor; one each: a second open of our own is refused too

    def __enter__(self) -> None:
        try:
            for folder in self._folders:
                self._hold(folder)
        except HostError:
            self._let_go()
            raise

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _hold(self, folder: str) -> None:
        group = group_of(self._sysfs, folder)
        if group is None or group in self._held:
            return
        descriptor = self._sysfs.hold(group)
        if descriptor is None:
            raise InUse(self._sysfs.link(folder) or folder, group)
        self._held[group] = descriptor

    def _let_go(self) -> None:
        while self._held:
            self._sysfs.let_go(self._held.popitem()[1])


def refuse_in_use(sysfs: Sysfs, devices: tuple[Device, ...]) -> None:
    """Raises InUse for the first of the devices that a VM has open; HostError."""
    for device in devices:
        with Kept(sysfs, device_paths(device)):
            pass


def group_of(sysfs: Sysfs, folder: str) -> Optional[int]:
    """IOMMU group of the device in this folder, None without an IOMMU or without the device. Raises HostError."""
    name = sysfs.link(folder + "/iommu_group")
    return None if name is None else int(name)


def devices_behind(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """Folders of the devices that a write to this attribute can take from a VM: for sriov_numvfs all VFs and what is
    on them, else the device to which it belongs."""
    folder, _, name = path.rpartition("/")
    if name == "sriov_numvfs":
        return tuple([device for vf in _vfs(sysfs, folder) for device in with_all_on(sysfs, vf)])
    if path.startswith(DEVICES):
        folder = DEVICES + path[len(DEVICES):].partition("/")[0]
    return (folder,)


def with_all_on(sysfs: Sysfs, folder: str) -> tuple[str, ...]:
    """A device, its mdevs, and its VFs with theirs: all that goes when its driver goes. An mdev has a group of its
    own, while its parent's may be nobody's."""
    mdevs = [MDEVS + name for name in sysfs.list(folder) if len(name) == 36 and sysfs.exists(MDEVS + name)]
    below = [device for vf in _vfs(sysfs, folder) for device in with_all_on(sysfs, vf)]
    return (folder, *mdevs, *below)


def _vfs(sysfs: Sysfs, pf: str) -> list[str]:
    return [f"{pf}/{name}" for name in sysfs.list(pf) if name.startswith("virtfn")]


def device_paths(device: Device) -> tuple[str, ...]:
    """Folders of what the VM opens: the mdev, else the functions."""
    return (MDEVS + device.uuid,) if device.uuid else tuple(DEVICES + function for function in device.functions)
