"""CPUs and memory nodes of a VM's systemd scope, which bind QEMU from its first moment: a drop-in in /run.

systemd finds a drop-in whose folder it saw at its last reload, and reads it anew each time a scope is made. So a VM
costs one reload after a boot; from then on the folder and the file stay, and a file without settings binds nothing.
"""
from __future__ import annotations

import posix

from kvm_gpu.cpulist import format_cpus
from kvm_gpu.errors import HostError
from pve_gpu_hook import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.model import Placement
    from kvm_gpu.sysfs import Sysfs

UNITS: Final = "/run/systemd/system"
FILE: Final = "50-kvm-gpu.conf"
CGROUP: Final = "/sys/fs/cgroup/qemu.slice/{}.scope/"
RELOAD: Final = ("systemctl", "daemon-reload")
HEAD: Final = "# Written by pve-gpu-hook at each start of the VM.\n"


def settings(placement: Placement) -> dict[str, str]:
    """Values by systemd's names; {} where nothing is to be bound. Memory that Proxmox VE binds itself stays so."""
    cpus = {cpu for use in placement.uses for _, pins in use.pins for cpu in pins}.union(placement.emulator)
    nodes = {use.node for use in placement.uses if use.node is not None}
    found = {"AllowedCPUs": format_cpus(tuple(cpus))} if cpus else {}
    if placement.memory is not None and all(use.node is not None for use in placement.uses):
        found["AllowedMemoryNodes"] = format_cpus(tuple(nodes))
    return found


def bind(root: str, vm: str, wanted: dict[str, str]) -> None:
    """The VM's next scope has these settings and no others of ours. Raises HostError."""
    folder = f"{root}{UNITS}/{vm}.scope.d"
    text = HEAD + ("[Scope]\n" if wanted else "") + "".join(f"{name}={value}\n" for name, value in wanted.items())
    now = files.content(f"{folder}/{FILE}")
    if now is None and wanted:
        files.make_folder(folder)
        _reload()       # before the file is there: a file tells that systemd knows the folder
    if now != text and (now is not None or wanted):
        files.replace(f"{folder}/{FILE}", text)


def missed(sysfs: Sysfs, vm: str, wanted: dict[str, str]) -> Optional[str]:
    """What the running VM's scope has in place of `wanted`, in words; None where it has it. Raises HostError."""
    names = {"AllowedCPUs": "cpuset.cpus", "AllowedMemoryNodes": "cpuset.mems"}
    found = {name: sysfs.read(CGROUP.format(vm) + names[name]) for name in wanted}
    return ", ".join(f"{name} {found[name] or 'not set'} and not {value}" for name, value in wanted.items()
                     if found[name] != value) or None


def _reload() -> None:
    pid = posix.posix_spawnp(RELOAD[0], RELOAD, posix.environ)
    code = posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])
    if code:
        raise HostError(f"{' '.join(RELOAD)}: exit code {code}", "journalctl -b _PID=1")
