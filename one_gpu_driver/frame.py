"""Several texts over one pipe: a line with their lengths, then the texts. Between one-vmm and one-helper."""
from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LIMIT: Final = 8 << 20      # bytes; vm.xml and the domain are far below


def pack(*parts: bytes) -> bytes:
    return b" ".join([b"%d" % len(part) for part in parts]) + b"\n" + b"".join(parts)


def unpack(data: bytes) -> tuple[bytes, ...]:
    """What `pack` was given. Raises ValueError."""
    head, _, body = data.partition(b"\n")
    parts, at = [], 0
    for length in map(int, head.split()):
        if not 0 <= length <= len(body) - at:
            break
        parts.append(body[at:at + length])
        at += length
    if len(parts) != len(head.split()) or at != len(body):
        raise ValueError("a frame that is not whole")
    return tuple(parts)


def read(descriptor: int) -> bytes:
    """All there is to read, up to LIMIT. Raises OSError."""
    data = bytearray()
    while len(data) <= LIMIT and (more := posix.read(descriptor, 1 << 16)):
        data += more
    return bytes(data)


def write(descriptor: int, data: bytes) -> None:
    """All of it. Raises OSError."""
    while data:
        data = data[posix.write(descriptor, data):]
