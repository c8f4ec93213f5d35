"""Running VMs as the kernel and libvirt show them: open groups, taken pages, files in /run."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from errno import EINVAL, ENODEV
from typing import TYPE_CHECKING
from uuid import NAMESPACE_DNS, uuid5

from tests.fakekernel.drivers import VfioPci
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.tree import File, Link, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

FIRST_PID = 1 << 22     # above pid_max: nobody's
STATUS = "/run/libvirt/qemu"


class QemuError(OSError):
    """QEMU does not start; `errno` as it saw it."""


@dataclass(frozen=True)
class Running:
    pid: int
    groups: tuple[int, ...]
    pages: dict[tuple[int, int], int]
    managed: Mapping[str, tuple[str | None, str | None]]    # function -> driver and driver_override before


class Vms:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.running: dict[str, Running] = {}
        self.started = 0
        kernel.tree.folder(STATUS)

    def start(self, vm: str, groups: tuple[int, ...], pages: Mapping[tuple[int, int], int],
              managed: tuple[str, ...]) -> None:
        assert vm not in self.running, f"{vm} runs already"
        before = {name: self._detach_for(name) for name in managed}
        functions = self.kernel.pci.functions
        behind = {group: None for name in managed if (group := functions[name].group) is not None}
        groups += tuple(group for group in behind if group not in groups)
        self.started += 1
        self.running[vm] = Running(FIRST_PID + self.started, groups, {}, before)
        try:
            self._open(vm, groups)
            self._allocate(vm, pages)
        except OSError as cause:
            self.stop(vm)
            raise QemuError(cause.errno, f"VM {vm}: {cause.strerror}: {cause.filename}") from None
        self._write_status(vm)
        self._write_open_files(vm)

    def stop(self, vm: str) -> None:
        """What libvirt does at the end: groups closed, memory back, managed functions back to their drivers."""
        gone = self.running.pop(vm)
        self.kernel.vfio.close(vm)
        for (node, size), number in gone.pages.items():
            self.kernel.nodes[node].give(size, number)
        for name, (driver, override) in gone.managed.items():
            self._rebind(self.kernel.pci.functions[name], driver, override)
        self.kernel.tree.drop(f"/proc/{gone.pid}")
        self.kernel.tree.drop(f"{STATUS}/{vm}.xml")
        self.kernel.tree.drop(f"{STATUS}/{vm}.pid")

    def _open(self, vm: str, groups: tuple[int, ...]) -> None:
        for group in groups:
            self.kernel.vfio.open(group, vm)
            for name in self.kernel.iommu.members[group]:
                self._must_be_usable(name, group)

    def _must_be_usable(self, name: str, group: int) -> None:
        """EINVAL: another driver makes the group not viable. ENODEV: a VF whose vGPU type is not set."""
        function = self.kernel.pci.functions.get(name)
        if function is None or function.is_bridge or function.driver is None:
            return
        if name not in self.kernel.vfio.served.get(group, ()):
            raise refuse(EINVAL, f"group {group} is not viable: {name} is bound to {function.driver}")
        if self.kernel.vgpu_is_unset(name):
            raise refuse(ENODEV, f"{name}: current_vgpu_type not configured")

    def _allocate(self, vm: str, pages: Mapping[tuple[int, int], int]) -> None:
        for (node, size), number in pages.items():
            self.kernel.nodes[node].take(size, number)
            self.running[vm].pages[node, size] = number

    def _detach_for(self, name: str) -> tuple[str | None, str | None]:
        function = self.kernel.pci.functions[name]
        before = function.driver, function.override
        if not isinstance(self.kernel.drivers.of(function), VfioPci):
            self._rebind(function, "vfio-pci", "vfio-pci")
        return before

    def _rebind(self, function: PciFunction, driver: str | None, override: str | None) -> None:
        function.override = override
        if function.driver != driver:
            self.kernel.drivers.detach(function)
            if driver:
                self.kernel.drivers.attach(function, driver)

    def _write_open_files(self, vm: str) -> None:
        """/proc/PID/fd of QEMU: one container, and each group."""
        nodes = ("vfio", *map(str, self.running[vm].groups))
        for descriptor, node in enumerate(nodes, start=20):
            self.kernel.tree.put(f"/proc/{self.running[vm].pid}/fd/{descriptor}", Link(f"/dev/vfio/{node}"))

    def _write_status(self, vm: str) -> None:
        """The parts of libvirt's status file that do not depend on its version. Source: virDomainObjFormat."""
        pid, domain_id = self.running[vm].pid, self.started
        names = sorted(name for group in self.running[vm].groups for name in self.kernel.vfio.served[group])
        devices = "".join(f"      {_hostdev(name)}\n" for name in names)
        text = (f"<domstatus state='running' reason='booted' pid='{pid}'>\n  <domain type='kvm' id='{domain_id}'>\n"
                f"    <name>{vm}</name>\n    <uuid>{uuid5(NAMESPACE_DNS, vm)}</uuid>\n"
                f"    <devices>\n{devices}    </devices>\n  </domain>\n</domstatus>")
        self.kernel.tree.put(f"{STATUS}/{vm}.xml", File(text))
        self.kernel.tree.put(f"{STATUS}/{vm}.pid", File(str(pid)))


def _hostdev(name: str) -> str:
    if ":" not in name:
        return (f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{name}'/>"
                "</source></hostdev>")
    domain, bus, rest = name.split(":")
    slot, function = rest.split(".")
    return (f"<hostdev mode='subsystem' type='pci'><driver name='vfio'/><source><address domain='0x{domain}' "
            f"bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")
