"""Intel's xe: quotas of its VFs in sriov_admin/, 1-based, there before the VFs are.
Source: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov (vram_quota: Linux 7.0)."""
from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING

from tests.fakekernel.drivers import Driver
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.tree import File, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

PROFILE = ("exec_quantum_ms", "preempt_timeout_us", "vram_quota")
ALIGNMENT = 2 << 20     # of a quota the driver gives by itself: chosen


class Xe(Driver):
    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(kernel, name)
        self.set_by_hand: dict[str, dict[tuple[int, str], int]] = {}    # PF -> (VF, attribute) -> value

    def attach(self, function: PciFunction) -> None:
        if function.kind.sriov is None:
            return
        self.set_by_hand[function.name] = {}
        for number in range(1, function.kind.sriov.total + 1):
            for name in PROFILE:
                self.kernel.tree.put(f"{function.folder}/sriov_admin/vf{number}/profile/{name}",
                                     self._attribute(function, number, name))

    def detach(self, function: PciFunction) -> None:
        self.kernel.tree.drop(f"{function.folder}/sriov_admin")

    def vfs_disabled(self, pf: PciFunction) -> None:
        """Quotas are released with the VFs."""
        self.set_by_hand[pf.name].clear()

    def _attribute(self, pf: PciFunction, number: int, name: str) -> File:
        def show() -> str:
            said = self.set_by_hand[pf.name].get((number, name))
            return str(_automatic(pf, number, name) if said is None else said)

        def store(text: str) -> None:
            if not text.isdecimal():
                raise refuse(EINVAL, name)
            self.set_by_hand[pf.name][number, name] = int(text)

        return File(show, store)


def _automatic(pf: PciFunction, number: int, name: str) -> int:
    """An equal share of the memory for each VF that is on."""
    if name != "vram_quota" or number > len(pf.virtfns):
        return 0
    return (pf.kind.vram_mb << 20) // len(pf.virtfns) // ALIGNMENT * ALIGNMENT
