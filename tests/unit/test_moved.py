"""Kept slots after a reboot: where they are now."""
from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvm_gpu import claims, moved
from kvm_gpu.errors import NoCapacity
from kvm_gpu.model import Want
from kvm_gpu.reconcile import reconcile
from tests.cases.starts import slots, start
from tests.fakekernel import hosts
from tests.fakekernel.kernel import Kernel
from tests.sites import fake_site


@pytest.mark.parametrize(("name", "old", "new", "there"), [
    ("0000:41:00.4", "0000:41:00.0", "0000:42:00.0", "0000:42:00.4"),
    ("0000:41:00.0", "0000:41:00.0", "0000:41:00.0", "0000:41:00.0"),
    ("0000:3b:02.7", "0000:3b:00.0", "0000:af:00.0", "0000:af:02.7"),
    ("0000:41:00.1", "0000:40:1f.7", "0000:50:1f.7", "0000:51:00.1"),
    ("0000:3b:00.0#2", "0000:3b:00.0", "0000:3c:00.0", "0000:3c:00.0#2"),
    ("0000:3b:00.4", "0000:3b:00.0", "0001:3b:00.0", "0001:3b:00.4"),
    ("mtty#1", "mtty", "mtty", "mtty#1"),
])
def test_functions_keep_their_distance_from_the_pf(name: str, old: str, new: str, there: str) -> None:
    assert moved._shift(name, old, new) == there


def rebooted(kernel: Kernel, *addresses: tuple[str, str]) -> Kernel:
    """The machine after a reboot, its cards at other addresses."""
    places = dict(addresses)
    cards = tuple(dataclasses.replace(card, at=places.get(card.at, card.at)) for card in kernel.machine.cards)
    after = Kernel(dataclasses.replace(kernel.machine, name="after", cards=cards))
    after.writes.clear()
    return after


def test_two_cards_change_places(tmp_path: Path) -> None:
    before = hosts.load("moved-before")
    site = fake_site(before, tmp_path)
    for vm, address in (("vm-1", "0000:41:00.0"), ("vm-2", "0000:81:00.0")):
        start(site, vm, Want(address=address), keep=True)
        claims.release(site, vm)
    site = fake_site(rebooted(before, ("0000:41:00.0", "0000:81:00.0"), ("0000:81:00.0", "0000:41:00.0")), tmp_path)
    assert sorted(reconcile(site)) == ["VM vm-1: keeps 0000:81:00.0 after the reboot",
                                       "VM vm-2: keeps 0000:41:00.0 after the reboot"]
    assert {hold.vm: hold.slot for hold in site.ledger.taken().holds} == {
        "vm-1": "0000:81:00.0", "vm-2": "0000:41:00.0"}
    assert reconcile(site) == ()
    assert [held.note for held in site.ledger.claims()] == [moved.ABSENT, moved.ABSENT]


def test_a_vf_goes_with_its_card(tmp_path: Path) -> None:
    before = hosts.load("x48")
    site = fake_site(before, tmp_path)
    start(site, "vm-1", Want(profile="X48-8Q", address="0000:ca:00.6"), keep=True)
    claims.release(site, "vm-1")
    after = rebooted(before, ("0000:ca:00.0", "0000:cc:00.0"))
    site = fake_site(after, tmp_path)
    assert slots(start(site, "vm-1", Want(profile="X48-8Q"), keep=True)) == ["0000:cc:00.6"]
    assert after.read("/sys/bus/pci/devices/0000:cc:00.6/nvidia/current_vgpu_type") == b"9108\n"


def test_what_is_nowhere_stays_recorded(tmp_path: Path) -> None:
    before = hosts.load("moved-before")
    site = fake_site(before, tmp_path)
    start(site, "vm-1", Want(address="0000:41:00.0"), keep=True)
    claims.release(site, "vm-1")
    gone = Kernel(dataclasses.replace(before.machine, name="after", cards=before.machine.cards[1:]))
    site, ledger = fake_site(gone, tmp_path), site.ledger.claims()
    said = ("VM vm-1: its card is gone: 0000:41:00.0: kept l40s there, on a board with serial or label "
            f"{site.ledger.identities(ledger[0].id)['0000:41:00.0']}: not found on this host any more")
    assert reconcile(site) == (said,)
    with pytest.raises(NoCapacity, match="VM vm-1: its card is gone"):
        start(site, "vm-1", Want(model="l40s"), keep=True)
    assert site.ledger.claims() == ledger


@pytest.mark.parametrize(("there", "found"), [("0000:41:00.0", "0000:41:00.0"), ("0000:42:00.0", None)])
def test_a_serial_that_several_boards_have_tells_nothing(there: str, found: str | None, tmp_path: Path) -> None:
    before = hosts.load("moved-before")
    cards = tuple(dataclasses.replace(card, serial="00-00-00-00-00-00-00-01") for card in before.machine.cards)
    before = Kernel(dataclasses.replace(before.machine, cards=cards))
    site = fake_site(before, tmp_path)
    start(site, "vm-1", Want(address="0000:41:00.0"), keep=True)
    claims.release(site, "vm-1")
    site = fake_site(rebooted(before, ("0000:41:00.0", there)), tmp_path)
    reconcile(site)
    held, = site.ledger.claims()
    assert [hold.slot for hold in site.ledger.taken().holds] == ["0000:41:00.0"]
    assert (held.note == moved.ABSENT) == (found is not None)
