"""PCI functions and the bridges above them: their files, links and slots.
Source: Documentation/ABI/testing/sysfs-bus-pci; drivers/pci/pci-sysfs.c."""
from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.fakekernel.config_space import config_space
from tests.fakekernel.machine import Bridge, Card, Kind, Machine
from tests.fakekernel.resources import Resources
from tests.fakekernel.tree import File, Show, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

DEVICES = "/sys/bus/pci/devices"
BRIDGE = Kind("8086:352a", 0x060400, "pcieport")
VGA = 0x0300


class PciFunction:
    """One function. `name` is its address; `driver` what is bound; `override` its driver_override."""

    def __init__(self, name: str, kind: Kind, card: Card, folder: str) -> None:
        self.name = name
        self.kind = kind
        self.card = card
        self.folder = folder
        self.driver: str | None = None
        self.override: str | None = None
        self.group: int | None = None
        self.physfn: PciFunction | None = None
        self.virtfns: list[PciFunction] = []
        self.autoprobe = True

    @property
    def board(self) -> PciFunction:
        return self.physfn or self

    @property
    def is_bridge(self) -> bool:
        return self.kind.pci_class >> 16 == 0x06

    def uevent(self) -> str:
        vendor, device = self.kind.id.upper().split(":")
        rows = [f"DRIVER={self.driver}"] if self.driver else []
        rows += [f"PCI_CLASS={self.kind.pci_class:X}", f"PCI_ID={vendor}:{device}",
                 f"PCI_SUBSYS_ID={self.kind.subsystem.upper()}", f"PCI_SLOT_NAME={self.name}"]
        return "\n".join(rows)

    def set_override(self, text: str) -> None:
        self.override = text or None


class PciBus:
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel = kernel
        self.tree = kernel.tree
        self.machine = machine
        self.functions: dict[str, PciFunction] = {}
        self.resources = Resources()
        self.tree.folder(DEVICES)

    def plug(self, card: Card) -> None:
        """Bridges above, every function of the card, one IOMMU group, the slot's label."""
        above = self._bridges(card)
        kinds = (card.kind, *card.kind.functions)
        group = card.group
        for number, kind in enumerate(kinds):
            function = PciFunction(f"{card.at[:-1]}{number}", kind, card, f"{above}/{card.at[:-1]}{number}")
            group = self.add(function, group)
        if card.slot:
            self.tree.put(f"/sys/bus/pci/slots/{card.slot}/address", File(card.at.rpartition(".")[0]))

    def _bridges(self, card: Card) -> str:
        """The folder above the card; bridges not yet there appear."""
        folder = "/sys/devices"
        for name in card.path.split("/"):
            folder += f"/{name}"
            if not name.startswith("pci") and name not in self.functions:
                said = self.machine.bridges.get(name, Bridge())
                node = card.node if said.node is None else said.node
                self.add(PciFunction(name, BRIDGE, Card(BRIDGE, name, "", node), folder), said.group)
        return folder

    def add(self, function: PciFunction, group: int | None = None) -> int | None:
        """The function appears, without a driver. Its IOMMU group."""
        self.functions[function.name] = function
        self._files(function)
        self.tree.link(f"{DEVICES}/{function.name}", function.folder)
        function.group = self.kernel.iommu.join(function.name, function.folder, group)
        return function.group

    def remove(self, function: PciFunction) -> None:
        self.kernel.iommu.leave(function.name, function.group)
        self.tree.drop(f"{DEVICES}/{function.name}")
        self.tree.drop(function.folder)
        del self.functions[function.name]

    def _files(self, function: PciFunction) -> None:
        for name, show in self._attributes(function).items():
            fault = function.card.fails.get(name)
            self.tree.put(f"{function.folder}/{name}", File(_failing(fault, name) if fault else show))
        self.tree.put(f"{function.folder}/driver_override",
                      File(lambda: function.override or "(null)", function.set_override))

    def _attributes(self, function: PciFunction) -> dict[str, Show]:
        kind, card = function.kind, function.card
        vendor, device = kind.id.split(":")
        sub_vendor, sub_device = kind.subsystem.split(":")
        shown: dict[str, Show] = {
            "vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{kind.pci_class:06x}",
            "subsystem_vendor": f"0x{sub_vendor}", "subsystem_device": f"0x{sub_device}",
            "numa_node": str(card.node), "local_cpulist": self._local_cpulist(card),
            "resource": self.resources.lines(function), "uevent": function.uevent,
            "config": config_space(kind, None if function.physfn else card.serial),
        }
        if kind.reset_method:
            shown["reset_method"] = kind.reset_method
        if kind.pci_class >> 8 == VGA:
            shown["boot_vga"] = str(int(card.boot_vga))
        if function.physfn:
            shown |= {"current_link_speed": "Unknown", "current_link_width": "0"}
        return shown

    def _local_cpulist(self, card: Card) -> str:
        if card.local_cpulist is not None:
            return card.local_cpulist
        return self.machine.all_cpus if card.node < 0 else self.machine.nodes[card.node].cpus


def _failing(fault: str, name: str) -> Show:
    def show() -> str:
        raise refuse(getattr(errno, fault), name)
    return show
