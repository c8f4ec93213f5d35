"""What is free, who has it, and what an explanation says of it."""
from __future__ import annotations

from pathlib import Path

from kvm_gpu import claims
from kvm_gpu.model import Want
from kvm_gpu.reconcile import reconcile
from tests.cases.starts import counts, explain, reasons, refused, slots, start
from tests.fakekernel import hosts
from tests.sites import fake_site, run, stop

X48 = "0000:ca:00.0"
MDEV = "aaaaaaaa-0000-4000-8000-00000000000a"
T4 = "/sys/bus/pci/devices/0000:3b:00.0"


def test_c02_a_list_with_only_a_header(tmp_path: Path) -> None:
    kernel = hosts.load("x48-full")
    kernel.write(f"/sys/bus/pci/devices/{X48[:-1]}4/nvidia/current_vgpu_type", "0")
    site = fake_site(kernel, tmp_path)
    assert slots(start(site, "vm-101", Want(profile="X48-48Q"))) == ["0000:ca:00.4"]
    run(site, kernel, "vm-101")

    assert kernel.read("/sys/bus/pci/devices/0000:ca:00.5/nvidia/creatable_vgpu_types").count(b"\n") == 1
    assert counts(site, X48) == {
        "X48-2Q": (4, 0, 0, 0), "X48-8Q": (4, 0, 0, 0), "X48-24Q": (2, 0, 0, 0), "X48-48Q": (1, 1, 0, 0)}
    assert refused(site, "vm-102", Want(profile="X48-2Q")) == {
        X48: "fully used by vm-101", "host": "none free, held by vm-101"}


def test_two_of_one_size_leave_nothing_for_another(tmp_path: Path) -> None:
    site = fake_site(hosts.load("x48"), tmp_path)
    for vm in ("vm-1", "vm-2"):
        start(site, vm, Want(profile="X48-2Q"))
    assert counts(site, "0000:17:00.0") == {
        "X48-2Q": (24, 2, 22, 22), "X48-8Q": (6, 0, 0, 0), "X48-24Q": (2, 0, 0, 0), "X48-48Q": (1, 0, 0, 0)}


def test_c02_with_a_vgpu_that_is_not_ours(tmp_path: Path) -> None:
    site = fake_site(hosts.load("x48-full"), tmp_path)
    row, = (row for row in claims.capacity(site) if row.profile == "X48-48Q")
    assert (row.total, row.taken, row.foreign, row.free, row.sellable) == (1, 0, 1, 0, 0)
    assert refused(site, "vm-102", Want(profile="X48-2Q")) == {
        X48: "fully used by a VM that is not ours", "host": "none free, held by a VM that is not ours"}


def test_a_card_that_falls_off_the_bus_under_its_vm(tmp_path: Path) -> None:
    kernel = hosts.load("moved-before")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", Want(address="0000:41:00.0"))
    run(site, kernel, "vm-1")
    kernel.pci.remove(kernel.pci.functions["0000:41:00.0"])
    assert reconcile(site) == ()
    told = {row.board: (row.total, row.taken, row.free, row.not_restored, row.why) for row in claims.capacity(site)}
    assert told == {"0000:81:00.0": (1, 0, 1, 0, None),
                    "0000:41:00.0": (1, 1, 0, 1, "not on this host any more, held by vm-1")}
    kernel.tree.drop("/run/libvirt/qemu/vm-1.xml")
    assert reconcile(site) == ("VM vm-1: released",)
    assert [row.board for row in claims.capacity(site)] == ["0000:81:00.0"]


def test_what_the_next_start_would_free_is_free(tmp_path: Path) -> None:
    """Guests turned themselves off: what the driver would create on the full board is not what it would after that."""
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    for vm in ("vm-1", "vm-2"):
        start(site, vm, Want(profile="X48-24Q"))
        run(site, kernel, vm)
    for vm in ("vm-1", "vm-2"):
        kernel.vm_stop(vm)
    assert counts(site, "0000:17:00.0")["X48-48Q"] == (1, 0, 1, 1)
    explained = explain(site, "vm-3", Want(profile="X48-48Q"))
    assert slots(explained) == slots(start(site, "vm-3", Want(profile="X48-48Q")))


def test_c04_two_asked_one_there(tmp_path: Path) -> None:
    kernel = hosts.load("moved-before")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-100", Want(address="0000:81:00.0"))
    run(site, kernel, "vm-100")
    before, ledger = kernel.snapshot(), (tmp_path / "state/ledger.db").read_bytes()
    assert refused(site, "vm-101", Want(model="l40s"), Want(model="l40s")) == {
        "0000:41:00.0": "free, on node0", "0000:81:00.0": "fully used by vm-100",
        "host": "needs 2, 1 free on this host"}
    assert kernel.snapshot() == before
    assert (tmp_path / "state/ledger.db").read_bytes() == ledger


def test_c05_the_old_address_belongs_to_somebody_else(tmp_path: Path) -> None:
    kernel = hosts.load("s7150")
    site = fake_site(kernel, tmp_path)
    vf = Want(mechanism="vf")
    assert slots(start(site, "vm-X", vf)) == ["0000:06:02.0"]
    run(site, kernel, "vm-X")
    stop(site, kernel, "vm-X")
    assert slots(start(site, "vm-Y", vf)) == ["0000:06:02.0"]
    assert slots(start(site, "vm-X", vf)) == ["0000:06:02.1"]
    for vm in ("vm-X", "vm-Y"):
        run(site, kernel, vm)
    for number in range(14):
        start(site, f"vm-{number}", vf)

    stop(site, kernel, "vm-X")
    assert [hold.slot for hold in site.ledger.taken().holds if hold.vm == "vm-Y"] == ["0000:06:02.0"]
    assert slots(start(site, "vm-Z", vf)) == ["0000:06:02.1"]


def test_c19_somebody_elses_mdev(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site = fake_site(kernel, tmp_path)
    kernel.write(f"{T4}/mdev_supported_types/nvidia-232/create", MDEV)
    before = kernel.snapshot()
    row, = (row for row in claims.capacity(site) if (row.board, row.profile) == ("0000:3b:00.0", "T4-4Q"))
    assert (row.total, row.taken, row.foreign, row.free, row.sellable) == (4, 0, 1, 3, 3)

    assert reconcile(site) == ()
    for number in range(3):
        start(site, f"vm-{number}", Want(profile="T4-4Q", address="0000:3b:00.0"))
    assert refused(site, "vm-9", Want(profile="T4-4Q", address="0000:3b:00.0")) == {
        "0000:3b:00.0": "held by a VM that is not ours, vm-0, vm-1 and 1 more",
        "host": "none free, held by a VM that is not ours, vm-0, vm-1 and 1 more"}
    for number in range(3):
        claims.release(site, f"vm-{number}")
    assert kernel.snapshot() == before


def test_c20_explaining_does_not_take(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    vf = Want(mechanism="vf")
    start(site, "vm-299", vf)
    before, ledger = kernel.snapshot(), site.ledger.claims()
    first = explain(site, "vm-300", vf)
    assert explain(site, "vm-300", vf) == first
    assert slots(first) == ["0000:3b:00.5"]
    assert (kernel.snapshot(), site.ledger.claims()) == (before, ledger)

    assert slots(start(site, "vm-301", vf)) == ["0000:3b:00.5"]
    third = reasons(explain(site, "vm-300", vf))
    assert third["host"] == "none free, held by vm-299, vm-301"
    assert refused(site, "vm-300", vf) == third
