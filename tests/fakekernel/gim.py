"""AMD's GIM: VFs come with the driver, not with sriov_numvfs; partition files that never fail.
Source: amd/MxGPU-Virtualization gim_shim/sysfs/gim_monitor.c: store() returns count even when the set failed."""
from __future__ import annotations

from tests.fakekernel.drivers import Driver
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.tree import File

FILES = ("accelerator_partition_profile", "memory_partition_mode", "spatial_partition_mode")
COMPUTE = ("SPX", "DPX", "QPX", "CPX")
MEMORY = {"NPS1": "NPS1", "NPS2": "NPS2", "NPS4": "NPS4", "NPS8": "NPS4"}
PARTITIONED = "1002:74"         # MI300 and later have the files; GIM for S7150 has none


class Gim(Driver):
    sriov_configure = False

    def attach(self, function: PciFunction) -> None:
        sriov = function.kind.sriov
        if sriov is None:
            return
        self.kernel.sriov.enable(function, sriov, sriov.at_load)
        if function.kind.id.startswith(PARTITIONED):
            self._partition_files(function)

    def detach(self, function: PciFunction) -> None:
        for name in FILES:
            self.kernel.tree.drop(f"{function.folder}/{name}")

    def _partition_files(self, pf: PciFunction) -> None:
        mode = {"compute": "SPX", "memory": "NPS1"}

        def free() -> bool:
            return not any(self.kernel.vfio.in_vm(vf.group) for vf in pf.virtfns)

        def set_compute(text: str) -> None:
            if text.isdecimal() and int(text) < len(COMPUTE) and free():
                mode["compute"] = COMPUTE[int(text)]

        def set_memory(text: str) -> None:
            if free():
                mode["memory"] = MEMORY.get(text, mode["memory"])

        files = (File(lambda: str(COMPUTE.index(mode["compute"])), set_compute),
                 File(lambda: mode["memory"], set_memory), File(lambda: mode["compute"]))
        for name, file in zip(FILES, files, strict=True):
            self.kernel.tree.put(f"{pf.folder}/{name}", file)
