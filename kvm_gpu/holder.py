"""Processes of this machine: who made a claim, and whether it still runs.

Always the real /proc, never one below a root: a host under test has cards and CPUs of its own, but the
processes that ask for them, and the locks these hold, are ours.
"""
from __future__ import annotations

import posix
import time
from errno import ENOENT, ESRCH

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

ENDED: Final = ("Z", "X", "x")


def holder_of(pid: int) -> Optional[tuple[int, int]]:
    """(pid, start time in clock ticks since boot), which no later process with this pid has; None where there is
    none or it has ended and only waits for its parent. Reads /proc/PID/stat. Raises HostError.
    Source: proc_pid_stat(5), fields 3 and 22."""
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(b")")[2].split()   # field 2, the name, may have spaces and parentheses of its own
    return None if fields[0].decode() in ENDED else (pid, int(fields[19]))


def alive(holder: tuple[int, int]) -> bool:
    """Whether this very process still runs. Raises HostError."""
    return holder_of(holder[0]) == holder


def command_of(pid: int) -> str:
    """Command line for a message: one line of at most 200 characters; empty where it cannot be told."""
    try:
        text = _read(f"/proc/{pid}/cmdline") or b""
    except HostError:
        return ""
    words = text[:200].decode("utf-8", "replace")
    return " ".join("".join(character if character.isprintable() else " " for character in words).split())


def lock_holder(path: str, byte: int) -> Optional[int]:
    """Pid of a process with a POSIX lock on this byte of a file, None where none is seen. Reads /proc/locks.
    F_GETLK would tell the same, but closing the file afterwards drops every lock that we have on it ourselves.
    Source: proc_locks(5). The device number is not compared: btrfs and overlayfs show another one in stat."""
    try:
        inode = str(posix.stat(path).st_ino)
        locks = (_read("/proc/locks") or b"").decode()
    except (OSError, HostError):
        return None
    for line in locks.splitlines():
        fields = line.split()
        if "->" not in fields and fields[5].rpartition(":")[2] == inode and fields[6] == str(byte):
            return int(fields[4])
    return None


def boottime() -> int:
    """Seconds since boot, suspend included: deadlines do not move when somebody sets the clock."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


def _read(path: str) -> Optional[bytes]:
    parts = []
    try:
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            while part := posix.read(file, 65536):
                parts.append(part)
        finally:
            posix.close(file)
    except OSError as error:
        if error.errno in (ENOENT, ESRCH):
            return None
        raise HostError(f"{path}: {error.strerror}") from None
    return b"".join(parts)
