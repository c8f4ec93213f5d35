"""What tests ask a Kernel all the time, in one call each."""
from __future__ import annotations

from errno import errorcode
from typing import TYPE_CHECKING

from kvm_gpu.sysfs import WriteError
from tests.fakekernel.fakesysfs import FakeSysfs

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

PCI = "/sys/bus/pci/devices/"


def answer(kernel: Kernel, path: str, value: str) -> str:
    """Name of the errno that a write gives, "" where it is accepted."""
    try:
        FakeSysfs(kernel).write(path, value)
    except WriteError as error:
        return errorcode[error.errno]
    return ""


def read(kernel: Kernel, path: str) -> str | None:
    return FakeSysfs(kernel).read(path)


def vfio_group(kernel: Kernel, name: str) -> int:
    """IOMMU group of a function or an mdev that has one."""
    group = kernel.group_of(name)
    assert group is not None, f"{name} is in no IOMMU group"
    return group
