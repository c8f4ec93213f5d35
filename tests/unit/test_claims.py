"""What happens between two steps of a start: others are faster, a VM slips in, the kernel refuses, the cache is old."""
from __future__ import annotations

import dataclasses
from errno import EIO
from pathlib import Path

import pytest

from kvm_gpu import claims, look
from kvm_gpu.errors import BusyError, HostError, NoCapacity, OwnershipError, RequestError
from kvm_gpu.holder import boottime, holder_of
from kvm_gpu.model import Config, GuestNode, HostLayout, Request, Vm, Want
from kvm_gpu.reconcile import reconcile
from tests.cases.starts import explain, reasons, refused, slots, start
from tests.fakekernel import hosts
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.vms import QemuError
from tests.meanwhile import before, before_recording
from tests.sites import essence, fake_site, run, stop

PCI = "/sys/bus/pci/devices/"
DEAD = (1 << 22, 1)         # above pid_max: nobody's
VF, WHOLE = Want(mechanism="vf"), Want(mechanism="whole")
GUEST = (GuestNode(0, (0, 1), 1024),)
MDEV = "aaaaaaaa-0000-4000-8000-00000000000a"
T4_4Q = "mdev_supported_types/nvidia-232"
INIT = holder_of(1)         # a process that is alive and not we


def group(kernel: Kernel, name: str) -> str:
    return f"group {kernel.group_of(name)}"


def request(vm: str, *wants: Want) -> Request:
    return Request(Vm(vm), wants)


# ---- somebody else is faster -----------------------------------------------------------------------

def test_another_start_takes_the_chosen_slot(tmp_path: Path) -> None:
    site = fake_site(hosts.load("whole-or-vf"), tmp_path)
    assert slots(start(before_recording(site, lambda: start(site, "vm-2", VF)), "vm-1", VF)) == ["0000:3b:00.5"]
    assert {hold.vm: hold.slot for hold in site.ledger.taken().holds} == {
        "vm-1": "0000:3b:00.5", "vm-2": "0000:3b:00.4"}


def test_another_start_takes_the_last_slot(tmp_path: Path) -> None:
    site = fake_site(hosts.load("whole-or-vf"), tmp_path)
    start(site, "vm-3", VF)
    assert refused(before_recording(site, lambda: start(site, "vm-2", VF)), "vm-1", VF) == {
        "0000:3b:00.0": "fully used by vm-2, vm-3", "host": "none free, held by vm-2, vm-3"}


def test_another_start_of_the_same_vm(tmp_path: Path) -> None:
    site = fake_site(hosts.load("whole-or-vf"), tmp_path)
    with pytest.raises(OwnershipError, match="is being started by another process"):
        start(before_recording(site, lambda: start(site, "vm-1", VF)), "vm-1", VF)
    assert len(site.ledger.claims()) == 1


@pytest.mark.parametrize(("host", "want", "chosen", "other"), [
    ("whole-or-vf", VF, "0000:3b:00.4", "0000:3b:00.5"),
    ("moved-before", WHOLE, "0000:41:00.0", "0000:81:00.0"),
])
def test_a_foreign_vm_on_the_chosen_slot(host: str, want: Want, chosen: str, other: str, tmp_path: Path) -> None:
    kernel = hosts.load(host)
    site = fake_site(kernel, tmp_path)
    slow = before_recording(site, lambda: kernel.vm_start("foreign", managed=(chosen,)))
    assert slots(start(slow, "vm-1", want)) == [other]
    assert [(event.vm, event.event, event.detail) for event in site.ledger.events(3)] == [
        ("vm-1", "claimed", chosen),
        ("vm-1", "failed", f"{chosen}: a VM has it open (VFIO group {kernel.group_of(chosen)})"),
        ("vm-1", "claimed", other)]
    assert "foreign" in kernel.vms.running


def test_a_foreign_vm_on_the_only_slot(tmp_path: Path) -> None:
    kernel = hosts.load("minus-one")
    site = fake_site(kernel, tmp_path)
    site.view()
    slow = before_recording(site, lambda: kernel.vm_start("foreign", managed=("0000:41:00.0",)))
    assert set(refused(slow, "vm-1", WHOLE)) == {"0000:41:00.0", "host"}
    assert site.ledger.claims() == ()


@pytest.mark.parametrize(("used", "free"), [("0000:4d:00", "0000:cd:00"), ("0000:cd:00", "0000:4d:00")])
def test_a_foreign_vm_on_a_vf_of_one_of_two_cards(used: str, free: str, tmp_path: Path) -> None:
    kernel = hosts.load("flex170")
    kernel.write(f"{PCI}{used}.1/driver_override", "vfio-pci")
    kernel.write("/sys/bus/pci/drivers_probe", f"{used}.1")
    site = fake_site(kernel, tmp_path)
    slow = before(site, group(kernel, f"{used}.1"), lambda: kernel.vm_start("foreign", managed=(f"{used}.1",)))
    said = refused(slow, "vm-1", Want(mechanism="whole", cards=2))
    assert said.pop(f"{free}.0").startswith("free, on node")
    assert said == {f"{used}.0": "VFs on, 1 used by a VM that is not ours", "host": "needs 2, 1 free on this host"}
    assert site.ledger.claims() == ()
    assert [kernel.read(f"{PCI}{card}.0/sriov_numvfs") for card in (used, free)] == [b"4\n", b"4\n"]


def test_a_reconcile_leaves_what_is_being_made_ready(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site, said = fake_site(kernel, tmp_path), []
    slow = before(site, "/current_vgpu_type", lambda: said.append(reconcile(site)))
    device, = start(slow, "vm-1", Want(profile="X48-8Q")).devices
    assert said == [()]
    assert kernel.read(f"{PCI}{device.hold.slot}/nvidia/current_vgpu_type") == b"9108\n"
    assert [held.vm for held in site.ledger.claims()] == ["vm-1"]


def test_a_start_of_a_vm_whose_start_goes_on(tmp_path: Path) -> None:
    site = fake_site(hosts.load("x48"), tmp_path)

    def second() -> None:
        with pytest.raises(OwnershipError, match="VM vm-1: is being started by process"):
            start(site, "vm-1", VF)

    start(before(site, "/current_vgpu_type", second), "vm-1", Want(profile="X48-8Q"))
    assert len(site.ledger.claims()) == 1


# ---- the same VM again -----------------------------------------------------------------------------

def test_a_second_start_replaces_the_first(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", Want(profile="X48-8Q"))
    tree = kernel.snapshot()
    start(site, "vm-1", Want(profile="X48-8Q"))
    assert kernel.snapshot() == tree
    assert len(site.ledger.claims()) == 1


def test_a_running_vm_is_not_started_again(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF)
    run(site, kernel, "vm-1")
    held, = site.ledger.claims()
    with pytest.raises(OwnershipError) as refusal:
        start(site, "vm-1", VF)
    assert refusal.value.message == f"VM vm-1: runs, with claim {held.id}"
    assert site.ledger.claims() == (held,)


@pytest.mark.parametrize(("command", "runs"), [
    ("/usr/bin/kvm\0-id\000104\0-pidfile\0/var/run/qemu-server/104.pid\0-daemonize", True),
    ("/usr/bin/kvm\0-id\0001104\0-pidfile\0/var/run/qemu-server/1104.pid\0-daemonize", False),
    ("sshd: root@pts/0", False),
    (None, False),
])
def test_a_pid_file_of_proxmox_outlives_qemu(command: str | None, runs: bool, tmp_path: Path) -> None:
    """Where QEMU was killed; its number may be another process's by now."""
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    kernel.place("/run/qemu-server/104.pid", "4711\n")
    if command is not None:
        kernel.place("/proc/4711/cmdline", command)
    assert site.running("104") is runs


def test_a_release_by_the_id_of_another_run_does_nothing(tmp_path: Path) -> None:
    site = fake_site(hosts.load("whole-or-vf"), tmp_path)
    start(site, "vm-1", VF)
    held, = site.ledger.claims()
    assert claims.release(site, "vm-1", "0123") == ()
    assert claims.release(site, "vm-1", held.id) == ("VM vm-1: released",)
    assert claims.release(site, "vm-1", held.id) == ()


def test_a_kept_size_that_the_kernel_will_not_give_back_stays_releasing(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    old = slots(start(site, "vm-1", Want(profile="X48-8Q"), keep=True))[0]
    claims.release(site, "vm-1")
    kernel.fail(f"{PCI}{old}/nvidia/current_vgpu_type", EIO)
    assert slots(start(site, "vm-1", Want(profile="X48-24Q"))) != [old]
    assert [(held.state, len(site.ledger.devices(held.id))) for held in site.ledger.claims()] == [
        ("releasing", 1), ("starting", 1)]
    reconcile(site)
    assert kernel.read(f"{PCI}{old}/nvidia/current_vgpu_type") == b"0\n"


def test_a_failed_start_leaves_the_vm_what_it_kept(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site, want = fake_site(kernel, tmp_path), Want(profile="T4-4Q")
    first = start(site, "vm-1", want, keep=True, guest=GUEST, cpu="dedicated").devices[0]
    claims.release(site, "vm-1")
    kernel.reboot()
    kernel.fail(f"{PCI}{first.functions[0]}/{T4_4Q}/create", EIO)
    with pytest.raises(HostError, match="EIO"):
        start(site, "vm-1", want, keep=True, guest=GUEST, cpu="dedicated")
    held, = site.ledger.claims()
    assert (held.state, site.ledger.uses(held.id), [hold.slot for hold in site.ledger.taken().holds]) == (
        "kept", (), [first.hold.slot])
    assert start(site, "vm-1", want, keep=True).devices == (first,)


def test_a_foreign_vm_on_a_kept_slot(tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF, keep=True)
    claims.release(site, "vm-1")
    kernel.vm_start("foreign", managed=("0000:3b:00.4",))
    assert slots(start(site, "vm-1", VF, keep=True)) == ["0000:3b:00.5"]
    assert [(hold.slot, hold.state) for hold in site.ledger.taken().holds] == [
        ("0000:3b:00.4", "releasing"), ("0000:3b:00.5", "starting")]
    kernel.vm_stop("foreign")
    reconcile(site)
    assert [hold.slot for hold in site.ledger.taken().holds] == ["0000:3b:00.5"]


# ---- the kernel refuses ----------------------------------------------------------------------------

@pytest.mark.parametrize(("host", "want", "path"), [
    ("t4-mdev", Want(profile="T4-4Q", cards=2), "0000:af:00.0/" + T4_4Q + "/create"),
    ("x48", Want(profile="X48-8Q", cards=2), "0000:ca:00.4/nvidia/current_vgpu_type"),
    ("flex170", Want(mechanism="whole", cards=2), "0000:cd:00.0/sriov_numvfs"),
])
def test_a_refused_step_leaves_all_as_it_was(host: str, want: Want, path: str, tmp_path: Path) -> None:
    kernel = hosts.load(host)
    site, tree = fake_site(kernel, tmp_path), essence(kernel)
    kernel.fail(PCI + path, EIO)
    with pytest.raises(HostError, match="EIO"):
        start(site, "vm-1", want)
    assert (essence(kernel), site.ledger.claims()) == (tree, ())
    assert site.ledger.events(1)[0].event == "failed"


def test_what_cannot_be_undone_stays_with_the_claim(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site, tree = fake_site(kernel, tmp_path), kernel.snapshot()
    one, two = (f"{PCI}{card}/nvidia/current_vgpu_type" for card in ("0000:17:00.4", "0000:ca:00.4"))

    def both_fail() -> None:
        kernel.fail(two, EIO)
        kernel.fail(one, EIO)

    with pytest.raises(HostError, match="not undone"):
        start(before(site, two.removeprefix(PCI), both_fail), "vm-1", Want(profile="X48-8Q", cards=2))
    assert [held.state for held in site.ledger.claims()] == ["releasing"]
    assert reconcile(site) == ("VM vm-1: released",)
    assert (kernel.snapshot(), site.ledger.claims()) == (tree, ())


def test_a_uuid_that_somebody_has_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hosts.load("t4-mdev")
    kernel.write(f"{PCI}0000:af:00.0/{T4_4Q}/create", MDEV)
    site, tree = fake_site(kernel, tmp_path), kernel.snapshot()
    monkeypatch.setattr(look, "new_uuid", lambda: MDEV)
    with pytest.raises(HostError, match="it is not ours|wanted was"):
        start(site, "vm-1", Want(profile="T4-4Q", address="0000:3b:00.0"))
    assert (kernel.snapshot(), site.ledger.claims()) == (tree, ())


# ---- the cache is old ------------------------------------------------------------------------------

def test_a_cached_vf_is_gone(tmp_path: Path) -> None:
    kernel = hosts.load("flex170")
    site = fake_site(kernel, tmp_path)
    site.fresh_view()
    kernel.write(f"{PCI}0000:4d:00.0/sriov_numvfs", "0")
    assert slots(start(site, "vm-1", VF)) == ["0000:cd:00.1"]


def test_a_cached_type_cannot_be_made_any_more(tmp_path: Path) -> None:
    kernel = hosts.load("x48")
    site = fake_site(kernel, tmp_path)
    site.fresh_view()
    kernel.write(f"{PCI}0000:17:00.4/nvidia/current_vgpu_type", "9148")
    assert slots(start(site, "vm-1", Want(profile="X48-2Q"))) == ["0000:ca:00.4"]
    kernel.write(f"{PCI}0000:17:00.4/nvidia/current_vgpu_type", "0")
    kernel.write(f"{PCI}0000:17:00.5/nvidia/current_vgpu_type", "9102")
    assert refused(site, "vm-2", Want(profile="X48-48Q")) == {
        "0000:17:00.0": "runs X48-2Q (one size per board)", "0000:ca:00.0": "runs X48-2Q (one size per board)",
        "host": "none free, held by a VM that is not ours, vm-1"}


def test_a_foreign_mdev_on_a_card_that_the_cache_calls_idle(tmp_path: Path) -> None:
    kernel = hosts.load("t4-mdev")
    site = fake_site(kernel, tmp_path)
    site.fresh_view()
    kernel.write(f"{PCI}0000:3b:00.0/{T4_4Q}/create", MDEV)
    assert slots(start(site, "vm-1", WHOLE)) == ["0000:af:00.0"]
    assert refused(site, "vm-2", WHOLE)["0000:3b:00.0"] == "mdevs on, 1 used by a VM that is not ours"


def test_a_cached_card_is_gone(tmp_path: Path) -> None:
    machine = hosts.describe("moved-before")
    fake_site(Kernel(machine), tmp_path).fresh_view()
    left = tuple(card for card in machine.cards if card.at != "0000:41:00.0")
    site = fake_site(Kernel(dataclasses.replace(machine, cards=left)), tmp_path)
    assert slots(start(site, "vm-1", WHOLE)) == ["0000:81:00.0"]
    with pytest.raises(RequestError, match="0000:41:00.0: not found"):
        start(site, "vm-2", Want(address="0000:41:00.0"))


@pytest.mark.parametrize("path", [
    "/sys/devices/system/cpu/online", "/sys/fs/cgroup/machine.slice/cpuset.cpus.effective"])
def test_cached_cpus_are_lost(path: str, tmp_path: Path) -> None:
    """Offline, or out of the cpuset of VMs: a domain that is pinned there does not start."""
    kernel = hosts.load("rtx6000x4")
    site = fake_site(kernel, tmp_path)
    assert start(site, "vm-1", WHOLE, guest=GUEST, cpu="dedicated").uses[0].cpus == (0, 16)
    claims.release(site, "vm-1")
    kernel.place(path, "1-31")
    assert start(site, "vm-1", WHOLE, guest=GUEST, cpu="dedicated").uses[0].cpus == (16, 1, 17)
    assert start(site, "vm-2", WHOLE, guest=GUEST, cpu="shared").uses[0].pins[0] == (0, (*range(2, 8), *range(18, 24)))


def test_the_cache_of_another_boot_counts_for_nothing(tmp_path: Path) -> None:
    kernel = hosts.load("flex170")
    site = fake_site(kernel, tmp_path)
    site.fresh_view()
    kernel.reboot()
    assert refused(site, "vm-1", VF)["0000:4d:00.0"] == "offers no vf"


@pytest.mark.parametrize("cached", [True, False])
def test_before_a_refusal_the_dead_are_cleared_away(cached: bool, tmp_path: Path) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    for vm in ("vm-1", "vm-2"):
        claims.claim(site, request(vm, VF), DEAD)
    if not cached:
        (tmp_path / "run/kvm-gpu/host").unlink()
    assert slots(explain(site, "vm-3", VF)) == ["0000:3b:00.4"]
    assert len(site.ledger.claims()) == 2
    assert slots(start(site, "vm-3", VF)) == ["0000:3b:00.4"]
    assert [held.vm for held in site.ledger.claims()] == ["vm-3"]


# ---- the rest --------------------------------------------------------------------------------------

def test_claims_wait_until_layouts_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path, Config(layouts=(HostLayout("day", ()),)))
    monkeypatch.setattr(claims, "READY_WAIT_S", 0)
    with pytest.raises(BusyError, match="/run/kvm-gpu/ready: not there after 0 s"):
        start(site, "vm-1", VF)
    kernel.place("/run/kvm-gpu/ready")
    assert slots(start(site, "vm-1", VF)) == ["0000:3b:00.4"]


def test_who_starts_the_vm_holds_the_claim_else_a_deadline(tmp_path: Path) -> None:
    site = fake_site(hosts.load("whole-or-vf"), tmp_path)
    claims.claim(site, request("vm-1", VF), INIT)
    claims.claim(site, request("vm-2", VF))
    first, second = site.ledger.claims()
    assert (first.holder, first.deadline) == (INIT, None)
    assert second.deadline is not None
    assert 110 <= second.deadline - boottime() <= claims.APPEAR_S


def test_the_vm_that_starts_after_its_claim_finds_its_device(tmp_path: Path) -> None:
    """And a second hypervisor that tries the same device does not start."""
    kernel = hosts.load("whole-or-vf")
    site = fake_site(kernel, tmp_path)
    start(site, "vm-1", VF)
    run(site, kernel, "vm-1")
    with pytest.raises(QemuError):
        kernel.vm_start("vm-2", managed=("0000:3b:00.4",))
    stop(site, kernel, "vm-1")
    assert site.ledger.claims() == ()


def test_dedicated_cpus_are_given_once(tmp_path: Path) -> None:
    site = fake_site(hosts.load("flex170"), tmp_path)
    guest = (GuestNode(0, tuple(range(8)), 1024),)
    got = [cpu for number in range(4) for use in start(site, f"vm-{number}", VF, guest=guest, cpu="dedicated").uses
           for cpu in use.cpus]
    assert sorted(got) == list(range(32))
    with pytest.raises(NoCapacity):
        start(site, "vm-9", VF, guest=guest, cpu="dedicated")


def test_an_explanation_of_a_running_vm_reckons_without_its_claim(tmp_path: Path) -> None:
    site = fake_site(hosts.load("minus-one"), tmp_path)
    start(site, "vm-1", WHOLE)
    assert slots(explain(site, "vm-1", WHOLE)) == ["0000:41:00.0"]
    assert reasons(explain(site, "vm-2", WHOLE)) == {
        "0000:41:00.0": "fully used by vm-1", "host": "none free, held by vm-1"}


@pytest.mark.parametrize(("want", "words"), [
    (Want(profile="A16-4Q", cards=2), "2 x A16-4Q"), (Want(mechanism="vf", vendor="1002"), "1 x vf 1002"),
    (Want(fb_mib=8192), "1 x with at least 8192 MiB"), (Want(address="0000:41:00.0"), "1 x 0000:41:00.0"),
])
def test_wants_in_words(want: Want, words: str) -> None:
    assert claims.wanted(request("vm-1", want)) == words
