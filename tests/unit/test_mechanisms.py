"""How each mechanism sees a card, looks at a slot and readies it."""
from __future__ import annotations

from pathlib import Path

import pytest

from kvm_gpu.errors import HostError
from kvm_gpu.inventory import read_host
from kvm_gpu.mechanisms import Obstacle, Seen, mechanism
from kvm_gpu.mechanisms.mdev import suffix
from kvm_gpu.mechanisms.nvidia_vfio import creatable
from kvm_gpu.mechanisms.vgpu import cells, merge
from kvm_gpu.model import Attribute, Board, Cell, Layout, Mdev, Profile, Slot
from kvm_gpu.profiles import VgpuType
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.sites import tables

PCI = "/sys/bus/pci/devices/"
UUID = "aaaaaaaa-0000-4000-8000-00000000000a"
ANY = Profile("any", None, None, 1, (0,))
EIGHT, TWO = VgpuType("9108", "X48-8Q", 8192, 6), VgpuType("9102", "X48-2Q", 2048, 24)
MIG = VgpuType("9301", "X48M-3-24C", 24576, 2)


def boards(kernel: Kernel, folder: Path, *ours: str) -> dict[str, Board]:
    host = read_host(FakeSysfs(kernel), ours, tables(kernel, folder))
    return {board.address: board for board in host.boards}


def layout_of(kernel: Kernel, folder: Path, address: str, *ours: str) -> Layout:
    """The present layout."""
    return boards(kernel, folder, *ours)[address].layouts[0]


def profile(layout: Layout, name: str) -> Profile:
    return next(one for cell in layout.cells for one in cell.profiles if one.name == name)


def slot(name: str) -> Slot:
    return Slot(name, (name,), PCI + name, ("board",))


# ---- whole -----------------------------------------------------------------------------------------

def test_whole_switches_idle_vfs_off_first() -> None:
    kernel, whole = hosts.load("whole-or-vf"), mechanism("whole")
    sysfs, card = FakeSysfs(kernel), slot("0000:3b:00.0")
    assert whole.look(sysfs, card, ANY) is None
    assert whole.realise(sysfs, card, ANY, "") == (Attribute(card.path + "/sriov_numvfs", "0", "2", "0"),)
    kernel.write(card.path + "/sriov_numvfs", "0")
    assert whole.realise(sysfs, card, ANY, "") == ()


def test_whole_is_not_given_under_somebodys_mdev() -> None:
    kernel, card = hosts.load("t4-mdev"), slot("0000:3b:00.0")
    kernel.write(f"{card.path}/mdev_supported_types/nvidia-232/create", UUID)
    assert mechanism("whole").look(FakeSysfs(kernel), card, ANY) == Obstacle(f"mdev {UUID} is on it, not by us")


@pytest.mark.parametrize(("name", "obstacle"), [
    ("whole", Obstacle("is gone", whole_board=True)), ("vf", Obstacle("is gone")),
    ("nvidia_vfio", Obstacle("is gone")), ("mdev", Obstacle("is gone, or its driver has no any")),
])
def test_a_slot_that_is_gone(name: str, obstacle: Obstacle) -> None:
    assert mechanism(name).look(FakeSysfs(hosts.load("t4-mdev")), slot("0000:99:00.0"), ANY) == obstacle


# ---- vf --------------------------------------------------------------------------------------------

def test_vfs_are_given_as_they_are(tmp_path: Path) -> None:
    kernel, vf = hosts.load("whole-or-vf"), mechanism("vf")
    sysfs, layout = FakeSysfs(kernel), layout_of(kernel, tmp_path, "0000:3b:00.0")
    assert layout == Layout("vf", "vf", (
        Slot("0000:3b:00.4", ("0000:3b:00.4",), PCI + "0000:3b:00.4", ("board",), 8208),
        Slot("0000:3b:00.5", ("0000:3b:00.5",), PCI + "0000:3b:00.5", ("board",), 8208),
    ), (Cell("board", False, (profile(layout, "8086:fff4-vf"),)),))
    first = layout.slots[0]
    assert (vf.look(sysfs, first, ANY), vf.realise(sysfs, first, ANY, ""), vf.seen(sysfs, layout)) == (None, (), ())


# ---- mdev ------------------------------------------------------------------------------------------

def test_mdevs_of_a_pf(tmp_path: Path) -> None:
    kernel, mdev = hosts.load("t4-mdev"), mechanism("mdev")
    sysfs, layout = FakeSysfs(kernel), layout_of(kernel, tmp_path, "0000:3b:00.0")
    first, big, small = layout.slots[0], profile(layout, "T4-16Q"), profile(layout, "T4-4Q")
    assert (first.name, first.functions, len(layout.slots)) == ("0000:3b:00.0#0", ("0000:3b:00.0",), 16)
    assert (small.type_id, small.fb_mib, small.starts) == ("232", 4096, (0, 4096, 8192, 12288))
    types = f"{PCI}0000:3b:00.0/mdev_supported_types"
    assert mdev.realise(sysfs, first, small, UUID) == (Mdev(UUID, f"{types}/nvidia-232"),)
    assert mdev.look(sysfs, first, big) is None
    kernel.write(f"{types}/nvidia-232/create", UUID)
    assert mdev.look(sysfs, first, big) == Obstacle(f"no instance of T4-16Q left beside mdev {UUID}", whole_board=True)
    assert mdev.seen(sysfs, layout) == (Seen(None, "232", UUID, f"mdev {UUID}"),)


def test_one_mdev_on_each_vf_whatever_its_folders_are_called(tmp_path: Path) -> None:
    kernel, mdev = hosts.load("a40-mdev"), mechanism("mdev")
    sysfs, layout = FakeSysfs(kernel), layout_of(kernel, tmp_path, "0000:67:00.0")
    odd, kind = layout.slots[5], profile(layout, "A40-8Q")
    path = f"{odd.path}/mdev_supported_types/vfio-pci-562"
    assert mdev.realise(sysfs, odd, kind, UUID) == (Mdev(UUID, path),)
    kernel.write(path + "/create", UUID)
    assert mdev.seen(sysfs, layout) == (Seen(odd.name, "562", UUID, f"mdev {UUID}"),)
    assert mdev.look(sysfs, odd, kind) == Obstacle(f"no instance of A40-8Q left beside mdev {UUID}")
    assert mdev.look(sysfs, layout.slots[0], kind) is None


def test_a_type_that_the_parent_does_not_have() -> None:
    with pytest.raises(HostError, match="no type any"):
        mechanism("mdev").realise(FakeSysfs(hosts.load("t4-mdev")), slot("0000:3b:00.0"), ANY, UUID)


@pytest.mark.parametrize("held", [0, 1])
def test_types_without_a_frame_buffer_are_shares(held: int, tmp_path: Path) -> None:
    kernel = hosts.load("igpu-gvtg")
    types = f"{PCI}0000:00:02.0/mdev_supported_types"
    for number in range(held):
        kernel.write(f"{types}/i915-GVTg_V5_8/create", f"{UUID[:-1]}{number}")
    cell, = layout_of(kernel, tmp_path, "0000:00:02.0").cells
    assert cell == Cell("board", False, (
        Profile("i915-GVTg_V5_4", "GVTg_V5_4", None, 2 + held, cell.profiles[0].starts),
        Profile("i915-GVTg_V5_8", "GVTg_V5_8", None, 1, tuple(range(4)))))


@pytest.mark.parametrize(("folder", "number"), [
    ("nvidia-711", "711"), ("vfio-pci-711", "711"), ("i915-GVTg_V5_4", "GVTg_V5_4"), ("mtty-2", "2")])
def test_suffix(folder: str, number: str) -> None:
    assert suffix(folder) == number


# ---- vGPUs through NVIDIA's files ------------------------------------------------------------------

def test_vgpus_on_vfs(tmp_path: Path) -> None:
    kernel, vfio = hosts.load("x48"), mechanism("nvidia_vfio")
    sysfs, layout = FakeSysfs(kernel), layout_of(kernel, tmp_path, "0000:ca:00.0")
    first, second, kind = layout.slots[0], layout.slots[1], profile(layout, "X48-8Q")
    current = f"{PCI}0000:ca:00.4/nvidia/current_vgpu_type"
    assert vfio.look(sysfs, first, kind) is None
    assert vfio.realise(sysfs, first, kind, "") == (Attribute(current, "9108", "0", "0"),)
    kernel.write(current, "9102")
    assert vfio.look(sysfs, first, kind) == Obstacle("vGPU type 9102 is set on it, not by us")
    assert vfio.look(sysfs, second, kind) == Obstacle("the driver would not create X48-8Q now", whole_board=True)
    assert vfio.look(sysfs, second, profile(layout, "X48-2Q")) is None
    assert vfio.seen(sysfs, layout) == (Seen("0000:ca:00.4", "9102", None, "vGPU type 9102"),)


def test_creatable_is_a_table_below_a_header() -> None:
    sysfs = FakeSysfs(hosts.load("x48"))
    assert creatable(sysfs, PCI + "0000:ca:00.4") == (
        ("9102", "X48-2Q"), ("9108", "X48-8Q"), ("9124", "X48-24Q"), ("9148", "X48-48Q"))
    assert creatable(FakeSysfs(hosts.load("x48-full")), PCI + "0000:ca:00.5") == ()


def test_a_driver_that_offers_nothing_is_the_boards_trouble(tmp_path: Path) -> None:
    kernel = hosts.load("x48-mig")
    kernel.tune("0000:e1:00.0", mig=True)
    board = boards(kernel, tmp_path)["0000:e1:00.0"]
    assert (board.layouts, board.trouble) == ((), (
        "the driver offers no vGPU type though none is set "
        "(nvidia-vgpu-mgr or nvidia-vgpud not running, or MIG without GPU instances)",))


def test_gpu_instances_are_cells_of_their_own(tmp_path: Path) -> None:
    kernel = hosts.load("x48-mig")
    kernel.tune("0000:e1:00.0", mig=True, instances={1: 3, 2: 3})
    kernel.write(f"{PCI}0000:e1:00.4/nvidia/current_vgpu_type", "9301")
    found = {cell.name: len(cell.profiles[0].starts) for cell in layout_of(kernel, tmp_path, "0000:e1:00.0").cells}
    assert found == {"gi X48M-3-24C": 2, "gi X48M-3-8Q": 1}


# ---- types as profiles -----------------------------------------------------------------------------

def test_time_sliced_types_share_the_board() -> None:
    assert cells((EIGHT,), frozenset({"9108"}), ()) == (
        Cell("board", True, (Profile("X48-8Q", "9108", 8192, 8192, (0, 8192, 16384, 24576, 32768, 40960)),)),)


def test_a_board_with_two_sizes_is_in_mixed_mode() -> None:
    assert [cell.one_size for held in (("9108",), ("9108", "9102"))
            for cell in cells((EIGHT, TWO), frozenset(), held)] == [True, False]


def test_what_the_idle_board_does_not_offer_is_no_profile() -> None:
    cell, = cells((EIGHT, TWO), frozenset({"9102"}), ())
    assert [one.name for one in cell.profiles] == ["X48-2Q"]


def test_of_gpu_instances_there_are_as_many_as_run_and_one_more() -> None:
    assert cells((EIGHT, MIG), frozenset({"9301"}), ("9301",)) == (
        Cell("gi X48M-3-24C", False, (Profile("X48M-3-24C", "9301", 24576, 1, (0, 1)),)),)


def test_the_drivers_list_adds_to_the_table() -> None:
    assert merge((EIGHT,), (("9108", "X48-8Q"), ("9124", "X48-24Q"), ("7", "no size")), 4) == (
        EIGHT, VgpuType("9124", "X48-24Q", 24576, 1))
