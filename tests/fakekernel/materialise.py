"""The present state as plain files and symlinks: for machines too big for FUSE, and for showing."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.fakekernel.tree import File, Folder, Link

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel


def materialise(kernel: Kernel, folder: str | os.PathLike[str], below: str = "") -> None:
    """Write what lies below a path of the kernel into the same path of `folder`. A file whose read fails is left
    out, one that is write-only becomes empty; modes are those of sysfs."""
    root = os.fspath(folder)
    os.makedirs(root + below, exist_ok=True)
    for path, node in kernel.tree.walk(below):
        if isinstance(node, Folder):
            os.makedirs(root + path, exist_ok=True)
        elif isinstance(node, Link):
            os.symlink(node.target, root + path)
        else:
            _write_file(root + path, node)


def _write_file(path: str, node: object) -> None:
    content, mode = b"", 0o600
    if isinstance(node, File):
        mode = node.mode
        if node.show is not None:
            try:
                content = node.content()
            except OSError:
                return
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
