"""A Kernel behind a FUSE mount, in a process of its own, for tests that run the real commands.

`mount` lays out a root: sys, proc and dev lead into the mount; run, etc and var are real folders that start as the
kernel shows them. Calls on the result (vm_start, tune, snapshot ...) run in the kernel's process.
"""
from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mfusepy as fuse  # type: ignore[import-untyped]

from tests.fakekernel.kernel import Kernel
from tests.fakekernel.materialise import materialise
from tests.fakekernel.tree import CharDevice, File, Folder, Link, refuse
from tests.fakekernel.vfio import WouldHang

SIZE = 4096             # what sysfs says of every attribute
START_LIMIT_S = 10.0
END_LIMIT_S = 2.0
SEEN, REAL = ("sys", "proc", "dev"), ("run", "etc", "var")


class Front(fuse.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.hangs: list[WouldHang] = []

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self._node(path)
        if isinstance(node, Folder):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if isinstance(node, Link):
            return {"st_mode": stat.S_IFLNK | 0o777, "st_nlink": 1, "st_size": len(node.target)}
        mode = node.mode if isinstance(node, File) else 0o600
        return {"st_mode": stat.S_IFREG | mode, "st_nlink": 1, "st_size": SIZE}

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        yield from (".", "..", *self.kernel.list(path))

    def readlink(self, path: str) -> str:
        return self.kernel.target(path)

    def open(self, path: str, flags: int) -> int:
        node = self._node(path)
        if isinstance(node, CharDevice):
            return self.kernel.open(path)
        access = flags & os.O_ACCMODE
        if isinstance(node, File) and (access != os.O_WRONLY and node.show is None or access and node.store is None):
            raise refuse(errno.EACCES, path)        # kernfs asks for the mode even of root
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return b"" if offset else self.kernel.read(path)[:size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        try:
            self.kernel.write(path, data.decode())
        except WouldHang as hang:
            self.hangs.append(hang)                 # told to the test by the next call, or at the end
            raise refuse(errno.EDEADLK, path) from None
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        if fh:
            self.kernel.close(fh)
        return 0

    def _node(self, path: str) -> object:
        return self.kernel.tree.resolve(path, follow=False)[1]


class Mounted:
    """The kernel's methods by name. Raises what they raise, and WouldHang once a write through the mount did."""

    def __init__(self, root: Path, pipe: Connection) -> None:
        self.root = root
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            os.stat(self.root / "sys/bus")      # FUSE serves in order: closes before this call are done
            self._pipe.send((name, args, named))
            answer = self._pipe.recv()
            if isinstance(answer, BaseException):
                raise answer
            return answer
        return call


@contextmanager
def mount(kernel: Kernel, folder: str | os.PathLike[str]) -> Iterator[Mounted]:
    """A root in `folder` (empty). Raises WouldHang at the end if a write would have hung and no call told."""
    root = Path(folder)
    point = root / ".kernel"
    point.mkdir()
    for name in SEEN:
        (root / name).symlink_to(f".kernel/{name}")
    for name in REAL:
        kernel.tree.folder(f"/{name}")
        materialise(kernel, root, f"/{name}")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_serve, args=(kernel, root, point, theirs), daemon=True)
    child.start()
    mounted = Mounted(root, ours)
    try:
        _wait_for(point)
        yield mounted
        mounted.tell_hangs()
    finally:
        subprocess.run(["umount", "--lazy", point], check=False)
        child.join(END_LIMIT_S)
        child.kill()        # a test that failed may have left a file open, which keeps the mount alive


def _wait_for(point: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not point.is_mount():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{point} is not mounted after {START_LIMIT_S} s")
        time.sleep(0.01)


def _serve(kernel: Kernel, root: Path, point: Path, pipe: Connection) -> None:
    front = Front(kernel)
    threading.Thread(target=_obey, args=(front, root, pipe), daemon=True).start()
    fuse.FUSE(front, str(point), foreground=True, nothreads=True, direct_io=True, attr_timeout=0, entry_timeout=0,
              negative_timeout=0)


def _obey(front: Front, root: Path, pipe: Connection) -> None:
    """Calls from the test, one after the other."""
    while True:
        try:
            name, args, named = pipe.recv()
        except EOFError:
            return
        try:
            if front.hangs:
                raise front.hangs.pop()
            answer = None if name == "tell_hangs" else getattr(front.kernel, name)(*args, **named)
            _show_run(front.kernel, root, emptied=name == "reboot")
        except BaseException as error:      # it belongs to the test, whatever it is
            answer = error
        pipe.send(answer)


def _show_run(kernel: Kernel, root: Path, emptied: bool) -> None:
    """The status files of the running VMs, and no others, in the real /run; nothing else survives a boot there."""
    old = root / "run" if emptied else root / "run/libvirt/qemu"
    shutil.rmtree(old)
    materialise(kernel, root, "/run")
