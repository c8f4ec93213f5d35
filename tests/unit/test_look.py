"""Looking at slots before they are given."""
from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from kvm_gpu import look
from kvm_gpu.look import Search, look_at
from kvm_gpu.model import Attribute, Device, Hold, Mdev, Placement, Policy, Request, Taken, Vm, Want
from kvm_gpu.plan import place
from kvm_gpu.site import Site, View
from tests.fakekernel import hosts
from tests.fakekernel.kernel import Kernel
from tests.sites import fake_site

PCI = "/sys/bus/pci/devices/"
CA4 = f"{PCI}0000:ca:00.4/nvidia/current_vgpu_type"


@pytest.fixture
def kernel() -> Kernel:
    return hosts.load("x48")


@pytest.fixture
def site(kernel: Kernel, tmp_path: Path) -> Site:
    return fake_site(kernel, tmp_path)


def chosen(view: View, want: Want) -> Placement:
    placed = place(Request(Vm("vm-1"), (want,)), view.host, Taken(), Policy())
    assert isinstance(placed, Placement)
    return placed


def test_a_slot_that_does(site: Site) -> None:
    view = site.fresh_view()
    search, placed = Search(view), chosen(view, Want(profile="X48-8Q", address="0000:ca:00.4"))
    assert look_at(site.sysfs, placed, search, Taken())
    assert search.knows(placed)
    assert search.actions(placed) == (Attribute(CA4, "9108", "0", "0"),)
    assert search.finish(placed) == placed
    device, = placed.devices
    other = placed._replace(devices=(device._replace(hold=device.hold._replace(profile="X48-2Q")),))
    assert not search.knows(other)


def test_a_slot_that_somebody_set_meanwhile(kernel: Kernel, site: Site) -> None:
    view = site.fresh_view()
    search, placed = Search(view), chosen(view, Want(profile="X48-8Q", address="0000:ca:00.4"))
    kernel.write(CA4, "9108")
    assert not look_at(site.sysfs, placed, search, Taken())
    assert not search.knows(placed)
    layout = next(board for board in search.host().boards if board.address == "0000:ca:00.0").layouts[0]
    assert [slot.trouble for slot in layout.slots[:2]] == ["vGPU type 9108 is set on it, not by us", None]


def test_a_board_that_would_not_make_the_type(kernel: Kernel, site: Site) -> None:
    view = site.fresh_view()
    search, placed = Search(view), chosen(view, Want(profile="X48-8Q", address="0000:ca:00.5"))
    kernel.write(CA4, "9148")
    assert not look_at(site.sysfs, placed, search, Taken())
    assert {board.address: board.trouble for board in search.host().boards} == {
        "0000:17:00.0": (), "0000:ca:00.0": ("the driver would not create X48-8Q now",)}


def test_each_look_goes_wider_beside_the_chosen_slot(site: Site) -> None:
    """The next ones are known when others are faster."""
    view = site.fresh_view()
    search, placed = Search(view), chosen(view, Want(profile="X48-8Q"))
    device, = placed.devices
    slots = [slot.name for slot in look.parts(view.host, device)[1].slots]
    for known in (1, 2, 4, 8):
        search.renew(view)
        assert look_at(site.sysfs, placed, search, Taken((Hold(*device.hold[:7], "vm-2", "active"),)))
        assert [knows(search, device, name) for name in slots] == [True] * known + [False] * (24 - known)


def knows(search: Search, device: Device, slot: str) -> bool:
    return search.knows(Placement((device._replace(hold=device.hold._replace(slot=slot)),), ()))


def test_what_an_old_view_found_unfit_a_fresh_one_may_find_fit(site: Site) -> None:
    fresh = site.fresh_view()
    search = Search(fresh._replace(fresh=False))
    search.veto("0000:ca:00.0", None, "old news")
    search.renew(fresh)
    assert search.host() == fresh.host
    search.veto("0000:ca:00.0", None, "seen now")
    search.renew(fresh)
    assert search.host().boards[1].trouble == ("seen now",)


def test_a_kept_slot_is_taken_as_it_is(kernel: Kernel, site: Site) -> None:
    """The type is set already; what was done for it is still to be undone some day."""
    view = site.fresh_view()
    placed = chosen(view, Want(profile="X48-8Q", address="0000:ca:00.4"))
    done = (Attribute(CA4, "9108", "0", "0"), Attribute("other", "1", "0"))
    search = Search(view, None, placed.devices, done)
    kernel.write(CA4, "9108")
    assert look_at(site.sysfs, placed, search, Taken())
    assert search.actions(placed) == (done[1], done[0])
    assert not search.gives_up(placed)
    assert search.gives_up(chosen(view, Want(profile="X48-2Q", address="0000:ca:00.4")))
    assert search.gives_up(chosen(view, Want(profile="X48-8Q", address="0000:ca:00.5")))


def test_a_kept_mdev_has_its_uuid_again(tmp_path: Path) -> None:
    site = fake_site(hosts.load("t4-mdev"), tmp_path)
    view = site.fresh_view()
    device, = chosen(view, Want(profile="T4-4Q")).devices
    kept = device._replace(uuid="aaaaaaaa-0000-4000-8000-00000000000a")
    search, placed = Search(view, None, (kept,)), Placement((device,), ())
    assert look_at(site.sysfs, placed, search, Taken())
    assert search.finish(placed).devices == (kept,)
    assert search.actions(placed) == (
        Mdev(kept.uuid or "", f"{PCI}{device.functions[0]}/mdev_supported_types/nvidia-232"),)


def test_a_new_uuid_is_one_of_version_4() -> None:
    made = uuid.UUID(look.new_uuid())
    assert (made.version, made.variant, str(made) == look.new_uuid()) == (4, uuid.RFC_4122, False)
