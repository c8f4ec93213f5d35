"""A Site over a fake kernel in the same process: real ledger, real cache, real tables, no mount."""
from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from kvm_gpu import profiles
from kvm_gpu.ledger import Ledger
from kvm_gpu.model import Config
from kvm_gpu.reconcile import reconcile
from kvm_gpu.site import Site
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel

TABLE = "/etc/kvm-gpu/vgpu-types.json"
NUMBERED = re.compile("iommu_group|^/dev/vfio/|/boot_id$|^/proc/[0-9]|^/run/libvirt/")


def folder_in_memory() -> tempfile.TemporaryDirectory[str]:
    """For tests that commit hundreds of times: a sync costs nothing there."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def fake_site(kernel: Kernel, folder: Path, config: Config | None = None) -> Site:
    """Cache and tables lie in `folder`, which also holds the ledger."""
    sysfs = FakeSysfs(kernel, str(folder))
    _write_table(kernel, folder)
    (folder / "run").mkdir(exist_ok=True)
    return Site(sysfs, Ledger(str(folder / "state" / "ledger.db")), config or Config())


def run(site: Site, kernel: Kernel, vm: str) -> None:
    """The hypervisor starts the VM on what it holds, binding cards and VFs as libvirt does, and we come to know."""
    held = site.ledger.claim_of(vm)
    assert held is not None
    devices = site.ledger.devices(held.id)
    managed = tuple(name for device in devices if device.mechanism in ("whole", "vf") for name in device.functions)
    others = [device.uuid or device.functions[0] for device in devices if device.mechanism not in ("whole", "vf")]
    groups = tuple(group for name in others if (group := kernel.group_of(name)) is not None)
    kernel.vm_start(vm, groups, managed=managed)
    reconcile(site)


def stop(site: Site, kernel: Kernel, vm: str) -> None:
    """The guest turns itself off: no hook runs, reconcile finds out."""
    kernel.vm_stop(vm)
    reconcile(site)


def essence(kernel: Kernel) -> dict[str, str]:
    """The kernel's tree without what a reboot, and VFs that go and come, number afresh."""
    return {path: text for path, text in kernel.snapshot().items() if not NUMBERED.search(path)}


def tables(kernel: Kernel, folder: Path) -> profiles.Tables:
    """The built-in tables with what the machine's own file adds."""
    _write_table(kernel, folder)
    return profiles.load(str(folder) + TABLE)


def _write_table(kernel: Kernel, folder: Path) -> None:
    text = FakeSysfs(kernel).binary(TABLE)
    if text is not None:
        (folder / "etc/kvm-gpu").mkdir(parents=True, exist_ok=True)
        (folder / TABLE.lstrip("/")).write_bytes(text)
