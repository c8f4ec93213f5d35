"""A kernel that answers: reads and writes behave as the kernel's and the vendors' drivers' do."""
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.fakekernel.materialise import materialise
from tests.fakekernel.vfio import WouldHang
from tests.fakekernel.vms import QemuError

__all__ = ["FakeSysfs", "Kernel", "QemuError", "WouldHang", "materialise"]
