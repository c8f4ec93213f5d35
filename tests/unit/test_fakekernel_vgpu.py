"""The fake drivers of mdevs, NVIDIA's VFIO files and AMD's GIM answer as the real ones do; each errno once."""
from __future__ import annotations

import errno

import pytest

from tests.fakekernel import FakeSysfs, WouldHang, hosts
from tests.fakekernel.ask import PCI, answer, read, vfio_group

BOARD, VF, SIBLING = "0000:ca:00.0", PCI + "0000:ca:00.4/nvidia/", PCI + "0000:ca:00.5/nvidia/"
UUID = "11111111-0000-4000-8000-000000000101"
OTHER = "22222222-0000-4000-8000-000000000102"
HEADER = "ID    : vGPU Name"


# ---- NVIDIA's own VFIO files ---------------------------------------------------------------------------

def test_list_follows_the_siblings() -> None:
    kernel = hosts.load("x48")
    every = f"{HEADER}\n9102  : NVIDIA X48-2Q\n9108  : NVIDIA X48-8Q\n9124  : NVIDIA X48-24Q\n9148  : NVIDIA X48-48Q"
    assert read(kernel, VF + "creatable_vgpu_types") == every
    kernel.write(VF + "current_vgpu_type", "9124")
    assert read(kernel, VF + "current_vgpu_type") == "9124"
    assert read(kernel, VF + "creatable_vgpu_types") == HEADER
    assert read(kernel, SIBLING + "creatable_vgpu_types") == f"{HEADER}\n9124  : NVIDIA X48-24Q"
    kernel.write(SIBLING + "current_vgpu_type", "9124")
    assert read(kernel, PCI + "0000:ca:00.6/nvidia/creatable_vgpu_types") == HEADER
    assert read(kernel, PCI + "0000:17:00.4/nvidia/creatable_vgpu_types") == every


def test_mixed_sizes_sit_at_multiples_of_their_size() -> None:
    kernel = hosts.load("x48")
    kernel.tune(BOARD, mixed=True)
    kernel.write(VF + "current_vgpu_type", "9102")
    kernel.write(SIBLING + "current_vgpu_type", "9124")
    assert (read(kernel, VF + "placement_id"), read(kernel, SIBLING + "placement_id")) == ("0", "24")
    third = PCI + "0000:ca:00.6/nvidia/"
    assert read(kernel, third + "creatable_vgpu_types") == f"{HEADER}\n9102  : NVIDIA X48-2Q\n9108  : NVIDIA X48-8Q"
    kernel.write(third + "current_vgpu_type", "9108")
    assert read(kernel, third + "placement_id") == "8"


def test_mixed_sizes_end_with_the_driver() -> None:
    kernel = hosts.load("x48")
    kernel.tune(BOARD, mixed=True)
    kernel.write(PCI + BOARD + "/driver/unbind", BOARD)
    kernel.write("/sys/bus/pci/drivers/nvidia/bind", BOARD)
    kernel.write(PCI + BOARD + "/sriov_numvfs", "2")
    assert answer(kernel, VF + "current_vgpu_type", "9102") == ""
    assert answer(kernel, SIBLING + "current_vgpu_type", "9124") == "EIO"


@pytest.mark.parametrize(("prepared", "value", "error"), [
    ("", "9102", ""), ("", "0", "EPERM"), ("", "x", "EINVAL"), ("", "9999", "EIO"),
    ("9102", "9102", "EPERM"), ("9102", "9108", "EPERM"), ("9102", "0", "")])
def test_current_type_answers(prepared: str, value: str, error: str) -> None:
    kernel = hosts.load("x48")
    if prepared:
        kernel.write(VF + "current_vgpu_type", prepared)
    assert answer(kernel, VF + "current_vgpu_type", value) == error


def test_another_size_is_an_input_output_error() -> None:
    kernel = hosts.load("x48")
    kernel.write(VF + "current_vgpu_type", "9102")
    assert answer(kernel, SIBLING + "current_vgpu_type", "9108") == "EIO"


def test_files_of_a_vf_without_and_with_a_vgpu() -> None:
    kernel = hosts.load("x48")
    with pytest.raises(OSError, match="gpu_instance_id") as caught:
        kernel.read(VF + "gpu_instance_id")
    assert caught.value.errno == errno.ENXIO
    assert answer(kernel, VF + "vgpu_params", "disable_vnc=1") == "ENXIO"
    kernel.write(VF + "current_vgpu_type", "9102")
    assert read(kernel, VF + "gpu_instance_id") == "Not Applicable"
    assert answer(kernel, VF + "vgpu_params", "x" * 2000) == "E2BIG"
    kernel.write(VF + "vgpu_params", "disable_vnc=1")
    kernel.vm_start("vm-1", (vfio_group(kernel, "0000:ca:00.4"),))
    assert answer(kernel, VF + "vgpu_params", "disable_vnc=0") == "EPERM"
    assert answer(kernel, VF + "current_vgpu_type", "0") == "EBUSY"
    assert read(kernel, VF + "vgpu_params") == "disable_vnc=1"


def test_types_with_gpu_instances_need_a_free_one() -> None:
    kernel = hosts.load("x48-mig")
    first, second, third = (f"{PCI}0000:e1:00.{n}/nvidia/" for n in (4, 5, 6))
    time_sliced = f"{HEADER}\n9208  : NVIDIA X48M-8Q\n9248  : NVIDIA X48M-48Q"
    assert read(kernel, first + "creatable_vgpu_types") == time_sliced
    kernel.tune("0000:e1:00.0", mig=True, instances={1: 3, 2: 3})
    both = f"{HEADER}\n9301  : NVIDIA X48M-3-24C\n9302  : NVIDIA X48M-3-8Q"
    assert read(kernel, first + "creatable_vgpu_types") == both
    kernel.write(first + "current_vgpu_type", "9301")
    kernel.write(second + "current_vgpu_type", "9302")
    assert (read(kernel, first + "gpu_instance_id"), read(kernel, second + "gpu_instance_id")) == ("1", "2")
    assert read(kernel, third + "creatable_vgpu_types") == f"{HEADER}\n9302  : NVIDIA X48M-3-8Q"
    assert answer(kernel, third + "current_vgpu_type", "9208") == "EIO"


def test_a_slow_free_keeps_the_place_for_some_reads() -> None:
    kernel = hosts.load("x48-full")
    kernel.tune(BOARD, slow_looks=2)
    kernel.write(VF + "current_vgpu_type", "0")
    lists = [read(kernel, SIBLING + "creatable_vgpu_types") for _ in range(3)]
    assert [text == HEADER for text in lists] == [True, True, False]


# ---- mdev ----------------------------------------------------------------------------------------------

T4 = PCI + "0000:3b:00.0/"
TYPES = T4 + "mdev_supported_types/"


def test_mdevs_on_a_pf_share_its_room() -> None:
    kernel = hosts.load("t4-mdev")
    sysfs = FakeSysfs(kernel)
    before = kernel.snapshot()
    assert sysfs.read(TYPES + "nvidia-232/description") == (
        "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4")
    assert (sysfs.read(TYPES + "nvidia-232/name"), sysfs.read(TYPES + "nvidia-232/device_api")) == (
        "GRID T4-4Q", "vfio-pci")
    assert sysfs.read(TYPES + "nvidia-230/description") == (
        "num_heads=4, frl_config=60, framebuffer=1024M, max_resolution=5120x2880, max_instance=16")
    sysfs.write(TYPES + "nvidia-232/create", UUID.upper())
    assert sysfs.list("/sys/bus/mdev/devices") == (UUID,)
    assert sysfs.target(f"/sys/bus/mdev/devices/{UUID}/mdev_type") == "../mdev_supported_types/nvidia-232"
    assert sysfs.list(TYPES + "nvidia-232/devices") == (UUID,)
    assert sysfs.exists(f"/dev/vfio/{sysfs.link(f'/sys/bus/mdev/devices/{UUID}/iommu_group')}")
    left = {name: sysfs.number(f"{TYPES}nvidia-{name}/available_instances") for name in (231, 232, 319, 234)}
    assert left == {231: 0, 232: 3, 319: 3, 234: 0}
    sysfs.write(f"/sys/bus/mdev/devices/{UUID}/remove", "1")
    assert kernel.snapshot() == before


def test_one_mdev_on_each_vf_and_the_folders_name_differs() -> None:
    sysfs = FakeSysfs(hosts.load("a40-mdev"))
    first, sixth = PCI + "0000:67:00.4/mdev_supported_types/", PCI + "0000:67:01.1/mdev_supported_types/"
    assert sysfs.number(first + "nvidia-557/available_instances") == 1
    assert sysfs.number(sixth + "vfio-pci-557/available_instances") == 1
    sysfs.write(first + "nvidia-557/create", UUID)
    assert {sysfs.number(f"{first}{name}/available_instances") for name in sysfs.list(first)} == {0}
    assert sysfs.number(sixth + "vfio-pci-557/available_instances") == 1
    assert sysfs.number(sixth + "vfio-pci-558/available_instances") == 0


@pytest.mark.parametrize(("type_id", "value", "error"), [
    (230, OTHER, ""), (230, UUID, "EEXIST"), (230, OTHER + "\n", "EINVAL"), (230, OTHER[:-1], "EINVAL"),
    (230, OTHER.replace("-", ""), "EINVAL"), (231, OTHER, "EUSERS")])
def test_create_answers(type_id: int, value: str, error: str) -> None:
    kernel = hosts.load("t4-mdev")
    kernel.write(TYPES + "nvidia-230/create", UUID)
    assert answer(kernel, f"{TYPES}nvidia-{type_id}/create", value) == error


def test_remove_and_driver_unbind_would_hang_with_a_vm_inside() -> None:
    kernel = hosts.load("t4-mdev")
    kernel.write(TYPES + "nvidia-230/create", UUID)
    kernel.write(TYPES + "nvidia-230/create", OTHER)
    assert answer(kernel, f"/sys/bus/mdev/devices/{OTHER}/remove", "yes") == "EINVAL"
    kernel.vm_start("vm-1", (vfio_group(kernel, OTHER),))
    with pytest.raises(WouldHang):
        kernel.write(f"/sys/bus/mdev/devices/{OTHER}/remove", "1")
    with pytest.raises(WouldHang):
        kernel.write(T4 + "driver/unbind", "0000:3b:00.0")
    assert kernel.list("/sys/bus/mdev/devices") == (UUID, OTHER)
    kernel.vm_stop("vm-1")
    kernel.write(T4 + "driver/unbind", "0000:3b:00.0")
    assert kernel.list("/sys/bus/mdev/devices") == ()


def test_gvtg_describes_itself_in_several_lines() -> None:
    sysfs = FakeSysfs(hosts.load("igpu-gvtg"))
    types = PCI + "0000:00:02.0/mdev_supported_types/"
    assert sysfs.read(types + "i915-GVTg_V5_8/description") == (
        "low_gm_size: 64MB\nhigh_gm_size: 384MB\nfence: 4\nresolution: 1024x768\nweight: 2")
    sysfs.write(types + "i915-GVTg_V5_4/create", UUID)
    assert [sysfs.number(f"{types}{name}/available_instances") for name in sysfs.list(types)] == [1, 2]


def test_a_parent_that_is_no_pci_device() -> None:
    sysfs = FakeSysfs(hosts.load("mixed"))
    assert sysfs.target("/sys/class/mdev_bus/mtty") == "../../devices/virtual/mtty/mtty"
    types = "/sys/class/mdev_bus/mtty/mdev_supported_types/"
    sysfs.write(types + "mtty-2/create", UUID)
    assert [sysfs.number(f"{types}{name}/available_instances") for name in sysfs.list(types)] == [22, 11]


# ---- stores that say yes ---------------------------------------------------------------------------------

def test_gim_accepts_everything_and_does_what_it_likes() -> None:
    kernel = hosts.load("mi300x-gim")
    pf = PCI + "0000:05:00.0/"

    def modes() -> list[str | None]:
        return [read(kernel, pf + name) for name in
                ("accelerator_partition_profile", "spatial_partition_mode", "memory_partition_mode")]

    for name, value in (("accelerator_partition_profile", "9"), ("memory_partition_mode", "nonsense")):
        assert answer(kernel, pf + name, value) == ""
    assert modes() == ["0", "SPX", "NPS1"]
    kernel.write(pf + "accelerator_partition_profile", "3")
    kernel.write(pf + "memory_partition_mode", "NPS8")
    assert modes() == ["3", "CPX", "NPS4"]
    assert answer(kernel, pf + "spatial_partition_mode", "SPX") == "EACCES"
    kernel.vm_start("vm-1", managed=("0000:05:02.0",))
    assert answer(kernel, pf + "accelerator_partition_profile", "0") == ""
    assert modes() == ["3", "CPX", "NPS4"]
