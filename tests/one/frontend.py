"""An OpenNebula front-end's tree with the real names and contents of our own."""
from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROGRAMS = (
    "attach_disk", "attach_nic", "cancel", "deploy", "detach_disk", "detach_nic", "exec", "exec_cancel", "migrate",
    "migrate_local", "prereconfigure", "reboot", "reconfigure", "reset", "resize", "resize_disk", "restore",
    "restore.ceph", "save", "save.ceph", "shutdown", "snapshot_create", "snapshot_delete", "snapshot_revert", "vgpu",
    "virtiofsd.sh", "vtpm_setup")
PROBES = ("architecture.sh", "cpu.sh", "linux_host.rb", "name.sh", "numa_host.rb", "pci.rb", "version.sh", "wild_vm.rb")
LONG_AGO_S = 1_500_000_000

ONED_CONF = """\
# VM_MAD = [ NAME = "kvm", ARGUMENTS = "kvm" ]     an example, not a driver
LOG = [ SYSTEM = "file", DEBUG_LEVEL = 3 ]

VM_MAD = [
    NAME           = "kvm",
    SUNSTONE_NAME  = "KVM",
    EXECUTABLE     = "one_vmm_exec",
    ARGUMENTS      = "-t 15 -r 0 kvm -p",
    DEFAULT        = "vmm_exec/vmm_exec_kvm.conf",
    TYPE           = "kvm"
]

VM_MAD = [
    NAME           = "qemu",
    EXECUTABLE     = "one_vmm_exec",
    ARGUMENTS      = "-t 15 -r 0 kvm",
    TYPE           = "qemu"
]

IM_MAD = [ NAME = "kvm", EXECUTABLE = "one_im_ssh", ARGUMENTS = "-r 3 -t 15 -w 90 kvm" ]
"""
PCI_CONF = """\
# which cards oned lists
:filter: '0:0'

:short_address: []
:device_name: []
:nvidia_vendors:
  - '10de'
"""


class Entry(NamedTuple):
    """All of a file that could change; `mtime_ns` is None for folders, which every file made or removed touches."""
    mode: int
    mtime_ns: int | None
    content: bytes | str | None


def make(root: Path) -> Path:
    """The front-end below `root`, made long ago. A stock program says its name and its arguments."""
    remotes = root / "var/lib/one/remotes"
    for name in PROGRAMS:
        _write(remotes / "vmm/kvm" / name, f'#!/bin/sh\necho "stock {name}" "$@"\n', 0o755)
    _write(remotes / "vmm/kvm/opennebula_vm.rb", "# a library\n", 0o644)
    for name in PROBES:
        _write(remotes / "im/node-probes.d" / name, f"#!/bin/sh\necho {name}\n", 0o755)
        link = remotes / "im/kvm-probes.d/host/system" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../node-probes.d/{name}")
    _write(remotes / "hooks/ft/host_error.rb", "# a hook\n", 0o755)
    _write(remotes / "etc/vmm/kvm/kvmrc", "export LANG=C\n", 0o640)
    _write(remotes / "etc/im/kvm-probes.d/pci.conf", PCI_CONF, 0o640)
    _write(root / "etc/one/oned.conf", ONED_CONF, 0o640)
    return root


def tree(root: Path) -> dict[str, Entry]:
    return {str(path.relative_to(root)): _entry(path) for path in sorted(root.rglob("*"))}


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def _entry(path: Path) -> Entry:
    seen = path.lstat()
    if path.is_symlink():
        return Entry(seen.st_mode, seen.st_mtime_ns, os.readlink(path))
    if path.is_dir():
        return Entry(seen.st_mode, None, None)
    return Entry(seen.st_mode, seen.st_mtime_ns, path.read_bytes())
