"""Drivers whose mdev types are shares of one total: i915 with GVT-g, and the kernel's sample mtty."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakekernel.drivers import Driver
from tests.fakekernel.machine import ShareType
from tests.fakekernel.mdev import MdevType, Parent
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.room import ShareRoom

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

MTTY = "/sys/devices/virtual/mtty/mtty"


class I915(Driver):
    def attach(self, function: PciFunction) -> None:
        if function.kind.shares:
            room = ShareRoom(function.kind.shares, function.kind.units)
            types = mdev_types(self.name, function.kind.shares)
            self.kernel.mdev.register(Parent(function.name, function.folder, room, types))

    def detach(self, function: PciFunction) -> None:
        if function.name in self.kernel.mdev.parents:
            self.kernel.mdev.unregister(function.name)


def load_mtty(kernel: Kernel) -> None:
    """A parent that is no PCI device."""
    shares = kernel.machine.mtty
    if shares:
        kernel.tree.folder(MTTY)
        room = ShareRoom(shares, kernel.machine.mtty_ports)
        kernel.mdev.register(Parent("mtty", MTTY, room, mdev_types("mtty", shares)))


def mdev_types(driver: str, shares: tuple[ShareType, ...]) -> tuple[MdevType, ...]:
    return tuple(MdevType(f"{driver}-{share.suffix}", share.name, share.description, share) for share in shares)
