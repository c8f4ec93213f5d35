"""SR-IOV: VFs come and go with sriov_numvfs. Source: drivers/pci/iov.c, sriov_numvfs_store."""
from __future__ import annotations

import dataclasses
from errno import EBUSY, EINVAL, ENOENT, ERANGE
from typing import TYPE_CHECKING

from tests.fakekernel.machine import Kind, Sriov
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.tree import File, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel


class SriovCore:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tree = kernel.tree

    def announce(self, pf: PciFunction) -> None:
        """The files of a function that has the capability."""
        sriov = pf.kind.sriov
        if sriov is None:
            return

        def set_autoprobe(text: str) -> None:
            pf.autoprobe = _flag(text)

        files = {
            "sriov_totalvfs": File(str(sriov.total)),
            "sriov_numvfs": File(lambda: str(len(pf.virtfns)), lambda text: self._store(pf, sriov, text)),
            "sriov_offset": File(str(sriov.offset)),
            "sriov_stride": File(str(sriov.stride)),
            "sriov_vf_device": File(f"{int(sriov.id.partition(':')[2], 16):x}"),
            "sriov_drivers_autoprobe": File(lambda: str(int(pf.autoprobe)), set_autoprobe),
        }
        for name, file in files.items():
            self.tree.put(f"{pf.folder}/{name}", file)

    def _store(self, pf: PciFunction, sriov: Sriov, text: str) -> None:
        wanted = _u16(text)
        if wanted > sriov.total:
            raise refuse(ERANGE, "sriov_numvfs")
        if wanted == len(pf.virtfns):
            return
        driver = self.kernel.drivers.of(pf)
        if driver is None or not driver.sriov_configure:
            raise refuse(ENOENT, "sriov_numvfs")
        if wanted == 0:
            self.disable(pf)
        elif pf.virtfns:
            raise refuse(EBUSY, "sriov_numvfs")
        else:
            self.enable(pf, sriov, wanted)

    def enable(self, pf: PciFunction, sriov: Sriov, number: int) -> None:
        kind = _vf_kind(pf.kind, sriov)
        for index in range(number):
            name = vf_address(pf.name, sriov, index)
            vf = PciFunction(name, kind, pf.card, f"{pf.folder.rpartition('/')[0]}/{name}")
            vf.physfn = pf
            pf.virtfns.append(vf)
            self.kernel.pci.add(vf)
            self.tree.link(f"{vf.folder}/physfn", pf.folder)
            self.tree.link(f"{pf.folder}/virtfn{index}", vf.folder)
            self.kernel.drivers.probe(vf)

    def disable(self, pf: PciFunction) -> None:
        """All VFs go. Raises WouldHang, with nothing changed, while a VM has one."""
        for vf in pf.virtfns:
            self.kernel.must_be_idle(vf)
        for index, vf in enumerate(pf.virtfns):
            self.kernel.drivers.detach(vf)
            self.kernel.pci.remove(vf)
            self.tree.drop(f"{pf.folder}/virtfn{index}")
        driver = self.kernel.drivers.of(pf)
        if driver and pf.virtfns:
            driver.vfs_disabled(pf)
        pf.virtfns = []


def vf_address(pf: str, sriov: Sriov, index: int) -> str:
    """Routing id of the PF + offset + stride * index; it may carry into the next bus."""
    domain, bus, rest = pf.split(":")
    device, function = rest.split(".")
    rid = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
    rid += sriov.offset + sriov.stride * index
    return f"{domain}:{rid >> 8:02x}:{rid >> 3 & 31:02x}.{rid & 7}"


def _vf_kind(pf: Kind, sriov: Sriov) -> Kind:
    return dataclasses.replace(pf, id=sriov.id, driver=sriov.driver, bars=sriov.bars, sriov=None, functions=(),
                               subsystem=sriov.subsystem or pf.subsystem, reset_method="flr")


def _u16(text: str) -> int:
    """kstrtou16: EINVAL for no number, ERANGE beyond sixteen bits."""
    try:
        number = int(text, 0)
    except ValueError:
        raise refuse(EINVAL, text) from None
    if number < 0:
        raise refuse(EINVAL, text)
    if number > 0xffff:
        raise refuse(ERANGE, text)
    return number


def _flag(text: str) -> bool:
    """kstrtobool."""
    if text[:1].lower() not in ("0", "1", "y", "n"):
        raise refuse(EINVAL, text)
    return text[:1].lower() in ("1", "y")
