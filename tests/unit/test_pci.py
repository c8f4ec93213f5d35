"""What sysfs says of PCI functions."""
from __future__ import annotations

from errno import EIO

import pytest

from kvm_gpu import pci
from kvm_gpu.errors import HostError
from kvm_gpu.model import Function
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.tree import File, refuse

CARD = "0000:86:00.0"


def replaced(kernel: Kernel, path: str, content: object) -> FakeSysfs:
    """The machine where a file reads otherwise."""
    kernel.tree.put(kernel.tree.resolve(path)[0], File(content))    # type: ignore[arg-type]
    return FakeSysfs(kernel)


def test_a_function() -> None:
    sysfs = FakeSysfs(hosts.load("group-mates"))
    assert pci.read_function(sysfs, CARD) == Function(CARD, "10de:1e30", 0x030000, "nvidia", 31, False)
    assert pci.subsystem(sysfs, CARD) == "10de:12ba"
    assert pci.parents(sysfs, CARD) == ("pci0000:85", "0000:85:00.0")
    with pytest.raises(HostError, match="no vendor, device or class"):
        pci.read_function(sysfs, "0000:99:00.0")
    with pytest.raises(HostError, match="no such device"):
        pci.parents(sysfs, "0000:99:00.0")


def test_virtual_functions_are_in_the_order_of_their_numbers() -> None:
    sysfs = FakeSysfs(hosts.load("a40-mdev"))
    vfs = pci.virtual_functions(sysfs, "0000:67:00.0")
    assert len(vfs) == 32
    assert vfs[:3] + vfs[-1:] == ("0000:67:00.4", "0000:67:00.5", "0000:67:00.6", "0000:67:04.3")
    assert (pci.is_vf(sysfs, vfs[0]), pci.is_vf(sysfs, "0000:67:00.0")) == (True, False)
    assert pci.virtual_functions(sysfs, vfs[0]) == ()


@pytest.mark.parametrize(("pci_class", "gpu"), [
    (0x030000, True), (0x030200, True), (0x038000, True), (0x120000, True), (0x040300, False), (0x060400, False)])
def test_what_counts_as_a_gpu(pci_class: int, gpu: bool) -> None:
    assert pci.is_gpu(pci_class) is gpu


def test_bars_that_a_guest_maps() -> None:
    """64-bit prefetchable ones: 256 MiB and 32 MiB of an RTX 6000, not the 16 MiB below 4 GiB."""
    kernel = hosts.load("group-mates")
    assert pci.bar_mib(FakeSysfs(kernel), CARD) == 288
    assert pci.bar_mib(FakeSysfs(kernel), "0000:99:00.0") is None


def test_the_serial_is_found_behind_another_capability() -> None:
    sysfs = FakeSysfs(hosts.load("rtx6000x4"))
    assert pci.serial(sysfs, "0000:3b:00.0") == "00-00-00-00-00-00-3b-01"
    assert pci.serial(sysfs, "0000:03:00.0") is None


@pytest.mark.parametrize("config", [
    b"", b"\0" * 64, b"\0" * 4096, b"\0" * 256 + (0x00010001 | 0x100 << 20).to_bytes(4, "little") + b"\0" * 60,
], ids=["none", "without extended", "no list", "a list in a circle"])
def test_a_configuration_space_without_a_serial(config: bytes) -> None:
    sysfs = FakeSysfs(hosts.load("group-mates"))
    sysfs.binary = lambda path: config  # type: ignore[method-assign]
    assert pci.serial(sysfs, CARD) is None


def test_slot_labels() -> None:
    assert pci.slot_labels(FakeSysfs(hosts.load("rtx6000x4"))) == {
        "0000:3b:00": "2", "0000:5e:00": "4", "0000:af:00": "6", "0000:d8:00": "8"}


@pytest.mark.parametrize(("addresses", "trouble"), [
    ((CARD, "0000:86:00.1"), None),
    ((CARD,), "IOMMU group 31 also holds 0000:86:00.1 (audio device, driver snd_hda_intel)"),
    (("0000:86:00.1",), "IOMMU group 31 also holds 0000:86:00.0 (another GPU)"),
    (("0000:3b:00.0", "0000:3b:00.1"), "IOMMU group 40 also holds 0000:3c:00.0 (SATA controller, driver ahci)"),
])
def test_what_a_vm_cannot_get_alone(addresses: tuple[str, ...], trouble: str | None) -> None:
    assert pci.group_trouble(FakeSysfs(hosts.load("group-mates")), addresses) == trouble


def test_a_mate_without_a_host_driver_is_left_alone() -> None:
    kernel = hosts.load("group-mates")
    kernel.write("/sys/bus/pci/drivers/snd_hda_intel/unbind", "0000:86:00.1")
    assert pci.group_trouble(FakeSysfs(kernel), (CARD,)) is None


def test_without_an_iommu_nothing_can_be_given() -> None:
    kernel = hosts.load("group-mates")
    kernel.tree.drop(f"{kernel.pci.functions[CARD].folder}/iommu_group")
    assert pci.group_trouble(FakeSysfs(kernel), (CARD,)) == (
        f"{CARD} is in no IOMMU group (is the IOMMU switched on?)")


def test_what_cannot_be_read_is_no_absence() -> None:
    def broken() -> str:
        raise refuse(EIO, "vendor")

    with pytest.raises(HostError, match="vendor: EIO"):
        pci.read_function(replaced(hosts.load("group-mates"), f"/sys/bus/pci/devices/{CARD}/vendor", broken), CARD)
