"""Binding: driver_override, bind, unbind, drivers_probe.
Source: drivers/base/bus.c, drivers/base/dd.c, pci_device_can_probe in drivers/pci/pci-driver.c."""
from __future__ import annotations

from errno import EBUSY, ENODEV
from typing import TYPE_CHECKING

from tests.fakekernel.pci import PciFunction
from tests.fakekernel.tree import File, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

DRIVERS = "/sys/bus/pci/drivers"


class Driver:
    """A driver without a part in sharing GPUs. Others say what they do when a function comes and goes."""
    sriov_configure = True

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name

    def attach(self, function: PciFunction) -> None:
        pass

    def detach(self, function: PciFunction) -> None:
        pass

    def vfs_disabled(self, pf: PciFunction) -> None:
        pass


class VfioPci(Driver):
    sriov_configure = False     # its parameter enable_sriov is off

    def attach(self, function: PciFunction) -> None:
        self.kernel.vfio.serve(function.group, function.name)

    def detach(self, function: PciFunction) -> None:
        self.kernel.vfio.withdraw(function.group, function.name)


class Drivers:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tree = kernel.tree
        self.loaded: dict[str, Driver] = {}
        self.tree.put("/sys/bus/pci/drivers_probe", File(None, self._drivers_probe))

    def load(self, driver: Driver) -> None:
        self.loaded[driver.name] = driver
        folder = f"{DRIVERS}/{driver.name}"
        self.tree.put(f"{folder}/bind", File(None, lambda name: self._bind(driver.name, name)))
        self.tree.put(f"{folder}/unbind", File(None, lambda name: self._unbind(driver.name, name)))

    def of(self, function: PciFunction) -> Driver | None:
        return self.loaded.get(function.driver or "")

    def probe(self, function: PciFunction) -> None:
        """The driver that matches takes the function, if it is allowed to."""
        name = function.override or function.kind.driver
        if function.driver is None and name in self.loaded and _can_probe(function):
            self.attach(function, name)

    def attach(self, function: PciFunction, name: str) -> None:
        function.driver = name
        self.tree.link(f"{function.folder}/driver", f"{DRIVERS}/{name}")
        self.tree.link(f"{DRIVERS}/{name}/{function.name}", function.folder)
        self.loaded[name].attach(function)

    def detach(self, function: PciFunction) -> None:
        """A driver that leaves takes its VFs with it. Raises WouldHang while a VM has the function."""
        driver = self.of(function)
        if driver is None:
            return
        self.kernel.sriov.disable(function)
        driver.detach(function)
        function.driver = None
        self.tree.drop(f"{function.folder}/driver")
        self.tree.drop(f"{DRIVERS}/{driver.name}/{function.name}")

    def _drivers_probe(self, name: str) -> None:
        self.probe(self._function(name))

    def _bind(self, driver: str, name: str) -> None:
        function = self._function(name)
        if driver != (function.override or function.kind.driver):
            raise refuse(ENODEV, f"{driver} does not match {name}")
        if function.driver is not None:
            raise refuse(EBUSY, name)
        if not _can_probe(function):
            raise refuse(ENODEV, name)
        self.attach(function, driver)

    def _unbind(self, driver: str, name: str) -> None:
        function = self._function(name)
        if function.driver != driver:
            raise refuse(ENODEV, name)
        self.detach(function)

    def _function(self, name: str) -> PciFunction:
        if name not in self.kernel.pci.functions:
            raise refuse(ENODEV, name)
        return self.kernel.pci.functions[name]


def _can_probe(function: PciFunction) -> bool:
    return function.physfn is None or function.physfn.autoprobe or function.override is not None
