"""Actions against a kernel that refuses, lies, and has VMs inside: all is done, or all is as it was."""
from __future__ import annotations

from contextlib import suppress
from errno import EACCES, EBUSY, EIO, ENOSPC, EPERM, EUSERS

import pytest

from kvm_gpu.apply import InUse, apply, undo
from kvm_gpu.errors import HostError
from kvm_gpu.model import Action, Attribute, Command, Driver, Mdev
from kvm_gpu.sysfs import DEVICES, MDEVS, WriteError
from tests.fakekernel import FakeSysfs, Kernel, QemuError, hosts

UUID = "11111111-0000-4000-8000-000000000101"
VGPU = f"{DEVICES}0000:25:00.4/nvidia/current_vgpu_type"    # host a16-vfio, IOMMU group 10
NEXT_VGPU = f"{DEVICES}0000:25:00.5/nvidia/current_vgpu_type"   # the same GPU, group 11
NUMVFS = f"{DEVICES}0000:25:00.0/sriov_numvfs"
T4_TYPES = f"{DEVICES}0000:3b:00.0/mdev_supported_types/"   # host t4-mdev

SET_1Q = Attribute(VGPU, "711", "0", "0")
NEXT_1Q = Attribute(NEXT_VGPU, "711", "0", "0")


def machine(name: str) -> tuple[Kernel, FakeSysfs]:
    kernel = hosts.load(name)
    return kernel, FakeSysfs(kernel)


def writes(kernel: Kernel) -> list[tuple[str, str, str]]:
    return [tuple(write) for write in kernel.writes]


# ---- attributes ----

def test_a_type_is_set_once_and_taken_away_once() -> None:
    kernel, sysfs = machine("a16-vfio")
    before = kernel.snapshot()
    apply(sysfs, (SET_1Q, NEXT_1Q))
    assert (sysfs.read(VGPU), sysfs.read(NEXT_VGPU)) == ("711", "711")
    apply(sysfs, (SET_1Q, NEXT_1Q))
    assert writes(kernel) == [(VGPU, "711", ""), (NEXT_VGPU, "711", "")]
    undo(sysfs, (SET_1Q, NEXT_1Q))
    undo(sysfs, (SET_1Q, NEXT_1Q))
    assert writes(kernel)[2:] == [(NEXT_VGPU, "0", ""), (VGPU, "0", "")]
    assert kernel.snapshot() == before


def test_another_type_goes_through_zero_and_back() -> None:
    kernel, sysfs = machine("a16-vfio")
    kernel.write(VGPU, "711")
    kernel.writes.clear()
    retype = Attribute(VGPU, "713", "711", "0")
    apply(sysfs, (retype,))
    undo(sysfs, (retype,))
    assert writes(kernel) == [(VGPU, "0", ""), (VGPU, "713", ""), (VGPU, "0", ""), (VGPU, "711", "")]


@pytest.mark.parametrize("half", ["711", "0", "713"])
def test_what_was_left_half_done_is_finished_or_undone(half: str) -> None:
    retype = Attribute(VGPU, "713", "711", "0")
    for function, value in ((apply, "713"), (undo, "711")):
        kernel, sysfs = machine("a16-vfio")
        if half != "0":
            kernel.write(VGPU, half)
        function(sysfs, (retype,))
        assert sysfs.read(VGPU) == value


def test_what_somebody_else_changed_stays() -> None:
    kernel, sysfs = machine("a16-vfio")
    kernel.write(VGPU, "715")
    kernel.writes.clear()
    for function in (apply, undo):
        with pytest.raises(HostError) as caught:
            function(sysfs, (SET_1Q,))
        assert str(caught.value) == f"{VGPU}: reads '715', neither '0' as found nor '711' as set"
    assert writes(kernel) == []


def test_a_file_that_is_missing() -> None:
    kernel, sysfs = machine("a16-vfio")
    gone = Attribute(f"{DEVICES}0000:99:00.0/sriov_numvfs", "4", "0", "0")
    with pytest.raises(HostError, match=f"^{gone.path}: does not exist; undone: {VGPU}$"):
        apply(sysfs, (SET_1Q, gone))
    assert sysfs.read(VGPU) == "0"
    kernel.writes.clear()
    undo(sysfs, (gone, Driver("0000:99:00.0", "vfio-pci", None), Mdev(UUID, f"{DEVICES}0000:99:00.0/types/t-1")))
    assert writes(kernel) == []


@pytest.mark.parametrize(("errno", "name", "hint"), [
    (EBUSY, "EBUSY", "something still uses it: a VM, a monitoring tool, or an earlier setting that has to go first"),
    (EPERM, "EPERM", "the driver forbids it in this state: does the type fit beside what the board holds?"),
    (EIO, "EIO",
     "the driver could not do it: see the kernel's log, and whether the type fits beside what the board holds"),
    (EACCES, "EACCES", "the file is read-only: is /sys mounted read-only, or is this not root?"),
    (ENOSPC, "ENOSPC", "no instance of this type is left"),
], ids=lambda value: value if isinstance(value, str) and value.startswith("E") else "")
def test_a_refused_write_says_why_and_undoes_the_rest(errno: int, name: str, hint: str) -> None:
    kernel, sysfs = machine("a16-vfio")
    before = kernel.snapshot()
    kernel.fail(NEXT_VGPU, errno)
    with pytest.raises(HostError) as caught:
        apply(sysfs, (SET_1Q, NEXT_1Q))
    assert str(caught.value) == f"{NEXT_VGPU}: writing '711': {name}; undone: {VGPU}"
    assert (caught.value.hint, caught.value.exit_code) == (hint, 4)
    assert kernel.snapshot() == before


def test_a_size_that_does_not_fit_beside_the_first_is_put_back() -> None:
    kernel, sysfs = machine("a16-vfio")
    kernel.write(VGPU, "711")
    kernel.write(NEXT_VGPU, "711")
    before = kernel.snapshot()
    with pytest.raises(HostError, match=f"^{NEXT_VGPU}: writing '713': EIO$"):
        apply(sysfs, (Attribute(NEXT_VGPU, "713", "711", "0"),))
    assert kernel.snapshot() == before


def test_a_store_that_lies() -> None:
    kernel, sysfs = machine("a16-vfio")
    before = kernel.snapshot()
    kernel.lie(NEXT_VGPU)
    with pytest.raises(HostError) as caught:
        apply(sysfs, (SET_1Q, NEXT_1Q))
    assert str(caught.value) == f"{NEXT_VGPU}: wrote '711', reads '0'; undone: {VGPU}"
    assert kernel.snapshot() == before


def test_a_driver_that_makes_something_else_is_put_back() -> None:
    kernel, sysfs = machine("mi300x-gim")
    mode = f"{DEVICES}0000:05:00.0/memory_partition_mode"
    before = kernel.snapshot()
    with pytest.raises(HostError) as caught:
        apply(sysfs, (Attribute(mode, "NPS8", "NPS1"),))    # this driver makes NPS4 of it
    assert str(caught.value) == f"{mode}: wrote 'NPS8', reads 'NPS4'"
    assert kernel.snapshot() == before


def test_what_cannot_be_undone_is_told_and_does_not_keep_the_others() -> None:
    kernel, sysfs = machine("a16-vfio")
    third = SET_1Q._replace(path=VGPU.replace("00.4", "00.6"))
    apply(sysfs, (SET_1Q, NEXT_1Q))
    kernel.fail(third.path, EIO)
    kernel.fail(NEXT_VGPU, EPERM)
    with pytest.raises(HostError) as caught:
        apply(sysfs, (SET_1Q, NEXT_1Q, third))
    assert str(caught.value) == (f"{third.path}: writing '711': EIO; not undone: {NEXT_VGPU}: writing '0': EPERM;"
                                 f" undone: {VGPU}")
    assert [sysfs.read(path) for path in (VGPU, NEXT_VGPU)] == ["0", "711"]
    kernel.fail(NEXT_VGPU, EPERM)
    apply(sysfs, (SET_1Q,))
    with pytest.raises(HostError, match=f"^{NEXT_VGPU}: writing '0': EPERM$"):
        undo(sysfs, (SET_1Q, NEXT_1Q))
    assert [sysfs.read(path) for path in (VGPU, NEXT_VGPU)] == ["0", "711"]


def test_both_failures_of_an_undo_are_told() -> None:
    kernel, sysfs = machine("a16-vfio")
    apply(sysfs, (SET_1Q, NEXT_1Q))
    for path in (VGPU, NEXT_VGPU):
        kernel.fail(path, EIO)
    with pytest.raises(HostError, match=f"^{NEXT_VGPU}: writing '0': EIO; {VGPU}: writing '0': EIO$"):
        undo(sysfs, (SET_1Q, NEXT_1Q))


def test_a_step_that_cannot_be_put_back_says_so() -> None:
    class TakesAwayOnly(FakeSysfs):
        def write(self, path: str, value: str) -> None:
            if value != "0":
                raise WriteError(path, value, EIO)
            super().write(path, value)

    kernel = hosts.load("a16-vfio")
    kernel.write(VGPU, "711")
    with pytest.raises(HostError) as caught:
        apply(TakesAwayOnly(kernel), (Attribute(VGPU, "713", "711", "0"),))
    assert str(caught.value) == f"{VGPU}: writing '713': EIO; not put back: {VGPU}: writing '711': EIO"


# ---- with a VM inside ----

def test_a_type_is_never_taken_from_a_running_vm() -> None:
    kernel, sysfs = machine("a16-vfio")
    apply(sysfs, (SET_1Q, NEXT_1Q))
    kernel.vm_start("one-1", groups=(10,))
    kernel.writes.clear()
    with pytest.raises(InUse) as caught:
        undo(sysfs, (SET_1Q, NEXT_1Q))
    assert str(caught.value) == "0000:25:00.4: a VM has it open (VFIO group 10)"
    assert (caught.value.device, caught.value.group, caught.value.exit_code) == ("0000:25:00.4", 10, 4)
    assert writes(kernel) == [(NEXT_VGPU, "0", "")]
    kernel.vm_stop("one-1")
    undo(sysfs, (SET_1Q, NEXT_1Q))
    assert (sysfs.read(VGPU), kernel.vfio.user) == ("0", {})


def test_a_type_is_not_changed_under_a_running_vm() -> None:
    kernel, sysfs = machine("a16-vfio")
    apply(sysfs, (SET_1Q,))
    kernel.vm_start("one-1", groups=(10,))
    kernel.writes.clear()
    with pytest.raises(InUse, match=f"^0000:25:00.4: a VM has it open \\(VFIO group 10\\); undone: {NEXT_VGPU}$"):
        apply(sysfs, (NEXT_1Q, Attribute(VGPU, "713", "711", "0")))
    assert writes(kernel) == [(NEXT_VGPU, "711", ""), (NEXT_VGPU, "0", "")]


def test_what_is_so_already_is_no_matter_of_who_uses_it() -> None:
    kernel, sysfs = machine("a16-vfio")
    apply(sysfs, (SET_1Q,))
    kernel.vm_start("one-1", groups=(10,))
    apply(sysfs, (SET_1Q,))
    assert sysfs.read(VGPU) == "711"


def all_vfs_off(sysfs: FakeSysfs, pf: str) -> Attribute:
    path = f"{DEVICES}{pf}/sriov_numvfs"
    return Attribute(path, "0", sysfs.read(path) or "", "0")


def test_vfs_stay_while_a_vm_has_one_of_them() -> None:
    kernel, sysfs = machine("flex170")
    off = all_vfs_off(sysfs, "0000:4d:00.0")
    kernel.vm_start("one-1", managed=("0000:4d:00.3",))
    before = kernel.snapshot()
    with pytest.raises(InUse, match=r"^0000:4d:00.3: a VM has it open \(VFIO group 10\)$"):
        apply(sysfs, (off,))
    assert kernel.snapshot() == before
    kernel.vm_stop("one-1")
    apply(sysfs, (off,))
    assert (sysfs.read(off.path), kernel.vfio.user) == ("0", {})
    undo(sysfs, (off,))
    assert sysfs.read(off.path) == "4"


def test_vfs_stay_while_a_vm_has_an_mdev_on_one_of_them() -> None:
    """The mdev has a group of its own: the VF's tells nothing."""
    kernel, sysfs = machine("a40-mdev")
    apply(sysfs, (Mdev(UUID, f"{DEVICES}0000:67:00.6/mdev_supported_types/nvidia-557"),))
    group = int(sysfs.link(f"{MDEVS}{UUID}/iommu_group") or 0)
    kernel.vm_start("one-1", groups=(group,))
    before = kernel.snapshot()
    with pytest.raises(InUse, match=f"^{UUID}: a VM has it open \\(VFIO group {group}\\)$"):
        apply(sysfs, (all_vfs_off(sysfs, "0000:67:00.0"),))
    assert kernel.snapshot() == before


def test_no_vm_can_start_during_the_write() -> None:
    kernel, sysfs = machine("a16-vfio")
    apply(sysfs, (SET_1Q,))
    refused = []

    class StartsAVm(FakeSysfs):
        def write(self, path: str, value: str) -> None:
            with pytest.raises(QemuError) as caught:
                kernel.vm_start("one-1", groups=(10,))
            refused.append(caught.value.errno)
            super().write(path, value)

    undo(StartsAVm(kernel), (SET_1Q,))
    assert (refused, kernel.vfio.user) == ([EBUSY], {})


# ---- mediated devices ----

def mdev(type_id: str = "nvidia-222", uuid: str = UUID, types: str = T4_TYPES) -> Mdev:
    return Mdev(uuid, types + type_id)


def test_an_mdev_is_made_once_and_removed_once() -> None:
    kernel, sysfs = machine("t4-mdev")
    before = kernel.snapshot()
    apply(sysfs, (mdev(),))
    apply(sysfs, (mdev(),))
    assert sysfs.list(MDEVS) == (UUID,)
    assert writes(kernel) == [(T4_TYPES + "nvidia-222/create", UUID, "")]
    undo(sysfs, (mdev(),))
    undo(sysfs, (mdev(),))
    assert writes(kernel)[1:] == [(f"{MDEVS}{UUID}/remove", "1", "")]
    assert kernel.snapshot() == before


OTHER_T4 = T4_TYPES.replace("3b", "af")


@pytest.mark.parametrize("foreign", [mdev("nvidia-223"), mdev(types=OTHER_T4)], ids=["type", "parent"])
def test_a_foreign_mdev_with_our_uuid_is_neither_adopted_nor_removed(foreign: Mdev) -> None:
    kernel, sysfs = machine("t4-mdev")
    kernel.write(foreign.type_path + "/create", UUID)
    before = kernel.snapshot()
    kind, parent = foreign.type_path.rpartition("/")[2], foreign.type_path.split("/")[5]
    with pytest.raises(HostError) as caught:
        apply(sysfs, (mdev(uuid=UUID[:-1] + "2", types=OTHER_T4), mdev()))
    assert str(caught.value) == (f"mdev {UUID}: is of type {kind} on {parent}, wanted was {mdev().type_path};"
                                 f" undone: mdev {UUID[:-1]}2")
    undo(sysfs, (mdev(),))
    assert kernel.snapshot() == before


def test_no_instance_left() -> None:
    kernel, sysfs = machine("t4-mdev")
    kernel.fail(T4_TYPES + "nvidia-222/create", EUSERS)
    with pytest.raises(HostError, match=f"^{T4_TYPES}nvidia-222/create: writing '{UUID}': EUSERS$") as caught:
        apply(sysfs, (mdev(),))
    assert caught.value.hint == "no instance of this type is left"


def test_an_mdev_in_a_vm_is_not_removed() -> None:
    kernel, sysfs = machine("t4-mdev")
    apply(sysfs, (mdev(),))
    group = int(sysfs.link(f"{MDEVS}{UUID}/iommu_group") or 0)
    kernel.vm_start("one-1", groups=(group,))
    kernel.writes.clear()
    with pytest.raises(InUse, match=f"^{UUID}: a VM has it open \\(VFIO group {group}\\)$"):
        undo(sysfs, (mdev(),))
    assert (writes(kernel), sysfs.list(MDEVS)) == ([], (UUID,))


def test_an_mdev_that_stays_after_its_removal_is_told() -> None:
    kernel, sysfs = machine("t4-mdev")
    apply(sysfs, (mdev(),))
    kernel.lie(f"{MDEVS}{UUID}/remove")
    with pytest.raises(HostError, match=f"^{MDEVS}{UUID}: still there after its removal$"):
        undo(sysfs, (mdev(),))


# ---- drivers ----

CARD = "0000:3b:00.0"
TO_VFIO = Driver(CARD, "vfio-pci", "nvidia")


def bound(kernel: Kernel, function: str = CARD) -> tuple[str | None, str | None]:
    return kernel.pci.functions[function].driver, kernel.pci.functions[function].override


def test_a_driver_is_bound_and_the_one_before_comes_back() -> None:
    kernel, sysfs = machine("rtx6000x4")
    before = kernel.snapshot()
    for _ in range(2):
        apply(sysfs, (TO_VFIO,))
        assert bound(kernel) == ("vfio-pci", "vfio-pci")
    assert len(writes(kernel)) == 3
    for _ in range(2):
        undo(sysfs, (TO_VFIO,))
    assert kernel.snapshot() == before


def test_a_function_is_left_without_driver_and_gets_it_back() -> None:
    kernel, sysfs = machine("rtx6000x4")
    before = kernel.snapshot()
    off = Driver(CARD, None, "nvidia")
    apply(sysfs, (off,))
    assert bound(kernel) == (None, None)
    undo(sysfs, (off,))
    assert kernel.snapshot() == before


def test_a_driver_that_is_not_there() -> None:
    kernel, sysfs = machine("rtx6000x4")
    kernel.write(f"{DEVICES}{CARD}/driver_override", "nvidia")      # as driverctl leaves it
    before = kernel.snapshot()
    with pytest.raises(HostError) as caught:
        apply(sysfs, (TO_VFIO._replace(driver="missing"),))
    assert str(caught.value) == f"{DEVICES}{CARD}: bound to None, wanted was missing"
    assert caught.value.hint == "is the driver's module loaded?"
    assert kernel.snapshot() == before


def test_a_driver_that_somebody_else_bound_stays() -> None:
    kernel, sysfs = machine("rtx6000x4")
    before = kernel.snapshot()
    other = Driver(CARD, "vfio-pci", "nouveau")
    for function in (apply, undo):
        with pytest.raises(HostError) as caught:
            function(sysfs, (other,))
        assert str(caught.value) == f"{DEVICES}{CARD}: bound to nvidia, neither nouveau as found nor vfio-pci as set"
    assert kernel.snapshot() == before


def test_a_function_in_a_vm_keeps_its_driver() -> None:
    kernel, sysfs = machine("rtx6000x4")
    kernel.vm_start("one-1", managed=tuple(f"0000:3b:00.{n}" for n in range(4)))
    kernel.writes.clear()
    with pytest.raises(InUse, match=f"^{CARD}: a VM has it open \\(VFIO group 1\\)$"):
        undo(sysfs, (TO_VFIO,))
    assert writes(kernel) == []


def test_a_pf_keeps_its_driver_while_a_vm_has_one_of_its_vfs() -> None:
    kernel, sysfs = machine("flex170")
    kernel.vm_start("one-1", managed=("0000:4d:00.3",))
    kernel.writes.clear()
    with pytest.raises(InUse, match=r"^0000:4d:00.3: a VM has it open \(VFIO group 10\)$"):
        apply(sysfs, (Driver("0000:4d:00.0", "vfio-pci", "i915"),))
    assert writes(kernel) == []


def test_a_function_that_is_not_there() -> None:
    _, sysfs = machine("rtx6000x4")
    with pytest.raises(HostError, match=f"^{DEVICES}0000:99:00.0: does not exist$"):
        apply(sysfs, (Driver("0000:99:00.0", "vfio-pci", None),))


# ---- killed on the way ----

class Killed(BaseException):
    pass


class DiesAfter(FakeSysfs):
    """The process is killed when it has written `writes` times."""

    def __init__(self, kernel: Kernel, writes: int) -> None:
        super().__init__(kernel)
        self.left = writes

    def write(self, path: str, value: str) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        super().write(path, value)


@pytest.mark.parametrize(("host", "actions"), [
    ("a16-vfio", (SET_1Q, NEXT_1Q)),
    ("a16-vfio", (Attribute(NUMVFS, "4", "16", "0"), SET_1Q)),
    ("t4-mdev", (mdev(), mdev(uuid=UUID[:-1] + "2", types=OTHER_T4))),
    ("rtx6000x4", (TO_VFIO, Driver("0000:3b:00.1", None, "snd_hda_intel"))),
], ids=["types", "numvfs", "mdevs", "drivers"])
def test_whoever_is_killed_midway_the_next_one_arrives(host: str, actions: tuple[Action, ...]) -> None:
    kernel, sysfs = machine(host)
    before = kernel.snapshot()
    apply(sysfs, actions)
    total, done = len(kernel.writes), kernel.snapshot()
    assert total > 1
    for function, start, end in ((apply, before, done), (undo, done, before)):
        for number in range(total):
            kernel, sysfs = machine(host)
            if function is undo:
                apply(sysfs, actions)
            assert kernel.snapshot() == start
            with pytest.raises(Killed):
                function(DiesAfter(kernel, number), actions)
            function(sysfs, actions)
            assert kernel.snapshot() == end


@pytest.mark.parametrize(("host", "actions"), [("a16-vfio", (SET_1Q, NEXT_1Q)), ("t4-mdev", (mdev(),)),
                                               ("rtx6000x4", (TO_VFIO,))], ids=["types", "mdev", "driver"])
def test_whoever_is_killed_midway_can_be_undone(host: str, actions: tuple[Action, ...]) -> None:
    for number in range(3):
        kernel, sysfs = machine(host)
        before = kernel.snapshot()
        with suppress(Killed):
            apply(DiesAfter(kernel, number), actions)
        undo(sysfs, actions)
        assert kernel.snapshot() == before


# ---- commands ----

def test_a_command_is_refused_and_what_was_before_it_undone() -> None:
    _, sysfs = machine("a16-vfio")
    with pytest.raises(HostError, match=f"^tool on: commands are not run yet; undone: {VGPU}$"):
        apply(sysfs, (SET_1Q, Command(("tool", "on"), ("tool", "off"), "tool")))
    assert sysfs.read(VGPU) == "0"
