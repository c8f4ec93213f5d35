"""The configuration space as far as somebody reads it: ids, class, and the Device Serial Number.
Source: PCI Express Base Specification, 7.9.3 Device Serial Number Extended Capability."""
from __future__ import annotations

import struct

from tests.fakekernel.machine import Kind

SIZE = 4096
EXTENDED = 0x100                # where the list of extended capabilities begins
SERIAL_NUMBER, AER = 0x0003, 0x0001
SERIAL_AT = 0x140               # behind another capability, so that a reader has to follow the list


def config_space(kind: Kind, serial: str | None) -> bytes:
    """`serial` is written as lspci prints it, "00-11-22-33-44-55-66-77": most significant byte first."""
    space = bytearray(SIZE)
    vendor, device = (int(part, 16) for part in kind.id.split(":"))
    sub_vendor, sub_device = (int(part, 16) for part in kind.subsystem.split(":"))
    struct.pack_into("<HH", space, 0x00, vendor, device)
    struct.pack_into("<I", space, 0x08, kind.pci_class << 8)
    struct.pack_into("<HH", space, 0x2c, sub_vendor, sub_device)
    struct.pack_into("<I", space, EXTENDED, _header(AER, SERIAL_AT if serial else 0))
    if serial:
        high, low = struct.unpack(">II", bytes.fromhex(serial.replace("-", "")))
        struct.pack_into("<III", space, SERIAL_AT, _header(SERIAL_NUMBER, 0), low, high)
    return bytes(space)


def _header(capability: int, following: int) -> int:
    return capability | 1 << 16 | following << 20
