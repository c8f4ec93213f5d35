"""Inventory of the bundled machines: what each mechanism shows, and the traps of real ones."""
from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvm_gpu import inventory
from kvm_gpu.errors import HostError
from kvm_gpu.model import Board, Cell, Function, Host, Pages, Profile
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.tree import File
from tests.sites import tables


def read(kernel: Kernel, *ours: str) -> Host:
    with TemporaryDirectory() as folder:
        return inventory.read_host(FakeSysfs(kernel), ours, tables(kernel, Path(folder)))


def board(host: Host, address: str) -> Board:
    return next(board for board in host.boards if board.address == address)


def test_whole_card_has_all_its_functions() -> None:
    card = board(read(hosts.load("rtx6000x4")), "0000:3b:00.0")
    assert card.functions == (
        Function("0000:3b:00.0", "10de:1e30", 0x030000, "nvidia", 1, False),
        Function("0000:3b:00.1", "10de:10f7", 0x040300, "snd_hda_intel", 1, False),
        Function("0000:3b:00.2", "10de:1ad6", 0x0c0330, "xhci_hcd", 1, False),
        Function("0000:3b:00.3", "10de:1ad7", 0x0c8000, "nvidia-gpu", 1, False),
    )
    whole, = card.layouts
    assert whole.slots[0].functions == tuple(f"0000:3b:00.{number}" for number in range(4))
    assert whole.cells == (Cell("board", False, (Profile("rtx6000", None, 24576, 1, (0,)),)),)
    assert (card.model, card.identity, card.numa_node, card.numa_source) == (
        "rtx6000", "00-00-00-00-00-00-3b-01", 0, "device")


def test_nodes_have_siblings_memory_pages_and_distances() -> None:
    node = read(hosts.load("rtx6000x4")).nodes[1]
    assert node.cores == tuple((cpu, cpu + 16) for cpu in range(8, 16))
    assert (node.mem_mib, node.distances) == (131072, (21, 10))
    assert node.pages == (Pages(2048, 8192, 8192), Pages(1048576, 32, 32))


@pytest.mark.parametrize(("host", "address", "mechanisms", "slots", "profile"), [
    ("a16-vfio", "0000:25:00.0", ["nvidia_vfio"], 16, Profile("A16-4Q", "713", 4096, 4096, (0, 4096, 8192, 12288))),
    ("a40-mdev", "0000:67:00.0", ["mdev"], 32, Profile("A40-48Q", "566", 49152, 49152, (0,))),
    ("t4-mdev", "0000:3b:00.0", ["mdev", "whole"], 16, Profile("T4-8Q", "233", 8192, 8192, (0, 8192))),
    ("s7150", "0000:06:00.0", ["vf"], 16, Profile("s7150-vf", None, None, 1, tuple(range(16)))),
    ("flex170", "0000:4d:00.0", ["vf", "whole"], 4, Profile("flex170-vf", None, None, 1, (0, 1, 2, 3))),
    ("arcpro-xe", "0000:03:00.0", ["vf", "whole"], 2, Profile("arcpro-b60-vf", None, 12288, 1, (0, 1))),
    ("igpu-gvtg", "0000:00:02.0", ["mdev", "whole"], 4, Profile("i915-GVTg_V5_4", "GVTg_V5_4", None, 2, (0, 2))),
])
def test_mechanisms(host: str, address: str, mechanisms: list[str], slots: int, profile: Profile) -> None:
    card = board(read(hosts.load(host)), address)
    assert [layout.mechanism for layout in card.layouts] == mechanisms
    assert len(card.layouts[0].slots) == slots
    assert profile in card.layouts[0].cells[0].profiles
    assert card.trouble == ()


def test_vfs_are_neither_boards_nor_is_their_pf_given_where_nobody_can_switch_them_off() -> None:
    host = read(hosts.load("a16-vfio"))
    assert [card.address for card in host.boards] == [f"0000:{bus}:00.0" for bus in (25, 26, 27, 28)]
    assert all(slot.name != card.address for card in host.boards for layout in card.layouts for slot in layout.slots)


def test_header_only_list_is_a_full_board() -> None:
    card = board(read(hosts.load("x48-full")), "0000:ca:00.0")
    assert card.trouble == ()
    assert [profile.name for profile in card.layouts[0].cells[0].profiles] == [
        "X48-2Q", "X48-8Q", "X48-24Q", "X48-48Q"]


def test_console_card_is_listed_and_not_given() -> None:
    slot, = board(read(hosts.load("rtx6000x4")), "0000:03:00.0").layouts[0].slots
    assert slot.trouble == "the console is on it (boot_vga); list its address under `devices` to give it all the same"
    named, = board(read(hosts.load("rtx6000x4"), "0000:03:00.0"), "0000:03:00.0").layouts[0].slots
    assert named.trouble is None


def test_group_with_another_device_in_use_names_it_and_no_bridge() -> None:
    host = read(hosts.load("group-mates"))
    assert board(host, "0000:3b:00.0").layouts[0].slots[0].trouble == (
        "IOMMU group 40 also holds 0000:3c:00.0 (SATA controller, driver ahci)")
    assert board(host, "0000:86:00.0").layouts[0].slots[0].trouble is None


def test_pci_domains() -> None:
    host = read(hosts.load("domains"))
    assert [card.address for card in host.boards] == ["0000:0a:00.0", "0001:d6:00.0", "10000:00:02.0"]
    assert [card.trouble for card in host.boards] == [
        (), (), ("its PCI domain has more than 16 bits, which no hypervisor takes",)]


@pytest.mark.parametrize(("host", "address", "node", "source"), [
    ("minus-one-port", "0000:41:00.0", 1, "parent 0000:40:01.1"),
    ("minus-one-port", "0000:81:00.0", None, "unknown"),
    ("minus-one", "0000:41:00.0", 0, "only node"),
    ("nonuma", "0000:84:00.0", None, "unknown"),
])
def test_numa_node_minus_one(host: str, address: str, node: int | None, source: str) -> None:
    card = board(read(hosts.load(host)), address)
    assert (card.numa_node, card.numa_source) == (node, source)


def test_local_cpus_tell_the_node_where_nothing_else_does() -> None:
    kernel = hosts.load("nonuma")
    kernel.tree.put(kernel.tree.resolve("/sys/bus/pci/devices/0000:84:00.0/local_cpulist")[0], File("8-15,24-31"))
    card = board(read(kernel), "0000:84:00.0")
    assert (card.numa_node, card.numa_source) == (1, "cpulist")


def test_one_broken_device_does_not_stop_the_inventory() -> None:
    host = read(hosts.load("mixed"))
    broken = [card for card in host.boards if card.trouble and "EIO" in card.trouble[0]]
    assert len(broken) == 1
    assert len([card for card in host.boards if not card.trouble]) >= 3


@pytest.mark.parametrize(("pattern", "matches"), [
    ("0000:3b:00.0", True), ("10de:1e30", True), ("10de:1e30:0300", True), ("10de:*:03", True), ("*:*:030000", True),
    ("0000:3b:00.1", False), ("10de:1e31", False), ("10de:1e30:0302", False), ("*:*:12", False),
])
def test_patterns(pattern: str, matches: bool) -> None:
    function = Function("0000:3b:00.0", "10de:1e30", 0x030000, "nvidia", 1)
    assert inventory.is_ours((pattern,), function) is matches


def test_only_what_is_listed_is_ours() -> None:
    host = read(hosts.load("rtx6000x4"), "0000:3b:00.0", "0000:d8:00.0")
    assert [card.address for card in host.boards] == ["0000:3b:00.0", "0000:d8:00.0"]


def test_without_boot_id_nothing_is_known() -> None:
    kernel = hosts.load("minus-one")
    kernel.tree.drop("/proc/sys/kernel/random/boot_id")
    with pytest.raises(HostError, match="boot_id: not there"):
        read(kernel)
