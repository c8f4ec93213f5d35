"""Whether the lab can start on this machine."""
from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tests.lab import kept, machine

TOOLS = (machine.QEMU, "busybox", "cpio", "gcc", "libvirtd", "make", "mkfs.ext4", "modprobe", "systemd-run", "virsh",
         "xz", "zstd")


class Found(NamedTuple):
    """What was found of all that the lab needs."""
    absent: tuple[str, ...]     # of TOOLS
    root: bool
    kernel: str | None          # kept.kernel_version
    available_mib: int


def look() -> Found:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return Found(tuple(name for name in TOOLS if kept.tool(name) is None), os.geteuid() == 0, kept.kernel_version(),
                 int(fields["MemAvailable"].split()[0]) >> 10)


def obstacle(found: Found) -> str | None:
    """Why the lab cannot start, None where it can."""
    if found.absent:
        return f"not installed: {', '.join(found.absent)}; as root, .ci/setup installs all it needs"
    if not found.root:
        return "its libvirt needs files that only root can read: run it as root"
    if found.kernel is None:
        return "no kernel in /boot has its headers and source installed; as root, .ci/setup installs all it needs"
    if found.available_mib < machine.NEEDS_MIB:
        return f"it needs {machine.NEEDS_MIB} MiB of memory, {found.available_mib} are available"
    return None


def verdict(why: str, ci: bool) -> tuple[int, str]:
    """(exit status, sentence): on a user's machine no lab is no failure."""
    return (1, f"lab: cannot start: {why}") if ci else (0, f"lab: skipped: {why}")
