"""After a reboot, a shutdown from inside, and a change of cards: what is held stays held, by whom it was."""
from __future__ import annotations

from pathlib import Path

import pytest

from kvm_gpu import claims
from kvm_gpu.errors import NoCapacity, RequestError
from kvm_gpu.model import Request, Vm, Want
from kvm_gpu.reconcile import reconcile
from kvm_gpu.site import Site
from tests.cases.starts import explain, slots
from tests.fakekernel import hosts
from tests.sites import fake_site, run, stop

CA5 = "/sys/bus/pci/devices/0000:ca:00.5/nvidia/current_vgpu_type"


def start(site: Site, vm: str, want: Want, keep: bool = False) -> list[tuple[str, str | None]]:
    """(slot, uuid) of what the VM gets."""
    made = claims.claim(site, Request(Vm(vm), (want,), keep=keep))
    assert made.placement is not None
    return [(device.hold.slot, device.uuid) for device in made.placement.devices]


def counts(site: Site, board: str, profile: str) -> tuple[int, int, int, int]:
    row, = (row for row in claims.capacity(site) if (row.board, row.profile) == (board, profile))
    return row.total, row.taken, row.free, row.sellable


def test_c01_mdevs_gone_after_a_reboot(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site = fake_site(kernel, tmp_path)
    want, elsewhere = Want(profile="T4-4Q", address="0000:3b:00.0"), "0000:3b:00.0"
    first, second = start(site, "vm-101", want, keep=True), start(site, "vm-102", want, keep=True)
    for vm in ("vm-101", "vm-102"):
        run(site, kernel, vm)

    kernel.reboot()
    reconcile(site)
    assert kernel.list("/sys/bus/mdev/devices") == ()
    absent = "kept", "recorded, absent since the reboot"
    assert [(held.vm, held.state, held.note) for held in site.ledger.claims()] == [
        ("vm-101", *absent), ("vm-102", *absent)]
    assert counts(site, elsewhere, "T4-4Q") == (4, 2, 2, 2)

    third = start(site, "vm-103", want)
    assert third[0][1] not in (first[0][1], second[0][1])
    assert start(site, "vm-101", want, keep=True) == first
    assert kernel.list("/sys/bus/mdev/devices") == tuple(sorted(uuid for _, uuid in (*first, *third) if uuid))
    assert counts(site, elsewhere, "T4-4Q") == (4, 3, 1, 1)


def test_a_claim_that_keeps_nothing_ends_with_the_reboot(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", Want(profile="T4-4Q"))
    run(site, kernel, "vm-1")
    kernel.reboot()
    assert reconcile(site) == ("VM vm-1: released",)
    assert site.ledger.claims() == ()


def test_c14_the_guest_turned_itself_off(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    want = Want(profile="X48-2Q", address="0000:ca:00.5")
    start(site, "vm-101", want)
    run(site, kernel, "vm-101")
    before = len(kernel.writes)
    stop(site, kernel, "vm-101")
    assert [(write.path, write.value.strip()) for write in kernel.writes[before:]] == [(CA5, "0")]
    assert site.ledger.claims() == ()
    assert start(site, "vm-101", want) == [("0000:ca:00.5", None)]
    assert kernel.read(CA5) == b"9102\n"


def test_c14_with_keep_nothing_is_written(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-101", Want(profile="X48-2Q", address="0000:ca:00.5"), keep=True)
    run(site, kernel, "vm-101")
    before = len(kernel.writes)
    stop(site, kernel, "vm-101")
    held, = site.ledger.claims()
    assert (held.state, site.ledger.events(1)[0].detail) == ("kept", "held by a stopped VM")
    assert start(site, "vm-101", Want(profile="X48-2Q"), keep=True) == [("0000:ca:00.5", None)]
    assert kernel.writes[before:] == []


def test_a_kept_slot_that_does_not_serve_the_new_wish_is_given_back(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-101", Want(profile="X48-2Q", address="0000:ca:00.5"), keep=True)
    run(site, kernel, "vm-101")
    stop(site, kernel, "vm-101")
    start(site, "vm-101", Want(profile="X48-24Q"), keep=True)
    assert kernel.read(CA5) == b"0\n"
    assert len(site.ledger.claims()) == 1


def test_a_kept_slot_goes_to_nobody_else_and_ends_by_force(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    for vm in ("vm-1", "vm-2"):
        start(site, vm, Want(mechanism="vf"), keep=True)
        run(site, kernel, vm)
    stop(site, kernel, "vm-1")
    with pytest.raises(NoCapacity):
        start(site, "vm-3", Want(mechanism="vf"))
    assert claims.release(site, "vm-1") == (
        "VM vm-1: keeps its device while it is stopped; `release --force` gives it up",)
    assert claims.release(site, "vm-1", force=True) == ("VM vm-1: released",)
    start(site, "vm-3", Want(mechanism="vf"))


def test_what_a_stopped_vm_keeps_is_kept_in_an_explanation_too(tmp_path: Path) -> None:
    """No hook ran, and no reconcile yet."""
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    for vm in ("vm-1", "vm-2"):
        start(site, vm, Want(mechanism="vf"), keep=True)
        run(site, kernel, vm)
    for vm in ("vm-1", "vm-2"):
        kernel.vm_stop(vm)
    before = kernel.snapshot(), site.ledger.claims()
    explained = explain(site, "vm-3", Want(mechanism="vf"))
    own = slots(explain(site, "vm-2", Want(mechanism="vf"), keep=True))
    row, = (row for row in claims.capacity(site) if row.mechanism == "vf")
    assert (kernel.snapshot(), site.ledger.claims()) == before
    with pytest.raises(NoCapacity) as refused:
        start(site, "vm-3", Want(mechanism="vf"))
    assert explained == refused.value.refusal
    assert (own, (row.taken, row.free)) == (["0000:3b:00.5"], (2, 0))
    assert start(site, "vm-2", Want(mechanism="vf"), keep=True) == [("0000:3b:00.5", None)]


@pytest.mark.parametrize("after", ["moved-after", "moved-after-labels"])
def test_c13_a_new_card_shifts_the_bus_numbers(tmp_path: Path, after: str) -> None:
    before = hosts.load("moved-before" if after == "moved-after" else "moved-before-labels")
    site = fake_site(before, tmp_path)
    assert start(site, "vm-101", Want(address="0000:41:00.0"), keep=True) == [("0000:41:00.0", None)]
    run(site, before, "vm-101")
    stop(site, before, "vm-101")

    site = fake_site(hosts.load(after), tmp_path)
    assert reconcile(site) == ("VM vm-101: keeps 0000:42:00.0 after the reboot",)
    assert "moved 0000:41:00.0 -> 0000:42:00.0" in [f"{one.event} {one.detail}" for one in site.ledger.events(9)]
    assert start(site, "vm-101", Want(model="l40s"), keep=True) == [("0000:42:00.0", None)]
    with pytest.raises(RequestError) as refused:
        start(site, "vm-102", Want(address="0000:41:00.0", model="l40s"))
    assert "0000:41:00.0 (/sys/bus/pci/devices/0000:41:00.0) is NVMe disk" in refused.value.message
    assert refused.value.message.endswith("l40s is at 0000:42:00.0 and 0000:82:00.0")


def test_c13_without_serial_and_label_nothing_is_guessed(tmp_path: Path) -> None:
    before = hosts.load("moved-before-nothing")
    site = fake_site(before, tmp_path)
    start(site, "vm-101", Want(address="0000:41:00.0"), keep=True)
    run(site, before, "vm-101")
    stop(site, before, "vm-101")
    site = fake_site(hosts.load("moved-after-nothing"), tmp_path)
    said, = reconcile(site)
    assert "neither serial nor slot label" in said
    with pytest.raises(NoCapacity) as refused:
        start(site, "vm-101", Want(model="l40s"), keep=True)
    assert refused.value.refusal.hint == "`kvm-gpu release --vm vm-101 --force` gives up what it kept"
    assert explain(site, "vm-101", Want(model="l40s"), keep=True) == refused.value.refusal
    assert claims.release(site, "vm-101", force=True) == ("VM vm-101: released",)
