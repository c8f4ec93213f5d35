"""Any order of starts, stops, deaths, failures and other people's doings on a host of every mechanism."""
from __future__ import annotations

import dataclasses
from errno import EBUSY, EIO, ENOSPC
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvm_gpu import claims
from kvm_gpu.errors import HostError, NoCapacity, OwnershipError, RequestError
from kvm_gpu.model import Config, CpuMode, Decision, GuestNode, Policy, Request, Strict, Vm, Want
from kvm_gpu.reconcile import reconcile
from tests.fakekernel import hosts
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.machine import Card, Machine
from tests.fakekernel.vms import QemuError
from tests.sites import essence, fake_site, folder_in_memory, run

PCI = "/sys/bus/pci/devices/"
DEAD = (1 << 22, 1)             # above pid_max: nobody's
VMS = st.sampled_from([f"vm-{number}" for number in range(5)])
ERRNO = st.sampled_from([EBUSY, EIO, ENOSPC])
CUT, FAST, MDEVS = "0000:3b:00.0", "0000:ca:00.0", "0000:af:00.0"    # two plain VFs; four VFs with vGPUs; a T4


def cards(name: str, *addresses: str) -> tuple[Card, ...]:
    return tuple(card for card in hosts.describe(name).cards if card.at in addresses)


def machine(vgpu: str) -> Machine:
    """Two RTX 6000 and a card with two plain VFs, and boards with vGPUs as files or as mdevs. As mdevs the RTX 6000
    can be cut too."""
    more = cards("x48-full", FAST) if vgpu == "vfio" else cards("t4-mdev", MDEVS)
    return dataclasses.replace(
        hosts.describe("x48-full"), name=f"joined {vgpu}", vgpu=vgpu, setup=(),
        cards=cards("rtx6000x4", "0000:5e:00.0", "0000:d8:00.0") + cards("whole-or-vf", CUT) + more)


class Host(RuleBasedStateMachine):
    vgpu = "vfio"
    wants = (
        Want(mechanism="whole"), Want(profile="rtx6000", cards=2), Want(mechanism="whole", cards=3),
        Want(mechanism="vf"), Want(mechanism="vf", address="0000:3b:00.5"), Want(profile="X48-24Q"),
        Want(profile="X48-8Q"), Want(fb_mib=8000), Want(mechanism="nvidia_vfio", address="0000:ca:00.6"))
    writable = (f"{PCI}{CUT}/sriov_numvfs", *(f"{PCI}0000:ca:00.{at}/nvidia/current_vgpu_type" for at in range(4, 8)))

    def __init__(self) -> None:
        super().__init__()
        self.folder = folder_in_memory()
        self.kernel = Kernel(machine(self.vgpu))
        self.site = fake_site(self.kernel, Path(self.folder.name), Config(Policy(cpu_pool=tuple(range(2, 32)))))
        self.first = essence(self.kernel)
        self.foreign: dict[str, str] = {}       # VM -> function; UUID -> type; VF -> vGPU type
        self.number = 0

    # ---- our VMs ---------------------------------------------------------------------------------

    @rule(data=st.data(), vm=VMS, cards=st.sampled_from([None, None, None, 2, 3]), keep=st.booleans(),
          cpu=st.sampled_from(["none", "dedicated", "shared"]), numa=st.sampled_from(["preferred", "required"]),
          dies=st.booleans())
    def claim(self, data: st.DataObject, vm: str, cards: int | None, keep: bool, cpu: CpuMode, numa: Strict,
              dies: bool) -> None:
        """A start that comes to nothing changes nothing. `dies`: who starts the VM ends at once."""
        want = data.draw(st.sampled_from(self.wants))
        if cards and not want.address:
            want = want._replace(cards=cards)
        request = Request(Vm(vm), (want,), (GuestNode(0, (0, 1, 2), 4096),), numa, "preferred", cpu, keep)
        reconcile(self.site)
        had, runs = self.site.ledger.claim_of(vm), self.site.running(vm)
        before = self.all()
        if runs:
            with pytest.raises(OwnershipError):
                claims.claim(self.site, request)
            assert self.all() == before
            return
        try:
            self.check_claim(claims.claim(self.site, request, DEAD if dies else None))
        except (NoCapacity, HostError, RequestError) as failure:
            unknown = isinstance(failure, RequestError)
            assert had is not None or self.all() == before
            assert not unknown or want.address      # of a VF that is switched off

    def check_claim(self, made: Decision) -> None:
        """What was decided is recorded, and ready in the kernel."""
        assert made.claim is not None
        assert made.placement is not None
        recorded = self.site.ledger.devices(made.claim)
        assert [device._replace(hold=device.hold._replace(state="starting")) for device in recorded] == list(
            made.placement.devices)
        for device in recorded:
            self.check_ready(device.hold.slot, device.uuid, device.mechanism, device.hold.profile)

    @rule(vm=VMS)
    def runs(self, vm: str) -> None:
        held = self.site.ledger.claim_of(vm)
        if held is None or held.state != "starting" or self.site.running(vm):
            return
        try:
            run(self.site, self.kernel, vm)
        except QemuError:       # somebody else's VM is inside
            assert self.foreign
        else:
            assert self.site.ledger.claim_of(vm) == self.site.ledger.claim(held.id)

    @rule(vm=VMS, known=st.booleans())
    def stops(self, vm: str, known: bool) -> None:
        """Killed, or turned off from inside; `known`: reconcile runs at once."""
        if vm in self.kernel.vms.running:
            self.kernel.vm_stop(vm)
        if known:
            self.reconcile()

    @rule(vm=VMS, force=st.booleans())
    def release(self, vm: str, force: bool) -> None:
        """A release while the VM runs leaves it what it has."""
        claims.release(self.site, vm, force=force)

    @rule()
    def reconcile(self) -> None:
        reconcile(self.site)
        before = self.site.ledger.claims()
        if not self.kernel.faults.coming:
            assert all("releasing" in sentence for sentence in reconcile(self.site))
            assert [held.id for held in self.site.ledger.claims()] == [held.id for held in before]

    # ---- what happens to us ----------------------------------------------------------------------

    @rule(data=st.data(), errno=ERRNO)
    def a_write_will_fail(self, data: st.DataObject, errno: int) -> None:
        self.kernel.fail(data.draw(st.sampled_from(self.writable)), errno)

    @rule()
    def reboot(self) -> None:
        self.kernel.faults.coming.clear()
        self.kernel.reboot()
        self.kernel.setup()
        self.foreign.clear()
        reconcile(self.site)
        assert {held.state for held in self.site.ledger.claims()} <= {"kept"}

    @rule(data=st.data())
    def cordon(self, data: st.DataObject) -> None:
        board = data.draw(st.sampled_from([card.at for card in self.kernel.machine.cards]))
        with self.site.ledger.note():
            if not self.site.ledger.uncordon(board):
                self.site.ledger.cordon(board, "test")

    # ---- other people ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.foreign) < 2)
    @rule(data=st.data())
    def foreign_vm(self, data: st.DataObject) -> None:
        """On a card or VF that we have not given; a PF would lose its VFs."""
        held = {hold.board for hold in self.site.ledger.taken().holds}
        free = [card.at for card in self.kernel.machine.cards if card.at not in held and self.is_idle(card.at)]
        slots = {hold.slot for hold in self.site.ledger.taken().holds}
        vfs = [vf.name for vf in self.kernel.pci.functions[CUT].virtfns]
        free += [vf for vf in vfs if vf not in slots and self.is_idle(vf)]
        free = [name for name in free if name not in (CUT, FAST)]
        if free:
            vm, function = f"foreign-{self.number}", data.draw(st.sampled_from(free))
            self.number += 1
            mates = [name for name in self.kernel.pci.functions if name[:-1] == function[:-1]]
            self.kernel.vm_start(vm, managed=tuple(mates if function.endswith(".0") else [function]))
            self.foreign[vm] = function

    def is_idle(self, name: str) -> bool:
        """Nobody has it open, or an mdev or a VF of it."""
        function = self.kernel.pci.functions[name]
        mdevs = self.kernel.mdev.parents[name].mdevs if name in self.kernel.mdev.parents else []
        groups = [function.group, *(vf.group for vf in function.virtfns)]
        return not mdevs and not any(self.kernel.vfio.in_vm(group) for group in groups)

    @rule(data=st.data())
    def foreign_vgpu(self, data: st.DataObject) -> None:
        """A type set, or an mdev made, by hand where we hold nothing."""
        slots = {hold.slot for hold in self.site.ledger.taken().holds}
        if self.vgpu == "vfio":
            vf = data.draw(st.sampled_from([f"0000:ca:00.{at}" for at in range(4, 8)]))
            type_id = data.draw(st.sampled_from(["9102", "9108", "9124"]))
            if vf not in slots and self.by_hand(f"{PCI}{vf}/nvidia/current_vgpu_type", type_id):
                self.foreign[vf] = type_id
        elif MDEVS not in slots:    # not given whole
            self.number += 1
            uuid = str(UUID(int=self.number))
            folder = data.draw(st.sampled_from(["nvidia-231", "nvidia-232", "nvidia-233"]))
            if self.by_hand(f"{PCI}{MDEVS}/mdev_supported_types/{folder}/create", uuid):
                self.foreign[uuid] = folder

    def by_hand(self, path: str, value: str) -> bool:
        try:
            self.kernel.write(path, value)
        except OSError:
            return False
        return True

    @precondition(lambda self: self.foreign)
    @rule(data=st.data())
    def foreign_ends(self, data: st.DataObject) -> None:
        self.end_foreign(data.draw(st.sampled_from(sorted(self.foreign))))

    def end_foreign(self, name: str) -> None:
        self.kernel.faults.coming.clear()
        del self.foreign[name]
        if name in self.kernel.vms.running:
            self.kernel.vm_stop(name)
        elif name in self.kernel.mdev.mdevs:
            self.kernel.write(f"/sys/bus/mdev/devices/{name}/remove", "1")
        else:
            self.kernel.write(f"{PCI}{name}/nvidia/current_vgpu_type", "0")

    # ---- what always holds -----------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        taken = self.site.ledger.taken()
        places: list[object] = [(hold.board, hold.cell, unit) for hold in taken.holds
                                for unit in range(hold.start, hold.start + hold.size)]
        places += [cpu for use in taken.uses for cpu in use.cpus]
        assert len(set(places)) == len(places)
        layouts = {(hold.board, hold.layout) for hold in taken.holds}
        assert len({board for board, _ in layouts}) == len(layouts)

    @invariant()
    def who_runs_keeps_what_it_has(self) -> None:
        for held in self.site.ledger.claims():
            if held.state == "active" and held.vm in self.kernel.vms.running:
                for device in self.site.ledger.devices(held.id):
                    self.check_ready(device.hold.slot, device.uuid, device.mechanism, device.hold.profile)

    def check_ready(self, slot: str, uuid: str | None, mechanism: str, profile: str) -> None:
        if mechanism == "mdev":
            assert uuid in self.kernel.mdev.mdevs
        elif mechanism == "nvidia_vfio":
            now = self.kernel.drivers.loaded["nvidia"].vgpus[slot].now      # type: ignore[attr-defined]
            assert now.name == profile
        else:
            assert slot in self.kernel.pci.functions

    @invariant()
    def what_is_not_ours_stays(self) -> None:
        for name, what in self.foreign.items():
            if name in self.kernel.pci.functions:
                assert self.kernel.read(f"{PCI}{name}/nvidia/current_vgpu_type").decode().strip() == what
            else:
                assert name in self.kernel.vms.running or name in self.kernel.mdev.mdevs

    @rule(data=st.data())
    def counts_are_honest(self, data: st.DataObject) -> None:
        """Where nothing but the device is asked for, what is free is given, and where nothing is free it is refused."""
        self.kernel.faults.coming.clear()
        reconcile(self.site)
        rows = claims.capacity(self.site)
        for row in rows:
            assert row.free >= row.sellable >= 0, row
            assert row.total >= row.taken + row.foreign, row
        row = data.draw(st.sampled_from(rows))
        free = sum(other.free for other in rows if (other.mechanism, other.profile) == (row.mechanism, row.profile))
        before = self.all()
        try:
            claims.claim(self.site, Request(Vm("probe"), (Want(row.profile, row.mechanism),)))
        except NoCapacity:
            assert free == 0
        else:
            assert free > 0
            claims.release(self.site, "probe")
        assert self.all() == before

    # ---- the end ---------------------------------------------------------------------------------

    def all(self) -> tuple[object, ...]:
        """Kernel and ledger."""
        ledger, held = self.site.ledger, self.site.ledger.claims()
        return essence(self.kernel), held, ledger.taken(), [ledger.actions(claim.id) for claim in held]

    def teardown(self) -> None:
        self.kernel.faults.coming.clear()
        for vm in tuple(self.kernel.vms.running):
            if vm not in self.foreign:
                self.kernel.vm_stop(vm)
        for name in tuple(self.foreign):
            self.end_foreign(name)
        for vm in {held.vm for held in self.site.ledger.claims()}:
            claims.release(self.site, vm, force=True)
        reconcile(self.site)
        self.folder.cleanup()
        assert self.site.ledger.claims() == ()
        now = essence(self.kernel)
        changed = {path: (self.first.get(path), now.get(path)) for path in self.first.keys() | now.keys()
                   if self.first.get(path) != now.get(path)}
        assert not changed, changed


class MdevHost(Host):
    vgpu = "mdev"
    wants = (
        Want(mechanism="whole"), Want(mechanism="whole", cards=2), Want(mechanism="vf"), Want(profile="T4-8Q"),
        Want(profile="T4-4Q", address=MDEVS), Want(profile="RTX6000-8Q"), Want(profile="RTX6000-12Q", cards=2),
        Want(mechanism="mdev", fb_mib=6000), Want(mechanism="whole", model="rtx6000"))
    writable = (f"{PCI}{CUT}/sriov_numvfs", f"{PCI}{MDEVS}/mdev_supported_types/nvidia-232/create",
                f"{PCI}{MDEVS}/mdev_supported_types/nvidia-233/create",
                f"{PCI}0000:5e:00.0/mdev_supported_types/nvidia-261/create")


SOME = settings(max_examples=25, stateful_step_count=30, deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
TestVfio = Host.TestCase
TestVfio.settings = SOME
TestMdev = MdevHost.TestCase
TestMdev.settings = SOME
