"""What a platform may prescribe: "one of these addresses" (Want.among), and the UUIDs of mdevs (Request.uuids)."""
from __future__ import annotations

from pathlib import Path

import pytest

from kvm_gpu import request
from kvm_gpu.claims import claim, release
from kvm_gpu.errors import RequestError
from kvm_gpu.model import Request, Vm, Want
from tests.cases.starts import refused, slots, start
from tests.fakekernel import hosts
from tests.sites import fake_site

VM = Vm("104")
UUIDS = ("00000000-0000-0000-0000-000000000104", "00000001-0000-0000-0000-000000000104")


@pytest.mark.parametrize(("host", "want", "chosen"), [
    ("flex170", Want(mechanism="vf", among=("0000:cd:00.2", "0000:cd:00.3")), "0000:cd:00.2"),
    ("flex170", Want(among=("0000:cd:00.3",)), "0000:cd:00.3"),
    ("flex170", Want(mechanism="vf", among=("CD:00.4",)), "0000:cd:00.4"),
    ("rtx6000x4", Want(among=("0000:d8:00.1", "0000:af:00.1")), "0000:af:00.0"),
    ("a16-vfio", Want(profile="A16-4Q", among=("0000:28:00.7", "0000:27:00.6")), "0000:27:00.6"),
    ("t4-mdev", Want(profile="T4-4Q", among=("0000:3b:00.0",)), "0000:3b:00.0#0"),
])
def test_a_device_is_one_of_those_listed(tmp_path: Path, host: str, want: Want, chosen: str) -> None:
    assert slots(start(fake_site(hosts.load(host), tmp_path), "104", want)) == [chosen]


def test_equal_lists_are_of_one_kind_and_on_boards_of_their_own(tmp_path: Path) -> None:
    among = tuple(f"0000:{bus}:00.{function}" for bus in ("25", "26") for function in (4, 5))
    site = fake_site(hosts.load("a16-vfio"), tmp_path)
    assert slots(start(site, "104", Want("A16-4Q", among=among), Want("A16-4Q", among=among))) == [
        "0000:25:00.4", "0000:26:00.4"]


def test_a_refusal_speaks_of_the_boards_listed_alone(tmp_path: Path) -> None:
    site = fake_site(hosts.load("a16-vfio"), tmp_path)
    start(site, "103", Want("A16-16Q", among=("0000:27:00.4",)))
    assert refused(site, "104", Want("A16-4Q", among=("0000:27:00.5",))) == {
        "0000:27:00.0": "fully used by 103",
        "host": "none free, held by 103"}


def test_mdevs_get_the_uuids_that_the_platform_gives(tmp_path: Path) -> None:
    kernel = hosts.load("a40-mdev")
    site = fake_site(kernel, tmp_path)
    asked = Request(VM, (Want("A40-4Q", cards=2),), uuids=UUIDS)
    decision = claim(site, asked)
    assert decision.placement is not None
    assert [device.uuid for device in decision.placement.devices] == list(UUIDS)
    assert kernel.list("/sys/bus/mdev/devices") == UUIDS
    release(site, "104")
    assert kernel.list("/sys/bus/mdev/devices") == ()


def test_a_uuid_is_for_an_mdev_alone(tmp_path: Path) -> None:
    site = fake_site(hosts.load("flex170"), tmp_path)
    decision = claim(site, Request(VM, (Want(mechanism="vf"),), uuids=UUIDS[:1]))
    assert decision.placement is not None
    assert decision.placement.devices[0].uuid is None


@pytest.mark.parametrize(("wrong", "message"), [
    (Request(VM, (Want("x", among=("0000:25:00.4", "25")),)),
     "VM '104': wants[0].among: '25' is not like 0000:41:00.0"),
    (Request(VM, (Want("x"),), uuids=UUIDS), "VM '104': uuids: expected one, or none, for each device"),
    (Request(VM, (Want("x"),), uuids=("../../" + UUIDS[0][6:],)),
     "VM '104': uuids: '../../00-0000-0000-0000-000000000104' is no UUID in lower case"),
    (Request(VM, (Want("x"),), uuids=("A" + UUIDS[0][1:],)),
     "VM '104': uuids: 'A0000000-0000-0000-0000-000000000104' is no UUID in lower case"),
])
def test_what_is_wrong_is_told(wrong: Request, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        request.check(wrong)
    assert caught.value.message == message
