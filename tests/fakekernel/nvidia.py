"""NVIDIA's driver: vGPU types as mdevs (kernel < 6.8) or through files of its own on each VF (>= 6.8)."""
from __future__ import annotations

import re
from collections.abc import Callable
from errno import E2BIG, EBUSY, EINVAL, ENXIO, EPERM
from typing import TYPE_CHECKING

from tests.fakekernel.drivers import Driver
from tests.fakekernel.machine import VgpuType
from tests.fakekernel.mdev import MdevType, Parent
from tests.fakekernel.pci import PciFunction
from tests.fakekernel.room import VgpuRoom
from tests.fakekernel.tree import File, refuse

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

SERIES = {      # heads, frame-rate limit, resolution: vApps, vPC, compute, vWS
    "A": (1, 60, "1280x1024"), "B": (4, 45, "5120x2880"), "C": (1, 60, "4096x2400"), "Q": (4, 60, "7680x4320")}
MAX_PARAMS = 1024       # of vgpu_params; NVIDIA's VGPU_CONFIG_PARAMS_MAX_LENGTH, value not published


class Nvidia(Driver):
    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(kernel, name)
        self.vgpus: dict[str, VgpuFiles] = {}

    def attach(self, function: PciFunction) -> None:
        serves = function.kind.vgpu_types and (function.physfn or function.kind.sriov is None)
        if serves and self.kernel.machine.vgpu == "mdev":
            self.kernel.mdev.register(_parent(self.kernel, function))
        if serves and function.physfn and self.kernel.machine.vgpu == "vfio":
            self.vgpus[function.name] = VgpuFiles(self.kernel, function)
            self.kernel.vfio.serve(function.group, function.name)

    def detach(self, function: PciFunction) -> None:
        if function.name in self.kernel.mdev.parents:
            self.kernel.mdev.unregister(function.name)
        if function.name in self.vgpus:
            self.kernel.vfio.withdraw(function.group, function.name)
            self.vgpus.pop(function.name).vanish()
        if function.physfn is None:
            self.kernel.rooms.pop(function.name, None)      # mixed-size mode and GPU instances end with the driver


def _parent(kernel: Kernel, function: PciFunction) -> Parent:
    """A VF takes one mdev, a PF without SR-IOV as many as fit."""
    prefix = "nvidia"
    if function.physfn:
        prefix = function.card.alias.get(function.physfn.virtfns.index(function), prefix)
    types = tuple(MdevType(f"{prefix}-{type.id}", f"{function.kind.brand} {type.name}", describe(type), type)
                  for type in function.kind.vgpu_types)

    def extra(uuid: str, folder: str) -> None:
        params = VgpuParams(lambda: True, lambda: kernel.vfio.in_vm(kernel.mdev.mdevs[uuid][1]))
        kernel.tree.put(f"{folder}/nvidia/vgpu_params", params.file())
        kernel.tree.put(f"{folder}/nvidia/vm_name", File(""))

    limit = 1 if function.physfn else None
    return Parent(function.name, function.folder, kernel.vgpu_room(function.name), types, limit, extra)


def describe(type: VgpuType) -> str:
    """The one-line description, by series."""
    series = re.search(r"-\d+([ABCQ])", type.name)
    assert series, type.name
    heads, frames, resolution = SERIES[series[1]]
    if series[1] == "Q" and type.fb_mb <= 1024:
        resolution = "5120x2880"
    return (f"num_heads={heads}, frl_config={frames}, framebuffer={type.fb_mb}M, "
            f"max_resolution={resolution}, max_instance={type.max_instance}")


class VgpuFiles:
    """The folder nvidia/ of one VF. A list while a type is set: unknown for NVIDIA's driver, empty here as in the
    kernel's vgpu-vfio proposal."""

    def __init__(self, kernel: Kernel, vf: PciFunction) -> None:
        self.kernel = kernel
        self.vf = vf
        self.room: VgpuRoom = kernel.vgpu_room(vf.name)
        self.params = VgpuParams(lambda: self.now is not None, lambda: kernel.vfio.in_vm(vf.group))
        files = {
            "creatable_vgpu_types": File(self._creatable, looked=self.room.look),
            "current_vgpu_type": File(lambda: str(self.now.id if self.now else 0), self._store),
            "gpu_instance_id": File(self._instance),
            "placement_id": File(self._placement),
            "vgpu_params": self.params.file(),
        }
        for name, file in files.items():
            kernel.tree.put(f"{vf.folder}/nvidia/{name}", file)

    def vanish(self) -> None:
        if self.now:
            self.room.give(self.vf.name)
        self.kernel.tree.drop(f"{self.vf.folder}/nvidia")

    @property
    def now(self) -> VgpuType | None:
        seat = self.room.held.get(self.vf.name)
        return seat.type if seat else None

    def _creatable(self) -> str:
        types = () if self.now else (type for type in self.room.types if self.room.seats(type))
        rows = [f"{type.id:<5d} : {self.vf.kind.brand} {type.name}" for type in types]
        return "\n".join(["ID    : vGPU Name", *rows])

    def _store(self, text: str) -> None:
        try:
            wanted = int(text)
        except ValueError:
            raise refuse(EINVAL, text) from None
        if bool(wanted) == bool(self.now):
            raise refuse(EPERM, "a vGPU exists" if wanted else "no vGPU exists")
        if wanted:
            self._create(wanted)
        else:
            self._destroy()

    def _create(self, wanted: int) -> None:
        unknown = VgpuType(wanted, str(wanted), self.room.fb_mb + 1, 0)
        self.room.take(self.vf.name, next((type for type in self.room.types if type.id == wanted), unknown))

    def _destroy(self) -> None:
        if self.kernel.vfio.in_vm(self.vf.group):
            raise refuse(EBUSY, self.vf.name)
        self.params.text = ""
        self.room.give(self.vf.name)

    def _instance(self) -> str:
        seat = self.room.held.get(self.vf.name)
        if seat is None:
            raise refuse(ENXIO, "gpu_instance_id")
        return "Not Applicable" if seat.instance is None else str(seat.instance)

    def _placement(self) -> str:
        seat = self.room.held.get(self.vf.name)
        if seat is None:
            raise refuse(ENXIO, "placement_id")
        return str(seat.start >> 10)


class VgpuParams:
    """vgpu_params: ENXIO without a vGPU, EPERM once a VM has it open, E2BIG."""

    def __init__(self, exists: Callable[[], bool], in_vm: Callable[[], bool]) -> None:
        self.text = ""
        self.exists = exists
        self.in_vm = in_vm

    def file(self) -> File:
        return File(lambda: self.text, self._store)

    def _store(self, text: str) -> None:
        if not self.exists():
            raise refuse(ENXIO, "vgpu_params")
        if self.in_vm():
            raise refuse(EPERM, "vgpu_params")
        if len(text) > MAX_PARAMS:
            raise refuse(E2BIG, "vgpu_params")
        self.text = text
