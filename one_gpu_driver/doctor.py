"""What is wrong with the driver, and what helps: on the front-end, on a host, and over all hosts."""
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kvm_gpu.errors import GpuError
from kvm_gpu.model import Board
from kvm_gpu.pci import read_function, virtual_functions
from kvm_gpu.sysfs import Sysfs
from one_gpu_driver import install, pciconf, retry
from one_gpu_driver.cloud import CloudHost
from one_gpu_driver.pciconf import Listing

PROGRAMS: Final = ("usr/libexec/kvm-gpu/one-vmm", "usr/libexec/kvm-gpu/one-helper")
SUDOERS: Final = "etc/sudoers.d/kvm-gpu-opennebula"
TIMER: Final = "etc/systemd/system/timers.target.wants/kvm-gpu-reconcile.timer"
SYNCED: Final = "var/tmp/one"
QEMU_CONF: Final = "etc/libvirt/qemu.conf"
UDEV_RULES: Final = ("etc/udev/rules.d", "usr/lib/udev/rules.d")
VFIO: Final = 'SUBSYSTEM=="vfio"'
SYNC: Final = "as oneadmin: onehost sync --force"


class Finding(NamedTuple):
    where: str
    what: str
    helps: str


def front_end(root: Path) -> Iterator[Finding]:
    """The files of the front-end."""
    try:
        changes = install.install(root)
    except GpuError as failure:
        yield Finding("front-end", failure.message, failure.hint)
        return
    if changes:
        names = sorted({change.path.name for change in changes})
        yield Finding("front-end", f"not installed, or OpenNebula was upgraded: {', '.join(names)}", "one-gpu install")


def host(root: Path, sysfs: Sysfs, boards: Iterable[Board]) -> Iterator[Finding]:
    """The files of a KVM host, and its PCI devices. `boards`: what we give out there."""
    for program in PROGRAMS:
        if not os.access(root / program, os.X_OK):
            yield Finding("this host", f"/{program} is not there: GPU VMs start without their GPU",
                          "install the package opennebula-gpu-driver")
    if not (root / SUDOERS).is_file():
        yield Finding("this host", f"/{SUDOERS} is not there: oneadmin may not run one-helper",
                      "install the package opennebula-gpu-driver")
    if not (root / TIMER).is_symlink():
        yield Finding("this host", "GPUs of guests that turn themselves off are not freed until somebody needs them",
                      "systemctl enable --now kvm-gpu-reconcile.timer")
    if not (root / SYNCED / install.FOLDER / "deploy").is_file():
        yield Finding("this host", f"/{SYNCED}/{install.FOLDER} is not there: no VM can start", SYNC)
    yield from _closed_to_qemu(root)
    yield from _two_masters(root / SYNCED / pciconf.CONF, sysfs, boards)


def cloud(hosts: Iterable[CloudHost]) -> Iterator[Finding]:
    """What the hosts' probes say."""
    for seen in hosts:
        boards = str(seen.attributes.get("GPU_BOARDS") or "").split()
        if "GPU_BOARDS" not in seen.attributes:
            yield Finding(seen.name, "its probe says nothing of GPUs",
                          f"{SYNC}; install the package opennebula-gpu-driver there if it has GPUs")
        if trouble := seen.attributes.get("GPU_TROUBLE"):
            yield Finding(seen.name, str(trouble), "kvm-gpu inventory on that host")
        buses = {board.rpartition(":")[0] for board in boards}
        if listed := [address for address in seen.pci if address.rpartition(":")[0] in buses]:
            yield Finding(seen.name, f"oned lists PCI devices beside GPUs that we give out: {' '.join(listed)}",
                          "one-gpu doctor on that host")


def retry_hook(hooks: dict[str, int]) -> Iterator[Finding]:
    if retry.HOOK not in hooks:
        yield Finding("front-end", "a VM that is refused for want of a GPU stays in BOOT_FAILURE",
                      "one-gpu install --with-retry-hook, or onevm recover --recreate by hand")


def told(findings: Iterable[Finding]) -> str:
    """For people."""
    return "".join(f"{where}: {what}\n    {helps}\n" if helps else f"{where}: {what}\n"
                   for where, what, helps in findings)


def _closed_to_qemu(root: Path) -> Iterator[Finding]:
    """Where libvirt changes no owner, QEMU opens what udev lets it open. Only root may read qemu.conf on some hosts."""
    conf = root / QEMU_CONF
    if not os.access(conf, os.R_OK) or not re.search(r"^\s*dynamic_ownership\s*=\s*0", conf.read_text(), re.MULTILINE):
        return
    rules = [rule for folder in UDEV_RULES for rule in sorted((root / folder).glob("*.rules"))]
    if not any(VFIO in rule.read_text() for rule in rules):
        yield Finding("this host", f"/{QEMU_CONF} has dynamic_ownership = 0, and no udev rule is for /dev/vfio: "
                                   "QEMU may not open its GPU", f'add the rule {VFIO}, OWNER="oneadmin", GROUP="kvm"')


def _two_masters(conf: Path, sysfs: Sysfs, boards: Iterable[Board]) -> Iterator[Finding]:
    try:
        listing = pciconf.read(conf)
        both = [board.address for board in boards if _is_listed(listing, sysfs, board)]
    except GpuError as failure:
        yield Finding("this host", failure.message, failure.hint)
        return
    if both:
        yield Finding("this host", f"{', '.join(both)}: given out by us, and listed by oned as PCI devices",
                      f"narrow :filter: in {install.REMOTES}/{pciconf.CONF} on the front-end, or `devices` in "
                      "/etc/kvm-gpu/config.toml here")


def _is_listed(listing: Listing, sysfs: Sysfs, board: Board) -> bool:
    """By what VMs get of it. oned leaves out a PF that has VFs, and lists these."""
    slots = (slot for layout in board.layouts[:1] for slot in layout.slots if slot.trouble is None)
    return any(listing.lists(read_function(sysfs, name)) and not virtual_functions(sysfs, name)
               for slot in slots for name in slot.functions)
