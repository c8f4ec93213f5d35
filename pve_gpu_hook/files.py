"""Small text files of Proxmox VE and of ours beside them: read whole, replaced at once."""
from __future__ import annotations

import posix

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

LIMIT: Final = 4 << 20      # bytes; pmxcfs takes at most 1 MiB in one file


def content(path: str) -> Optional[str]:
    """None where there is no such file. Raises HostError."""
    parts, size = [], 0
    try:
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            while size < LIMIT and (part := posix.read(file, 1 << 16)):
                parts.append(part)
                size += len(part)
        finally:
            posix.close(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
    return b"".join(parts).decode("utf-8", "replace")


def replace(path: str, text: str) -> None:
    """Who reads it sees the old text or the new one. Raises HostError."""
    temporary = f"{path}.{posix.getpid()}"
    try:
        file = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC, 0o644)
        try:
            data = text.encode()
            while data:
                data = data[posix.write(file, data):]
        finally:
            posix.close(file)
        posix.rename(temporary, path)
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None


def make_folder(path: str) -> bool:
    """Whether it had to be made. Raises HostError."""
    try:
        posix.mkdir(path, 0o755)
    except FileExistsError:
        return False
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
    return True


def remove(path: str) -> None:
    """Done too where there is none. Raises HostError."""
    try:
        posix.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
