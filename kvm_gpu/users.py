"""Who has which VFIO device open, without touching it: the links in /proc/PID/fd. Cold path (10 to 50 ms).

Opening /dev/vfio/N would tell as well, but could make a QEMU that is just starting fail with EBUSY: that is done
only on slots that the ledger says are ours (apply.py). Source: Documentation/driver-api/vfio.rst.
"""
from __future__ import annotations

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.sysfs import Sysfs

VFIO: Final = "/dev/vfio/"
CONTAINER: Final = "vfio"       # /dev/vfio/vfio belongs to no device


def vfio_users(sysfs: Sysfs) -> dict[str, int]:
    """{"31": pid, "devices/vfio3": pid}: what is open below /dev/vfio. Processes that end meanwhile are passed over."""
    users: dict[str, int] = {}
    for pid in sysfs.list("/proc"):
        if pid.isdecimal():
            users.update((node, int(pid)) for node in opened(sysfs, int(pid)))
    return users


def opened(sysfs: Sysfs, pid: int) -> tuple[str, ...]:
    """What one process has open below /dev/vfio; () where it has ended, or is not ours to look into."""
    folder = f"/proc/{pid}/fd"
    try:
        targets = [sysfs.target(f"{folder}/{name}") or "" for name in sysfs.list(folder)]
    except HostError:
        return ()
    return tuple(target[len(VFIO):] for target in targets if target.startswith(VFIO) and target != VFIO + CONTAINER)


def nodes(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """Names below /dev/vfio by which the device in folder `path` is opened: its group, and its own character device."""
    group = sysfs.link(path + "/iommu_group")
    return ((group,) if group else ()) + tuple("devices/" + name for name in sysfs.list(path + "/vfio-dev"))


def user(sysfs: Sysfs, paths: tuple[str, ...], users: dict[str, int]) -> Optional[int]:
    """Pid that has one of these devices open, None where nobody has."""
    return next((users[node] for path in paths for node in nodes(sysfs, path) if node in users), None)
