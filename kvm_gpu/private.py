"""Files of ours under /run that can be made again: marshalled values, read only if nobody else can have written them.

`marshal` trusts what it reads, so the file must belong to who runs us and be writable by nobody else.
"""
from __future__ import annotations

import marshal
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Optional

MOST: Final = 1 << 26
OTHERS_WRITE: Final = 0o022


def load(path: str, key: object) -> Optional[Any]:
    """The value stored under `key`; None where it is absent, of another key, damaged, or not to be trusted."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW)
        try:
            seen = posix.fstat(fd)
            if seen.st_uid != posix.geteuid() or seen.st_mode & OTHERS_WRITE or seen.st_size > MOST:
                return None
            stored, value = marshal.loads(posix.read(fd, MOST))
        finally:
            posix.close(fd)
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return value if stored == key else None


def store(path: str, key: object, value: object) -> None:
    """Replace the file at once: whoever reads it sees the old one or the new one. Not being able to is no error."""
    data = marshal.dumps((plain(key), plain(value)))
    try:
        _make_folder(path.rpartition("/")[0])
        _replace(path, data)
    except OSError:
        return


def plain(value: Any) -> Any:
    """Named tuples as tuples, which marshal takes."""
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def _make_folder(path: str) -> None:
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError:
        return


def _replace(path: str, data: bytes) -> None:
    temporary = f"{path}.{posix.getpid()}"
    fd = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600)
    try:
        complete = posix.write(fd, data) == len(data)
    except OSError:
        complete = False
    finally:
        posix.close(fd)
    if complete:
        posix.rename(temporary, path)
    else:
        posix.unlink(temporary)
