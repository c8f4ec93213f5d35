"""Our writes against the kernel's own rules: VFs, drivers, and what it says when it refuses."""
from __future__ import annotations

import pytest

from kvm_gpu.apply import apply, undo
from kvm_gpu.errors import HostError
from kvm_gpu.model import Attribute, Driver
from kvm_gpu.sysfs import Sysfs
from tests.lab.inside import kernel

SYSFS = Sysfs()


def numvfs(card: str, value: str, before: str, through: str | None = "0") -> Attribute:
    return Attribute(f"/sys/bus/pci/devices/{card}/sriov_numvfs", value, before, through)


@pytest.mark.parametrize(("node", "card"), kernel.PLAIN.items())
def test_vfs_come_change_and_go(node: int, card: str) -> None:
    actions = numvfs(card, "0", "2"), numvfs(card, "3", "0")
    apply(SYSFS, actions)
    vfs = kernel.vfs(card)
    assert [kernel.group_members(vf) for vf in vfs] == [[vf] for vf in vfs]
    assert [kernel.read(kernel.DEVICES / vf / "numa_node") for vf in vfs] == [str(node)] * 3
    apply(SYSFS, (numvfs(card, "4", "3"),))
    assert len(kernel.vfs(card)) == 4
    undo(SYSFS, (*actions, numvfs(card, "4", "3")))
    assert len(kernel.vfs(card)) == 2


@pytest.mark.parametrize(("action", "said"), [
    (numvfs(kernel.PLAIN[0], "3", "2", through=None), "writing '3': EBUSY"),
    (numvfs(kernel.PLAIN[0], "5", "2"), "writing '5': ERANGE"),
    (numvfs(kernel.PLAIN[0], "many", "2"), "writing 'many': EINVAL"),
], ids=["from one number to another", "more than it has", "no number"])
def test_the_kernel_refuses_a_number(action: Attribute, said: str) -> None:
    with pytest.raises(HostError) as caught:
        apply(SYSFS, (action,))
    assert caught.value.message == f"{action.path}: {said}"
    assert len(kernel.vfs(kernel.PLAIN[0])) == 2


def test_a_card_without_a_driver_has_no_vfs() -> None:
    card = kernel.PLAIN[0]
    actions = numvfs(card, "0", "2"), Driver(card, None, before="nvme")
    apply(SYSFS, actions)
    with pytest.raises(HostError, match="writing '2': ENOENT") as caught:
        apply(SYSFS, (numvfs(card, "2", "0"),))
    assert caught.value.hint == "no driver that offers this is bound to the device"
    undo(SYSFS, actions)
    assert (kernel.driver(card), len(kernel.vfs(card))) == ("nvme", 2)


def test_drivers_change_and_come_back() -> None:
    plain, mdev, vendor = (kernel.vf(card) for card in (kernel.PLAIN[1], kernel.MDEV_CARD, kernel.VFIO_CARD))
    actions = (Driver(plain, "vfio-pci", before=None), Driver(mdev, "vfio-pci", before="nvidia"),
               Driver(vendor, None, before="nvidia"), Driver(kernel.DISPLAY[1], "vfio-pci", before="snd_hda_intel"))
    functions = [action.function for action in actions]
    apply(SYSFS, actions)
    assert [kernel.driver(function) for function in functions] == ["vfio-pci", "vfio-pci", None, "vfio-pci"]
    undo(SYSFS, actions)
    assert [kernel.driver(function) for function in functions] == [None, "nvidia", "nvidia", "snd_hda_intel"]


def test_a_driver_that_does_not_exist() -> None:
    card = kernel.PLAIN[1]
    with pytest.raises(HostError) as caught:
        apply(SYSFS, (Driver(card, "no-such-driver", before="nvme"),))
    assert caught.value.message == f"/sys/bus/pci/devices/{card}: bound to None, wanted was no-such-driver"
    assert kernel.driver(card) == "nvme"
