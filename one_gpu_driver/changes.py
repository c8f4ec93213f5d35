"""Changes of files as values: shown before they are made; a reader sees the old file or the new one, never a part."""
from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path
from typing import NamedTuple, Union

from kvm_gpu.errors import HostError

Change = Union["Write", "Copy", "Restore", "Remove", "RemoveFolder"]


class Write(NamedTuple):
    """The file has this text and mode; folders are made where they are missing."""
    path: Path
    text: str
    mode: int


class Copy(NamedTuple):
    """A copy with mode and times, kept beside the file."""
    path: Path
    to: Path


class Restore(NamedTuple):
    """The copy takes the file's place."""
    path: Path
    copy: Path


class Remove(NamedTuple):
    path: Path


class RemoveFolder(NamedTuple):
    """Only if it is empty: what others put there stays."""
    path: Path


def read(path: Path) -> str:
    """The text of a file, every byte of which comes back when it is written. Raises OSError."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def written(path: Path, text: str, mode: int) -> list[Change]:
    """What is to do until the file is so: nothing where it is."""
    if path.is_file() and read(path) == text and path.stat().st_mode & 0o777 == mode:
        return []
    return [Write(path, text, mode)]


def shown(change: Change, root: Path) -> str:
    """For people, with the lines of a text that change. `root` is left out of the names."""
    name = "/" + str(change.path.relative_to(root))
    if isinstance(change, Write):
        return f"{'change' if change.path.exists() else 'create'} {name}\n" + _difference(change)
    if isinstance(change, Copy):
        return f"keep a copy of {name} as {change.to.name}\n"
    if isinstance(change, Restore):
        return f"put back {name} from {change.copy.name}\n"
    return f"remove {name}\n"


def make(change: Change) -> None:
    """Raises HostError."""
    try:
        _make(change)
    except OSError as error:
        raise HostError(f"{error.filename or change.path}: {error.strerror}", "run it as root") from None


def _make(change: Change) -> None:
    if isinstance(change, Write):
        _write(change)
    elif isinstance(change, Copy):
        shutil.copy2(change.path, change.to)
        _own(change.to, change.path)
    elif isinstance(change, Restore):
        os.replace(change.copy, change.path)
    elif isinstance(change, Remove):
        change.path.unlink()
    elif not any(change.path.iterdir()):
        change.path.rmdir()


def _write(change: Write) -> None:
    """A file belongs to whom the one before it did, a new one to whom its folder does: oneadmin, who is not trusted to
    leave a link where root writes."""
    folder = change.path.parent
    _make_folder(folder)
    new = folder / f".{change.path.name}.{os.getpid()}"
    with new.open("xb") as file:
        try:
            file.write(change.text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fchmod(file.fileno(), change.mode)
            _own(file.fileno(), change.path if change.path.exists() else folder)
            os.replace(new, change.path)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(folder.parent.stat().st_mode & 0o777)
        _own(folder, folder.parent)


def _own(file: Path | int, like: Path) -> None:
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def _difference(change: Write) -> str:
    if not change.path.exists():
        return ""
    old, new = read(change.path).splitlines(), change.text.splitlines()
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return "".join(f"    {line}\n" for line in lines if not line.startswith("@@"))
