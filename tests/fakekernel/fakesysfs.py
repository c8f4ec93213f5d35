"""kvm_gpu's Sysfs over a Kernel in the same process: same answers, same errors, no files."""
from __future__ import annotations

from errno import EBUSY
from typing import TYPE_CHECKING

from kvm_gpu.sysfs import LIMIT, Sysfs, WriteError, _absent

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel


class FakeSysfs(Sysfs):
    """`root`: a real folder for what callers keep in files themselves (cache, tables); nothing is read there."""

    def __init__(self, kernel: Kernel, root: str = "") -> None:
        super().__init__(root)
        self.kernel = kernel

    def binary(self, path: str) -> bytes | None:
        try:
            return self.kernel.read(path)[:LIMIT]
        except OSError as error:
            _absent(error, path)
            return None

    def target(self, path: str) -> str | None:
        try:
            return self.kernel.target(path)
        except OSError as error:
            _absent(error, path)
            return None

    def exists(self, path: str) -> bool:
        try:
            self.kernel.tree.resolve(path)
        except OSError as error:
            _absent(error, path)
            return False
        return True

    def list(self, path: str) -> tuple[str, ...]:
        try:
            return self.kernel.list(path)
        except OSError as error:
            _absent(error, path)
            return ()

    def write(self, path: str, value: str) -> None:
        try:
            self.kernel.write(path, value + "\n")
        except OSError as error:
            raise WriteError(path, value, error.errno or 0) from None

    def hold(self, group: int) -> int | None:
        try:
            return self.kernel.open(f"/dev/vfio/{group}")
        except OSError as error:
            if error.errno == EBUSY:
                return None
            _absent(error, f"/dev/vfio/{group}")
            return -1

    def let_go(self, descriptor: int) -> None:
        self.kernel.close(descriptor)
