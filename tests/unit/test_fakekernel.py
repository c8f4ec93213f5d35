"""The fake kernel answers as the real one does: PCI, SR-IOV, drivers, VMs, nodes; each errno once."""
from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from kvm_gpu.errors import HostError
from tests.fakekernel import FakeSysfs, Kernel, QemuError, WouldHang, hosts, materialise
from tests.fakekernel.ask import PCI, answer, read, vfio_group
from tests.fakekernel.iommu import IommuGroups
from tests.fakekernel.tree import Tree

VF = PCI + "0000:ca:00.4/nvidia/"
UUID = "11111111-0000-4000-8000-000000000101"


# ---- SR-IOV ------------------------------------------------------------------------------------------

def test_numvfs_makes_vfs_with_links_and_zero_removes_them() -> None:
    kernel = hosts.load("arcpro-xe")
    sysfs, pf = FakeSysfs(kernel), PCI + "0000:03:00.0"
    sysfs.write(pf + "/sriov_numvfs", "0")
    assert sysfs.list(PCI) == ("0000:00:01.0", "0000:01:00.0", "0000:02:01.0", "0000:02:02.0", "0000:03:00.0",
                               "0000:04:00.0", "0000:04:00.1", "0000:04:00.2")
    sysfs.write(pf + "/sriov_numvfs", "9")
    assert sysfs.target(pf + "/virtfn8") == "../0000:03:01.1"
    assert sysfs.target(PCI + "0000:03:01.1/physfn") == "../0000:03:00.0"
    assert sysfs.read(pf + "/sriov_numvfs") == "9"
    assert sysfs.read(pf + "/sriov_vf_device") == "e211"


@pytest.mark.parametrize(("value", "error"), [
    ("2", ""), ("3", "EBUSY"), ("13", "ERANGE"), ("65536", "ERANGE"), ("many", "EINVAL"), ("-1", "EINVAL")])
def test_numvfs_refuses(value: str, error: str) -> None:
    assert answer(hosts.load("arcpro-xe"), PCI + "0000:03:00.0/sriov_numvfs", value) == error


def test_numvfs_without_driver_or_with_one_that_has_no_such_function() -> None:
    kernel = hosts.load("arcpro-xe")
    pf = PCI + "0000:03:00.0"
    kernel.write(pf + "/driver/unbind", "0000:03:00.0")
    assert read(kernel, pf + "/sriov_numvfs") == "0"
    assert answer(kernel, pf + "/sriov_numvfs", "2") == "ENOENT"
    kernel.write(pf + "/driver_override", "vfio-pci")
    kernel.write("/sys/bus/pci/drivers_probe", "0000:03:00.0")
    assert answer(kernel, pf + "/sriov_numvfs", "2") == "ENOENT"
    assert answer(hosts.load("s7150"), PCI + "0000:06:00.0/sriov_numvfs", "0") == "ENOENT"


def test_numvfs_of_zero_would_hang_with_a_vm_inside() -> None:
    kernel = hosts.load("whole-or-vf")
    kernel.vm_start("vm-7", managed=("0000:3b:00.5",))
    before = kernel.snapshot()
    with pytest.raises(WouldHang, match="vm-7"):
        kernel.write(PCI + "0000:3b:00.0/sriov_numvfs", "0")
    assert kernel.snapshot() == before


def test_a_group_held_without_a_vm_does_not_hinder_removal() -> None:
    kernel = hosts.load("x48-full")
    sysfs = FakeSysfs(kernel)
    handle = sysfs.hold(vfio_group(kernel, "0000:ca:00.4"))
    assert handle is not None
    assert answer(kernel, PCI + "0000:ca:00.0/sriov_numvfs", "0") == ""
    sysfs.let_go(handle)


def test_vf_addresses_carry_into_the_next_bus() -> None:
    """Source of the list 00.4 to 04.3: public lspci of an A40 host."""
    sysfs = FakeSysfs(hosts.load("a40-mdev"))
    names = [sysfs.link(f"{PCI}0000:67:00.0/virtfn{index}") for index in (0, 3, 4, 31)]
    assert names == ["0000:67:00.4", "0000:67:00.7", "0000:67:01.0", "0000:67:04.3"]
    assert FakeSysfs(hosts.load("big16x64")).link(PCI + "0000:11:00.0/virtfn63") == "0000:11:08.0"


def test_xe_shares_memory_among_vfs_unless_told() -> None:
    kernel = hosts.load("arcpro-xe")
    pf = PCI + "0000:03:00.0"
    quota = pf + "/sriov_admin/vf1/profile/vram_quota"
    assert (read(kernel, quota), read(kernel, quota.replace("vf1", "vf3"))) == (str(12 << 30), "0")
    kernel.write(quota, str(4 << 30))
    assert read(kernel, quota) == str(4 << 30)
    kernel.write(pf + "/sriov_numvfs", "0")
    assert read(kernel, quota) == "0"
    assert answer(kernel, quota, "half") == "EINVAL"


# ---- drivers -----------------------------------------------------------------------------------------

def test_override_unbind_probe_and_back() -> None:
    kernel = hosts.load("rtx6000x4")
    sysfs, card = FakeSysfs(kernel), "0000:3b:00.0"
    before = kernel.snapshot()
    group = vfio_group(kernel, card)
    assert sysfs.read(PCI + card + "/driver_override") == "(null)"
    for path, value in ((f"{PCI}{card}/driver_override", "vfio-pci"), (f"{PCI}{card}/driver/unbind", card),
                        ("/sys/bus/pci/drivers_probe", card)):
        sysfs.write(path, value)
    assert (sysfs.link(PCI + card + "/driver"), sysfs.exists(f"/dev/vfio/{group}")) == ("vfio-pci", True)
    assert "DRIVER=vfio-pci" in (sysfs.read(PCI + card + "/uevent") or "")
    for path, value in ((f"{PCI}{card}/driver_override", ""), (f"{PCI}{card}/driver/unbind", card),
                        ("/sys/bus/pci/drivers_probe", card)):
        sysfs.write(path, value)
    assert kernel.snapshot() == before


@pytest.mark.parametrize(("path", "value", "error"), [
    ("/sys/bus/pci/drivers/nvidia/bind", "0000:3b:00.0", "EBUSY"),
    ("/sys/bus/pci/drivers/vfio-pci/bind", "0000:3b:00.0", "ENODEV"),       # no override: does not match
    ("/sys/bus/pci/drivers/vfio-pci/unbind", "0000:3b:00.0", "ENODEV"),     # another driver's
    ("/sys/bus/pci/drivers/nvidia/bind", "0000:99:00.0", "ENODEV"),
    ("/sys/bus/pci/drivers_probe", "0000:99:00.0", "ENODEV"),
    ("/sys/bus/pci/drivers_probe", "0000:3b:00.0", ""),                     # bound already: nothing to do
    ("/sys/bus/pci/drivers/amdgpu/bind", "0000:3b:00.0", "ENOENT"),         # not loaded
    (PCI + "0000:3b:00.0/driver_override", "no-such-driver", ""),
    (PCI + "0000:3b:00.0/numa_node", "1", "EACCES"),
    (PCI + "0000:3b:00.0/no_such_file", "1", "ENOENT"),
    (PCI + "0000:3b:00.0/vendor/below", "1", "ENOTDIR"),
    (PCI + "0000:3b:00.0", "1", "EISDIR"),
])
def test_binding_answers(path: str, value: str, error: str) -> None:
    assert answer(hosts.load("rtx6000x4"), path, value) == error


def test_without_autoprobe_a_vf_binds_by_override_only() -> None:
    kernel = hosts.load("flex170")
    vf, bind = "0000:4d:00.1", "/sys/bus/pci/drivers/i915/bind"
    assert FakeSysfs(kernel).link(f"{PCI}{vf}/driver") is None
    assert answer(kernel, bind, vf) == "ENODEV"
    kernel.write(f"{PCI}{vf}/driver_override", "vfio-pci")
    assert answer(kernel, bind, vf) == "ENODEV"
    assert answer(kernel, "/sys/bus/pci/drivers/vfio-pci/bind", vf) == ""


def test_unbind_would_hang_with_a_vm_inside() -> None:
    kernel = hosts.load("rtx6000x4")
    kernel.vm_start("vm-1", managed=tuple(f"0000:3b:00.{number}" for number in range(4)))
    with pytest.raises(WouldHang):
        kernel.write(PCI + "0000:3b:00.0/driver/unbind", "0000:3b:00.0")


# ---- what fails on purpose ----------------------------------------------------------------------

def test_faults_meet_a_file_by_any_of_its_paths() -> None:
    kernel = hosts.load("x48")
    kernel.fail(VF + "current_vgpu_type", errno.EIO, times=2)
    other = "/sys/devices/pci0000:c9/0000:c9:00.0/0000:ca:00.4/nvidia/current_vgpu_type"
    assert [answer(kernel, path, "9102") for path in (other, VF + "current_vgpu_type", other)] == ["EIO", "EIO", ""]
    kernel.lie(VF + "current_vgpu_type")
    kernel.write(VF + "current_vgpu_type", "0")
    assert read(kernel, VF + "current_vgpu_type") == "9102"
    assert [(write.value, write.error) for write in kernel.writes] == [
        ("9102", "EIO"), ("9102", "EIO"), ("9102", ""), ("0", "")]


def test_reads_that_fail_are_errors_and_absence_is_not() -> None:
    sysfs = FakeSysfs(hosts.load("mixed"))
    with pytest.raises(HostError, match="numa_node: EIO"):
        sysfs.read(PCI + "0000:af:00.0/numa_node")
    with pytest.raises(HostError, match="drivers_probe: EACCES"):
        sysfs.read("/sys/bus/pci/drivers_probe")
    assert sysfs.read(PCI + "0000:af:00.0/sriov_numvfs") is None
    assert sysfs.list("/sys/bus/pci/nothing") == ()


# ---- VMs -------------------------------------------------------------------------------------------------

def test_a_vm_takes_groups_pages_and_functions_and_gives_them_back() -> None:
    kernel = hosts.load("rtx6000x4")
    sysfs = FakeSysfs(kernel)
    before = kernel.snapshot()
    card = tuple(f"0000:3b:00.{number}" for number in range(4))
    kernel.vm_start("one-42", managed=card, pages={(0, 1048576): 8})
    assert {sysfs.link(f"{PCI}{name}/driver") for name in card} == {"vfio-pci"}
    assert sysfs.hold(vfio_group(kernel, card[0])) is None
    assert sysfs.number("/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages") == 24
    status = sysfs.read("/run/libvirt/qemu/one-42.xml") or ""
    assert status.count("<hostdev ") == 4
    pid = sysfs.read("/run/libvirt/qemu/one-42.pid")
    open_files = [sysfs.target(f"/proc/{pid}/fd/{name}") for name in sysfs.list(f"/proc/{pid}/fd")]
    assert open_files == ["/dev/vfio/vfio", f"/dev/vfio/{vfio_group(kernel, card[0])}"]
    kernel.vm_stop("one-42")
    assert kernel.snapshot() == before


def group_taken(kernel: Kernel) -> None:
    assert FakeSysfs(kernel).hold(vfio_group(kernel, "0000:ca:00.4"))


def type_unset(kernel: Kernel) -> None:
    kernel.write(VF + "current_vgpu_type", "0")


def nothing(kernel: Kernel) -> None:
    pass


@pytest.mark.parametrize(("prepare", "pages", "error"), [
    (group_taken, {}, errno.EBUSY), (type_unset, {}, errno.ENODEV), (nothing, {(1, 1048576): 33}, errno.ENOMEM)])
def test_a_vm_that_cannot_start_leaves_nothing(
        prepare: Callable[[Kernel], None], pages: dict[tuple[int, int], int], error: int) -> None:
    kernel = hosts.load("x48-full")
    prepare(kernel)
    before = kernel.snapshot()
    with pytest.raises(QemuError) as caught:
        kernel.vm_start("vm-1", (vfio_group(kernel, "0000:ca:00.4"),), pages)
    assert caught.value.errno == error
    assert kernel.snapshot() == before


def test_a_group_with_another_drivers_function_is_not_viable() -> None:
    kernel = hosts.load("group-mates")
    with pytest.raises(QemuError, match="0000:3c:00.0 is bound to ahci") as caught:
        kernel.vm_start("vm-1", managed=("0000:3b:00.0", "0000:3b:00.1"))
    assert caught.value.errno == errno.EINVAL


def test_reboot_forgets_all_but_what_drivers_make_at_load() -> None:
    kernel = hosts.load("mixed")
    old = read(kernel, "/proc/sys/kernel/random/boot_id")
    kernel.write("/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", UUID)
    kernel.reboot()
    assert read(kernel, "/proc/sys/kernel/random/boot_id") != old
    numvfs = {name: read(kernel, PCI + name + "/sriov_numvfs") for name in ("0000:25:00.0", "0000:86:00.0")}
    assert numvfs == {"0000:25:00.0": "0", "0000:86:00.0": "16"}
    assert kernel.list("/sys/bus/mdev/devices") == ()
    kernel.setup()
    assert read(kernel, PCI + "0000:25:00.0/sriov_numvfs") == "16"


# ---- nodes, serials, the whole tree --------------------------------------------------------------------------

def test_cpus_nodes_and_pages() -> None:
    sysfs = FakeSysfs(hosts.load("pages"))
    node, pages = "/sys/devices/system/node/node0/", "hugepages/hugepages-1048576kB/"
    assert sysfs.read("/sys/devices/system/node/online") == "0-1"
    assert (sysfs.read(node + "cpulist"), sysfs.read(node + "distance")) == ("0-7,16-23", "10 21")
    assert sysfs.read("/sys/devices/system/cpu/cpu3/topology/thread_siblings_list") == "3,19"
    assert (sysfs.number(node + pages + "nr_hugepages"), sysfs.number(node + pages + "free_hugepages")) == (64, 8)
    sysfs.write(node + pages + "nr_hugepages", "1000")      # short, and no error
    assert sysfs.number(node + pages + "nr_hugepages") == 128
    assert sysfs.list(node + "hugepages") == ("hugepages-1048576kB",)


def test_bars_of_vfs_lie_in_the_sriov_bars_of_the_pf() -> None:
    kernel = hosts.load("whole-or-vf")
    pf, first, second = ((read(kernel, f"{PCI}0000:3b:00.{n}/resource") or "").split("\n") for n in (0, 4, 5))
    assert len(pf) == len(first) == 13
    assert (pf[7 + 2][:18], pf[7 + 2][19:37]) == (first[2][:18], second[2][19:37])
    start, end, flags = (int(word, 16) for word in second[2].split())
    assert (start - int(first[2][:18], 16), end - start + 1, flags) == (8 << 30, 8 << 30, 0x14220c)


def test_groups_that_a_description_gives_away_are_not_taken() -> None:
    groups = IommuGroups(Tree(), enabled=True, reserved=frozenset({1}))
    assert [groups.join(name, f"/sys/devices/{name}") for name in ("a", "b", "c")] == [0, 2, 3]
    groups.leave("b", 2)
    assert groups.join("d", "/sys/devices/d", 1) == 1
    assert groups.join("e", "/sys/devices/e") == 2


def test_serial_number_is_behind_another_capability() -> None:
    space = hosts.load("moved-after").read(PCI + "0000:42:00.0/config")
    assert (len(space), space[0:4].hex()) == (4096, "de10b926")
    following = int.from_bytes(space[0x100:0x104], "little") >> 20
    assert space[following:following + 12].hex() == "03000100" + "aaaa0a0000000000"


def test_every_host_boots_and_can_be_written_as_files(tmp_path: os.PathLike[str]) -> None:
    for name in hosts.names():
        kernel = hosts.load(name)
        assert kernel.writes == []
    root = os.fspath(tmp_path)
    materialise(hosts.load("x48"), root)
    assert os.readlink(root + PCI + "0000:ca:00.4") == "../../../devices/pci0000:c9/0000:c9:00.0/0000:ca:00.4"
    with open(root + VF + "current_vgpu_type") as file:
        assert file.read() == "0\n"
    assert not os.path.exists(root + VF + "placement_id")
    assert os.stat(root + VF + "creatable_vgpu_types").st_mode & 0o777 == 0o444
