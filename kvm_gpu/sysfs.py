"""The only place that reads or writes kernel files. Paths are absolute ("/sys/...", "/proc/...") below a root.

Only "does not exist" is forgiven: it answers None or an empty list. Everything else is a HostError that
names path and errno: EACCES and EIO are never taken for absence.
"""
from __future__ import annotations

import posix
from errno import EBUSY, ELOOP, ENODEV, ENOENT, ENOTDIR, ENXIO, errorcode

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

DEVICES: Final = "/sys/bus/pci/devices/"
MDEVS: Final = "/sys/bus/mdev/devices/"
ABSENT: Final = (ENOENT, ENOTDIR, ENODEV, ENXIO)    # ENXIO, ENODEV: the file stands, the thing behind it does not
LIMIT: Final = 65536


class WriteError(HostError):
    """The kernel refused a write; `errno` tells why."""

    def __init__(self, path: str, value: str, errno: int) -> None:
        super().__init__(f"{path}: writing {value!r}: {errorcode.get(errno, errno)}")
        self.path = path
        self.errno = errno


class Sysfs:
    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")

    def read(self, path: str) -> Optional[str]:
        """Stripped text of an attribute; None where it does not exist. Raises HostError."""
        data = self.binary(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def binary(self, path: str) -> Optional[bytes]:
        """Up to 64 KiB of a file as it is (PCI `config`); None where it does not exist. Raises HostError."""
        try:
            fd = posix.open(self.root + path, posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError as error:
            _absent(error, path)
            return None
        try:
            return posix.read(fd, LIMIT)
        except OSError as error:
            _absent(error, path)
            return None
        finally:
            posix.close(fd)

    def number(self, path: str) -> Optional[int]:
        """A decimal attribute; None where it does not exist. Raises HostError on anything but a number."""
        text = self.read(path)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise HostError(f"{path}: {text[:40]!r} is not a number") from None

    def link(self, path: str) -> Optional[str]:
        """Last part of a symlink's target; None where there is no such link. Raises HostError."""
        target = self.target(path)
        return None if target is None else target.rpartition("/")[2]

    def target(self, path: str) -> Optional[str]:
        """A symlink's whole text ("../../../devices/pci0000:17/0000:17:00.0/0000:18:00.0"); None without a link.
        Raises HostError."""
        try:
            return posix.readlink(self.root + path)
        except OSError as error:
            _absent(error, path)
            return None

    def exists(self, path: str) -> bool:
        try:
            posix.stat(self.root + path)
        except OSError as error:
            _absent(error, path)
            return False
        return True

    def list(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty where it does not exist. Raises HostError."""
        try:
            return tuple(sorted(posix.listdir(self.root + path)))
        except OSError as error:
            _absent(error, path)
            return ()

    def write(self, path: str, value: str) -> None:
        """Write one attribute. Raises WriteError with the kernel's errno."""
        try:
            fd = posix.open(self.root + path, posix.O_WRONLY | posix.O_TRUNC | posix.O_CLOEXEC)
            try:
                posix.write(fd, value.encode() + b"\n")
            finally:
                posix.close(fd)
        except OSError as error:
            raise WriteError(path, value, error.errno or 0) from None

    def hold(self, group: int) -> Optional[int]:
        """A descriptor that keeps every VM off the VFIO group until posix.close; -1 where VFIO does not have the
        group (nothing to keep off), None where somebody has it open. Raises HostError.
        Source: the kernel's vfio_group_fops_open answers EBUSY while the group is open."""
        try:
            return posix.open(f"{self.root}/dev/vfio/{group}", posix.O_RDWR | posix.O_CLOEXEC)
        except OSError as error:
            if error.errno == EBUSY:
                return None
            _absent(error, f"/dev/vfio/{group}")
            return -1

    def let_go(self, descriptor: int) -> None:
        """End a `hold`."""
        if descriptor >= 0:
            posix.close(descriptor)


def _absent(error: OSError, path: str) -> None:
    if error.errno not in ABSENT:
        name = "a loop of links" if error.errno == ELOOP else errorcode.get(error.errno or 0, error.errno)
        raise HostError(f"{path}: {name}") from None
