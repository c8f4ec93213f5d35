"""What a crash, a reboot or a guest's own shutdown left behind; two at it at once."""
from __future__ import annotations

from errno import EBUSY
from pathlib import Path
from typing import Any

import pytest

from kvm_gpu import claims, reconcile
from kvm_gpu.holder import boottime, holder_of
from kvm_gpu.ledger import Ledger
from kvm_gpu.ledgerrows import Claim
from kvm_gpu.model import Placement, Request, State, Vm, Want
from kvm_gpu.site import Site
from kvm_gpu.users import vfio_users
from tests.cases.starts import slots, start
from tests.fakekernel import hosts
from tests.fakekernel.kernel import Kernel
from tests.meanwhile import before, before_recording
from tests.sites import fake_site, run, stop

LATER = boottime() + (1 << 20)     # seconds: not within any run of these tests
DEAD, INIT = (1 << 22, 1), holder_of(1)     # nobody; a process that is alive and not we
FIRST = "0000:3b:00.4"
CA4 = "/sys/bus/pci/devices/0000:ca:00.4/nvidia/current_vgpu_type"
VF, CUT = Want(mechanism="vf"), Want(profile="X48-8Q", address="0000:ca:00.4")
NO_VM = "no VM"


@pytest.fixture
def kernel() -> Kernel:
    return hosts.load("whole-or-vf")


def claimed(site: Site, vm: str, state: State, **fields: Any) -> Claim:
    """A claim of the VM for its first free VF as an earlier process left it."""
    placed = start(site, "placing", VF)
    claims.release(site, "placing", force=True)
    made = Claim(f"of {vm}", vm, None, (), state, False, site.view().host.boot_id, None, None, 1)._replace(**fields)
    with site.ledger.write():
        site.ledger.add(made, Placement(placed.devices, ()), ())
    return made


# ---- what is to be done ----------------------------------------------------------------------------

@pytest.mark.parametrize(("state", "fields", "runs", "verdict"), [
    ("starting", {"holder": INIT}, NO_VM, "leave"),
    ("starting", {"holder": DEAD}, NO_VM, "free"),
    ("starting", {"holder": DEAD, "deadline": LATER}, NO_VM, "leave"),
    ("starting", {"holder": DEAD, "deadline": 0}, NO_VM, "free"),
    ("starting", {"holder": DEAD}, "without the device", "leave"),
    ("starting", {"holder": DEAD}, "on the device", "active"),
    ("starting", {"holder": DEAD, "boot_id": "earlier"}, "on the device", "free"),
    ("starting", {"holder": DEAD}, "somebody on the device", "leave"),
    ("active", {}, "on the device", "active"),
    ("active", {}, "without the device", "leave"),
    ("active", {}, "somebody on the device", "leave"),
    ("active", {"deadline": LATER}, NO_VM, "free"),
    ("releasing", {"holder": INIT}, NO_VM, "leave"),
    ("releasing", {"holder": DEAD}, NO_VM, "free"),
    ("releasing", {}, NO_VM, "free"),
    ("releasing", {"holder": DEAD}, "on the device", "leave"),
    ("kept", {"boot_id": "earlier"}, NO_VM, "leave"),
])
def test_judge(kernel: Kernel, state: State, fields: dict[str, Any], runs: str, verdict: str, tmp_path: Path) -> None:
    site = fake_site(kernel, tmp_path)
    claim = claimed(site, "vm-1", state, **fields)
    if runs != NO_VM:
        kernel.vm_start("other" if runs.startswith("somebody") else "vm-1",
                        managed=(FIRST,) if runs.endswith("on the device") else ())
    assert reconcile.judge(site, claim, vfio_users(site.sysfs), site.view().host.boot_id) == verdict
    assert reconcile.outcome(site) == ({claim.id} if verdict == "free" else frozenset(), frozenset())


def test_what_we_release_ourselves_is_not_in_other_hands(kernel: Kernel, tmp_path: Path) -> None:
    """One process may come back to what it could not free before."""
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF)
    run(site, kernel, "vm-1")
    assert claims.release(site, "vm-1") == (
        f"VM vm-1: releasing, still in use: {FIRST}: a VM has it open (VFIO group {kernel.group_of(FIRST)})",)
    assert reconcile.reconcile(site) == ()
    kernel.vm_stop("vm-1")
    assert reconcile.reconcile(site) == ("VM vm-1: released",)


def test_a_vm_seen_on_its_device_is_active(kernel: Kernel, tmp_path: Path) -> None:
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF)
    kernel.vm_start("vm-1", managed=(FIRST,))
    assert reconcile.reconcile(site) == ("VM vm-1: runs on its device",)
    held, = site.ledger.claims()
    assert held.state == "active"
    assert held.verified_at is not None
    assert reconcile.reconcile(site) == ()


def test_a_step_that_the_kernel_refuses_is_tried_again(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", CUT)
    kernel.fail(CA4, EBUSY)
    said, = claims.release(site, "vm-1")
    assert said == f"VM vm-1: releasing, {CA4}: writing '0': EBUSY"
    assert (site.ledger.claims()[0].state, kernel.read(CA4)) == ("releasing", b"9108\n")
    assert reconcile.reconcile(site) == ("VM vm-1: released",)
    assert kernel.read(CA4) == b"0\n"


def test_with_force_the_claim_ends_though_the_kernel_refuses(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", CUT)
    kernel.fail(CA4, EBUSY)
    assert claims.release(site, "vm-1", force=True) == ("VM vm-1: released",)
    assert (site.ledger.claims(), kernel.read(CA4)) == ((), b"9108\n")


def test_no_force_takes_a_device_from_a_running_vm(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", CUT)
    run(site, kernel, "vm-1")
    before_release = len(kernel.writes)
    said, = claims.release(site, "vm-1", force=True)
    assert "still in use" in said
    assert kernel.writes[before_release:] == []


def test_what_a_reboot_undid_is_somebody_elses_now(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", CUT)
    kernel.reboot()
    kernel.setup()
    kernel.write(CA4, "9108")
    assert reconcile.reconcile(site) == ("VM vm-1: released",)
    assert (site.ledger.claims(), kernel.read(CA4)) == ((), b"9108\n")


# ---- two at once -----------------------------------------------------------------------------------

def test_the_second_of_two_leaves_the_first_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hosts.load("x48")
    site, said = fake_site(kernel, tmp_path), []
    claims.claim(site, Request(Vm("vm-1"), (CUT,)), DEAD)

    def second() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(reconcile, "holder_of", lambda pid: INIT)     # another process, alive
            said.append(reconcile.reconcile(site))

    writes = len(kernel.writes)
    assert reconcile.reconcile(before(site, "/current_vgpu_type", second)) == ("VM vm-1: released",)
    assert said == [()]
    assert [write.value for write in kernel.writes[writes:]] == ["0"]


def test_a_slow_one_does_not_clear_the_next_owners_vgpu(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    claims.claim(site, Request(Vm("vm-1"), (CUT,)), DEAD)

    def faster() -> None:
        assert reconcile.reconcile(site) == ("VM vm-1: released",)
        start(site, "vm-2", CUT)

    assert reconcile.reconcile(before_recording(site, faster)) == ("VM vm-1: is seen to by another process",)
    assert ([held.vm for held in site.ledger.claims()], kernel.read(CA4)) == (["vm-2"], b"9108\n")


def test_a_claim_handed_over_meanwhile_is_not_freed(tmp_path: Path) -> None:
    """Its maker ended rightly: it named who starts the VM."""
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    claims.claim(site, Request(Vm("vm-1"), (CUT,)), DEAD)
    held, = site.ledger.claims()

    def hand_over() -> None:
        with site.ledger.note():
            site.ledger.set_state(held.id, "starting", holder=INIT)

    assert reconcile.reconcile(before_recording(site, hand_over)) == ("VM vm-1: is seen to by another process",)
    assert (site.ledger.claims(), kernel.read(CA4)) == ((held._replace(holder=INIT),), b"9108\n")


# ---- what stopped VMs keep -------------------------------------------------------------------------

def test_of_two_runs_only_the_latest_keeps(kernel: Kernel, tmp_path: Path) -> None:
    """The first was being released when its process died; the VM has started again since."""
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF, keep=True)
    first, = site.ledger.claims()
    with site.ledger.note():
        site.ledger.set_state(first.id, "releasing", holder=DEAD)
    assert slots(start(site, "vm-1", VF, keep=True)) == ["0000:3b:00.5"]
    assert reconcile.reconcile(site) == ("VM vm-1: released",)
    assert [(held.vm, held.state) for held in site.ledger.claims()] == [("vm-1", "starting")]


def test_a_stopped_vm_keeps_its_slot_but_no_cpu(kernel: Kernel, tmp_path: Path) -> None:
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF, keep=True)
    run(site, kernel, "vm-1")
    stop(site, kernel, "vm-1")
    held, = site.ledger.claims()
    assert (held.state, site.ledger.uses(held.id), [hold.slot for hold in site.ledger.taken().holds]) == (
        "kept", (), [FIRST])
    assert reconcile.reconcile(site) == ()


def test_a_ledger_that_is_not_there_is_not_made(kernel: Kernel, tmp_path: Path) -> None:
    site = fake_site(kernel, tmp_path)
    assert reconcile.reconcile(Site(site.sysfs, Ledger(str(tmp_path / "none/ledger.db")), site.config)) == ()
    assert not (tmp_path / "none").exists()
