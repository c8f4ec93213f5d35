"""Which mappings boards make: what cannot be in one is left out, and said."""
from __future__ import annotations

import pytest

from kvm_gpu.model import Board, Cell, Layout, Profile, Slot
from pve_gpu_hook.cluster import Mapping, Pci
from pve_gpu_hook.sizes import Device, Left, Size, mapping_id, sizes

PLAIN, MEDIATED = Pci("1002:7410", "1002:0001", 7, False), Pci("10de:25b6", None, 8, True)
VF, OTHER = "0000:41:00.4", "0000:41:00.5"


def board(mechanism, *profiles, slots=(VF,), trouble=()):
    cell = Cell("board", False, tuple(Profile(name, number, None, 1, (0,)) for name, number in profiles))
    made = tuple(Slot(name, (name,), "/sys/bus/pci/devices/" + name, ("board",)) for name in slots)
    return Board("0000:41:00.0", None, "m", None, 0, "device", (), (), (Layout(mechanism, mechanism, made, (cell,)),),
                 trouble)


def size(name, number, mediated, mdev_type, *devices):
    return Size(Profile(name, number, None, 1, (0,)), mediated, mdev_type, devices)


def test_the_types_of_a_vf():
    found = sizes([board("nvidia_vfio", ("A-1Q", "5"), ("A-2Q", "6"))], {VF: MEDIATED}, {"5": "nvidia-5"})
    device = Device(VF, MEDIATED)
    assert found == ({"gpu-a-1q": size("A-1Q", "5", True, "nvidia-5", device),
                      "gpu-a-2q": size("A-2Q", "6", True, None, device)}, ())


@pytest.mark.parametrize(("mechanism", "hardware", "why"), [
    ("vf", {}, "is no PCI device that Proxmox VE lists"),
    ("vf", {VF: PLAIN._replace(iommugroup=None)}, "is in no IOMMU group (is the IOMMU switched on?)"),
    ("nvidia_vfio", {VF: PLAIN}, "its driver offers no mediated device"),
    ("whole", {VF: MEDIATED}, "its driver offers mediated devices: whole, it would break the mapping while in use"),
])
def test_a_device_that_would_break_the_mapping(mechanism, hardware, why):
    assert sizes([board(mechanism, ("x", "1"))], hardware, {}) == ({}, (Left(VF, why),))


def test_a_board_in_trouble():
    assert sizes([board("vf", ("x", None), trouble=("a", "b"))], {VF: PLAIN}, {}) == (
        {}, (Left("0000:41:00.0", "a; b"),))


def test_several_mdevs_of_one_parent_are_one_device():
    parent = "0000:3b:00.0"
    slots = tuple(Slot(f"{parent}#{at}", (), "/sys/bus/pci/devices/" + parent, ("board",)) for at in range(3))
    cut = board("mdev", ("T4-4Q", "232"))
    cut = cut._replace(layouts=(cut.layouts[0]._replace(slots=slots),))
    assert sizes([cut], {parent: MEDIATED}, {"232": "nvidia-232"})[0] == {
        "gpu-t4-4q": size("T4-4Q", "232", True, "nvidia-232", Device(parent, MEDIATED))}


def test_two_profiles_whose_names_become_one():
    found, left = sizes([board("vf", ("a.b", None)), board("vf", ("a:b", None), slots=(OTHER,))],
                        {VF: PLAIN, OTHER: PLAIN}, {})
    assert found == {"gpu-a-b": size("a.b", None, False, None, Device(VF, PLAIN))}
    assert left == (Left(OTHER, "as a:b it would be in the mapping of a.b"),)


@pytest.mark.parametrize(("profile", "id"), [
    ("A16-4Q", "gpu-a16-4q"), ("10de:ffff", "gpu-10de-ffff"), ("i915-GVTg_V5_4", "gpu-i915-gvtg_v5_4")])
def test_ids(profile, id):
    assert mapping_id(profile) == id


def test_entries():
    old = Mapping("gpu-a", "mine", True, ("id=1:2,node=pve2,path=x", "id=1:2,node=pve1,path=y"))
    assert size("a", None, False, None, Device(VF, PLAIN), Device("0000:42:00", MEDIATED)).merged("pve1", old) == (
        Mapping("gpu-a", "a. Kept by pve-gpu.", False, (
            "id=1:2,node=pve2,path=x", f"id=1002:7410,iommugroup=7,node=pve1,path={VF},subsystem-id=1002:0001",
            "id=10de:25b6,iommugroup=8,node=pve1,path=0000:42:00")))
