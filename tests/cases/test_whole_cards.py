"""Whole cards: with every function of the slot, instead of VFs, near each other."""
from __future__ import annotations

from pathlib import Path

from kvm_gpu import claims
from kvm_gpu.model import Want
from kvm_gpu.reconcile import reconcile
from tests.cases.starts import counts, refused, slots, start
from tests.fakekernel import hosts
from tests.sites import fake_site, run, stop

CARD = "0000:3b:00.0"
NUMVFS = f"/sys/bus/pci/devices/{CARD}/sriov_numvfs"
NAME = "8086:fff4"      # no table has this card


def test_c10_gpus_that_are_close(tmp_path: Path) -> None:
    site = fake_site(hosts.load("close5"), tmp_path)
    one, two = Want(mechanism="whole"), Want(mechanism="whole", cards=2)
    assert slots(start(site, "vm-1", one)) == ["0000:49:00.0"]
    second = start(site, "vm-2", two)
    assert (slots(second), second.warnings) == (["0000:29:00.0", "0000:2a:00.0"], ())
    assert refused(site, "vm-3", two, close="required") == {
        "0000:29:00.0": "fully used by vm-2", "0000:2a:00.0": "fully used by vm-2",
        "0000:49:00.0": "fully used by vm-1", "0000:5a:00.0": "free, on node0", "0000:a9:00.0": "free, on node1",
        "host": "the free ones are not close enough"}
    fourth = start(site, "vm-4", two)
    assert (slots(fourth), fourth.warnings) == (["0000:5a:00.0", "0000:a9:00.0"], ("across nodes",))


def test_c11_the_audio_function_goes_with_its_gpu(tmp_path: Path) -> None:
    site = fake_site(hosts.load("group-mates"), tmp_path)
    device, = start(site, "vm-1", Want(address="0000:86:00.0")).devices
    assert device.functions == ("0000:86:00.0", "0000:86:00.1")
    assert refused(site, "vm-2", Want(address="0000:86:00.1")) == {
        "0000:86:00.0": "part of the GPU held by vm-1", "host": "none free, held by vm-1"}


def test_c11_a_disk_controller_in_the_group(tmp_path: Path) -> None:
    kernel = hosts.load("group-mates")
    site = fake_site(kernel, tmp_path)
    assert refused(site, "vm-1", Want(address=CARD)) == {
        CARD: f"{CARD}: IOMMU group 40 also holds 0000:3c:00.0 (SATA controller, driver ahci)"}
    assert kernel.writes == []


def test_c17_whole_card_or_slices(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    whole = Want(mechanism="whole")
    start(site, "vm-7", Want(mechanism="vf", address="0000:3b:00.5"))
    run(site, kernel, "vm-7")
    assert refused(site, "vm-whole", whole) == {
        CARD: "VFs on, 1 used by vm-7", "host": "none free, held by vm-7"}
    assert counts(site, CARD) == {NAME + "-vf": (2, 1, 1, 1), NAME: (1, 0, 0, 0)}

    stop(site, kernel, "vm-7")
    kernel.writes.clear()
    assert slots(start(site, "vm-whole", whole, keep=True)) == [CARD]
    assert [write.path for write in kernel.writes] == [NUMVFS]      # VFs off first; then libvirt binds the PF
    run(site, kernel, "vm-whole")
    assert counts(site, CARD) == {NAME: (1, 1, 0, 0)}
    for want in (Want(mechanism="vf"), Want(profile=NAME + "-VF")):
        assert refused(site, "vm-8", want) == {
            CARD: "card held whole by vm-whole", "host": "none free, held by vm-whole"}

    kernel.reboot()
    reconcile(site)
    assert kernel.read(NUMVFS) == b"0\n"
    assert slots(start(site, "vm-whole", whole, keep=True)) == [CARD]


def test_c17_the_vfs_come_back_when_the_whole_card_is_free(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site, before = fake_site(kernel, tmp_path), kernel.snapshot()
    for _ in range(2):      # the second start takes over what the first one kept
        start(site, "vm-whole", Want(mechanism="whole"), keep=True)
        run(site, kernel, "vm-whole")
        stop(site, kernel, "vm-whole")
        assert kernel.read(NUMVFS) == b"0\n"
    assert claims.release(site, "vm-whole", force=True) == ("VM vm-whole: released",)
    assert kernel.snapshot() == before
