"""The same kernel through a mount: real files, real errnos, and a test that turns the knobs from outside."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvm_gpu.sysfs import Sysfs, WriteError
from tests.fakekernel import QemuError, WouldHang, hosts
from tests.fakekernel.fusefront import Mounted, mount

PCI = "/sys/bus/pci/devices/"
VF = PCI + "0000:ca:00.4"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    with mount(hosts.load("x48-full"), tmp_path) as mounted:
        yield mounted


def test_reads_and_writes_reach_the_kernel(mounted: Mounted) -> None:
    sysfs = Sysfs(str(mounted.root))
    assert sysfs.target(VF) == "../../../devices/pci0000:c9/0000:c9:00.0/0000:ca:00.4"
    assert sysfs.read("/etc/kvm-gpu/vgpu-types.json") is not None
    assert sysfs.read(PCI + "0000:ca:00.5/nvidia/placement_id") is None
    refused = []
    for path, value in ((VF + "/numa_node", "0"), (VF + "/nvidia/current_vgpu_type", "9102"), (VF + "/nothing", "1")):
        with pytest.raises(WriteError) as caught:
            sysfs.write(path, value)
        refused.append(str(caught.value).rpartition(" ")[2])
    assert refused == ["EACCES", "EPERM", "ENOENT"]
    sysfs.write(VF + "/nvidia/current_vgpu_type", "0")
    assert sysfs.read(VF + "/nvidia/current_vgpu_type") == "0"
    sysfs.write(PCI + "0000:ca:00.0/sriov_numvfs", "0")
    assert sysfs.list(PCI) == ("0000:c9:00.0", "0000:ca:00.0")


def test_an_open_group_keeps_vms_off_and_a_vm_keeps_it_closed(mounted: Mounted) -> None:
    sysfs = Sysfs(str(mounted.root))
    group = mounted.group_of("0000:ca:00.4")
    held = sysfs.hold(group)
    assert held is not None
    with pytest.raises(QemuError, match="busy"):
        mounted.vm_start("one-1", (group,))
    sysfs.let_go(held)
    mounted.vm_start("one-1", (group,))
    assert sysfs.hold(group) is None
    assert sysfs.exists("/run/libvirt/qemu/one-1.xml")
    mounted.vm_stop("one-1")
    assert not sysfs.exists("/run/libvirt/qemu/one-1.xml")


def test_a_write_that_would_hang_reaches_the_test(mounted: Mounted) -> None:
    mounted.vm_start("one-1", (mounted.group_of("0000:ca:00.4"),))
    with pytest.raises(WriteError):
        Sysfs(str(mounted.root)).write(PCI + "0000:ca:00.0/sriov_numvfs", "0")
    with pytest.raises(WouldHang, match="one-1"):
        mounted.snapshot()


def test_a_reboot_empties_run(mounted: Mounted) -> None:
    ready = mounted.root / "run/kvm-gpu/ready"
    ready.parent.mkdir()
    ready.touch()
    mounted.reboot()
    assert not ready.parent.exists()
    assert Sysfs(str(mounted.root)).list(PCI) == ("0000:c9:00.0", "0000:ca:00.0")
