"""One machine's kernel: boots from a description, answers reads and writes, and lets a test turn its knobs."""
from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Mapping
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from tests.fakekernel.drivers import Driver, Drivers, VfioPci
from tests.fakekernel.faults import Faults
from tests.fakekernel.gim import Gim
from tests.fakekernel.iommu import IommuGroups
from tests.fakekernel.machine import Machine
from tests.fakekernel.mdev import MdevBus
from tests.fakekernel.nodes import build_nodes
from tests.fakekernel.nvidia import Nvidia
from tests.fakekernel.pci import DEVICES, PciBus, PciFunction
from tests.fakekernel.room import VgpuRoom
from tests.fakekernel.shares import I915, load_mtty
from tests.fakekernel.sriov import SriovCore
from tests.fakekernel.tables import write_table
from tests.fakekernel.tree import CharDevice, File, Folder, Link, Tree, refuse
from tests.fakekernel.vfio import Vfio
from tests.fakekernel.vms import Vms
from tests.fakekernel.xe import Xe

DRIVERS = {"vfio-pci": VfioPci, "nvidia": Nvidia, "gim": Gim, "i915": I915, "xe": Xe}


class Write(NamedTuple):
    path: str
    value: str
    error: str      # "EBUSY"; empty: accepted


class Kernel:
    """`writes` is the log. `machine` is the description; `setup` repeats what its operator does after a boot."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lock = threading.RLock()
        self.writes: list[Write] = []
        self.faults = Faults()
        self.boots = 0
        self._boot()
        self.setup()
        self.writes.clear()

    # ---- the machine comes up ----------------------------------------------------------------------

    def _boot(self) -> None:
        self.boots += 1
        self.boot_id = str(uuid5(NAMESPACE_DNS, f"{self.machine.name} boot {self.boots}"))
        self.tree = Tree()
        self.tree.put("/proc/sys/kernel/random/boot_id", File(self.boot_id))
        self.iommu = IommuGroups(self.tree, self.machine.iommu, self.machine.reserved_groups)
        self.vfio = Vfio(self.tree)
        self.nodes = build_nodes(self.tree, self.machine)
        self.pci = PciBus(self, self.machine)
        self.mdev = MdevBus(self)
        self.sriov = SriovCore(self)
        self.drivers = Drivers(self)
        self.vms = Vms(self)
        self.rooms: dict[str, VgpuRoom] = {}
        self._load_drivers()
        for card in self.machine.cards:
            self.pci.plug(card)
        for function in tuple(self.pci.functions.values()):
            self.sriov.announce(function)
            self.drivers.probe(function)
        load_mtty(self)
        write_table(self)

    def _load_drivers(self) -> None:
        kinds = [kind for card in self.machine.cards for kind in (card.kind, *card.kind.functions)]
        matching = [kind.driver for kind in kinds] + [kind.sriov.driver for kind in kinds if kind.sriov]
        for name in sorted({"vfio-pci", "pcieport", *filter(None, matching)}):
            self.drivers.load(DRIVERS.get(name, Driver)(self, name))

    def setup(self) -> None:
        for card in self.machine.cards:
            if card.vfs:
                self.write(f"{DEVICES}/{card.at}/sriov_numvfs", str(card.vfs))
        for path, value in self.machine.setup:
            self.write(path, value)

    # ---- the five answers --------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Content of a file as read(2) gives it. Raises OSError."""
        with self.lock:
            file = self.tree.file(path)
            content = file.content()
            if file.looked:
                file.looked()
            return content

    def write(self, path: str, value: str) -> None:
        """One write(2), a newline at the end allowed. Raises OSError; WouldHang where the real one never returns."""
        with self.lock:
            text = value.removesuffix("\n")
            try:
                self._write(path, text)
            except OSError as error:
                self.writes.append(Write(path, text, errnos.errorcode[error.errno or 0]))
                raise
            self.writes.append(Write(path, text, ""))

    def _write(self, path: str, text: str) -> None:
        file = self.tree.file(path)
        if file.store is None:
            raise refuse(errnos.EACCES, path)
        fault = self.faults.next(self.tree, path)
        if fault is None:
            file.store(text)
        elif fault.errno:
            raise refuse(fault.errno, path)

    def target(self, path: str) -> str:
        """A symlink's text. Raises OSError, EINVAL for what is no link."""
        node = self.tree.resolve(path, follow=False)[1]
        if not isinstance(node, Link):
            raise refuse(errnos.EINVAL, path)
        return node.target

    def list(self, path: str) -> tuple[str, ...]:
        node = self.tree.resolve(path)[1]
        if not isinstance(node, Folder):
            raise refuse(errnos.ENOTDIR, path)
        return tuple(sorted(node))

    def open(self, path: str) -> int:
        """A handle on a VFIO group, or 0 for what needs none. Raises OSError."""
        with self.lock:
            node = self.tree.resolve(path)[1]
            return self.vfio.open(node.group) if isinstance(node, CharDevice) else 0

    def close(self, handle: int) -> None:
        with self.lock:
            self.vfio.close(handle)

    # ---- what drivers ask each other ---------------------------------------------------------------

    def vgpu_room(self, name: str) -> VgpuRoom:
        """The room of the board that a function belongs to."""
        board = self.pci.functions[name].board
        return self.rooms.setdefault(board.name, VgpuRoom(board.kind.vgpu_types))

    def vgpu_is_unset(self, name: str) -> bool:
        driver = self.drivers.of(self.pci.functions[name])
        return isinstance(driver, Nvidia) and name in driver.vgpus and driver.vgpus[name].now is None

    def must_be_idle(self, function: PciFunction) -> None:
        """Raises WouldHang while a VM has the function or an mdev on it."""
        self.vfio.must_be_idle(function.group, function.name)
        self.mdev.must_be_idle(function.name)

    def group_of(self, name: str) -> int | None:
        """IOMMU group of a function or an mdev."""
        return self.mdev.mdevs[name][1] if name in self.mdev.mdevs else self.pci.functions[name].group

    # ---- knobs for tests ---------------------------------------------------------------------------

    def vm_start(self, vm: str, groups: tuple[int, ...] = (), pages: Mapping[tuple[int, int], int] | None = None,
                 managed: tuple[str, ...] = ()) -> None:
        """A VM runs: `groups` open, `pages` {(node, size in KiB): number} taken, the functions `managed` bound to
        vfio-pci as libvirt's managed='yes' does. Raises QemuError with nothing changed."""
        with self.lock:
            self.vms.start(vm, tuple(groups), pages or {}, tuple(managed))

    def vm_stop(self, vm: str) -> None:
        with self.lock:
            self.vms.stop(vm)

    def reboot(self) -> None:
        """All is as after power on: no VM, no mdev, no vGPU, VFs only where a driver makes them. The log stays."""
        with self.lock:
            self._boot()

    def snapshot(self) -> dict[str, str]:
        """Everything visible: path -> content, "-> target", "E..." where reading fails, or "/" for a folder."""
        with self.lock:
            return {path: _visible(node) for path, node in self.tree.walk()}

    def fail(self, path: str, errno: int, times: int = 1) -> None:
        """The next writes to a file answer `errno`."""
        self.faults.add(path, errno, times)

    def lie(self, path: str, times: int = 1) -> None:
        """The next writes to a file succeed and do nothing."""
        self.faults.add(path, 0, times)

    def place(self, path: str, text: str = "") -> None:
        """An ordinary file, as for /run/kvm-gpu/ready; gone after a reboot."""
        self.tree.put(path, File(text))

    def tune(self, name: str, **values: object) -> None:
        """Set what `Room` calls so on a board or mdev parent: slow_looks=2, mixed=True, mig=True, instances={1: 3}."""
        room = self.mdev.parents[name].room if name in self.mdev.parents else self.vgpu_room(name)
        for key, value in values.items():
            assert hasattr(room, key), key
            setattr(room, key, value)


def _visible(node: object) -> str:
    if isinstance(node, Link):
        return f"-> {node.target}"
    if isinstance(node, Folder):
        return "/"
    if not isinstance(node, File):
        return "device"
    try:
        return node.content().decode("latin-1")
    except OSError as error:
        return errnos.errorcode[error.errno or 0]
