"""Who has which VFIO device open, and what of it is not ours."""
from __future__ import annotations

from pathlib import Path

from kvm_gpu.foreign import foreign_holds
from kvm_gpu.inventory import read_host
from kvm_gpu.model import Hold, Want
from kvm_gpu.users import nodes, user, vfio_users
from tests.cases.starts import start
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.tree import Link
from tests.fakekernel.vms import FIRST_PID
from tests.sites import fake_site, run, tables

PCI = "/sys/bus/pci/devices/"
UUID = "aaaaaaaa-0000-4000-8000-00000000000a"


def holds(kernel: Kernel, folder: Path) -> tuple[Hold, ...]:
    sysfs = FakeSysfs(kernel)
    host = read_host(sysfs, (), tables(kernel, folder))
    return foreign_holds(sysfs, host, (), frozenset(), vfio_users(sysfs))


def test_who_has_a_group_open() -> None:
    kernel = hosts.load("whole-or-vf")
    sysfs = FakeSysfs(kernel)
    assert vfio_users(sysfs) == {}
    kernel.vm_start("vm-1", managed=("0000:3b:00.4",))
    group = str(kernel.group_of("0000:3b:00.4"))
    users = vfio_users(sysfs)
    assert users == {group: FIRST_PID + 1}
    assert user(sysfs, (PCI + "0000:3b:00.5", PCI + "0000:3b:00.4"), users) == FIRST_PID + 1
    assert user(sysfs, (PCI + "0000:3b:00.5",), users) is None


def test_a_device_opened_by_its_own_file() -> None:
    """IOMMUFD: /dev/vfio/devices/vfioN in place of the group. Source: Documentation/driver-api/vfio.rst."""
    kernel = hosts.load("whole-or-vf")
    sysfs = FakeSysfs(kernel)
    kernel.tree.folder(kernel.pci.functions["0000:3b:00.4"].folder + "/vfio-dev/vfio3")
    kernel.tree.put("/proc/4711/fd/9", Link("/dev/vfio/devices/vfio3"))
    group = str(kernel.group_of("0000:3b:00.4"))
    assert nodes(sysfs, PCI + "0000:3b:00.4") == (group, "devices/vfio3")
    assert user(sysfs, (PCI + "0000:3b:00.4",), vfio_users(sysfs)) == 4711


def test_a_foreign_vm_on_a_vf_and_one_on_a_whole_card(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    kernel.vm_start("other", managed=("0000:3b:00.5",))
    assert holds(kernel, tmp_path) == (
        Hold("0000:3b:00.5", "0000:3b:00.0", "vf", "board", "8086:fff4-vf", 0, 1, None, "foreign"),)
    kernel = hosts.load("moved-before")
    kernel.vm_start("other", managed=("0000:81:00.0",))
    assert holds(kernel, tmp_path) == (
        Hold("0000:81:00.0", "0000:81:00.0", "whole", "board", "l40s", 0, 1, None, "foreign"),)


def test_a_foreign_mdev_and_foreign_types(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    kernel.write(f"{PCI}0000:3b:00.0/mdev_supported_types/nvidia-232/create", UUID)
    assert holds(kernel, tmp_path) == (
        Hold("0000:3b:00.0#0", "0000:3b:00.0", "mdev", "board", "T4-4Q", 0, 4096, None, "foreign"),)
    kernel = hosts.load("x48")
    for vf in ("0000:ca:00.4", "0000:ca:00.6"):
        kernel.write(f"{PCI}{vf}/nvidia/current_vgpu_type", "9108")
    assert holds(kernel, tmp_path) == (
        Hold("0000:ca:00.4", "0000:ca:00.0", "nvidia_vfio", "board", "X48-8Q", 0, 8192, None, "foreign"),
        Hold("0000:ca:00.6", "0000:ca:00.0", "nvidia_vfio", "board", "X48-8Q", 8192, 8192, None, "foreign"))


def test_what_is_ours_is_not_foreign(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", Want(profile="T4-4Q"))
    run(site, kernel, "vm-1")
    assert site.fresh_view().foreign == ()
