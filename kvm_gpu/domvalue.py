"""Values as libvirt spells them. Everything here comes from a VM's owner: what is not plainly right is refused.

Source: libvirt, src/util/virbitmap.c, virutil.c (virScaleInteger), src/conf/device_conf.c.
"""
from __future__ import annotations

from kvm_gpu.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Optional

    from kvm_gpu.model import PciAddress

CPUS: Final = 8192          # NR_CPUS of distribution kernels
NODES: Final = 1024         # MAX_NUMNODES
VCPUS: Final = 4096
KIB: Final = 1 << 40        # 1 PiB
PCI_LIMITS: Final = {"domain": 0xffff, "bus": 0xff, "slot": 0x1f, "function": 7}
BYTE: Final = ("b", "byte", "bytes")
BASES: Final = {"": 1024, "ib": 1024, "b": 1000}
HEX: Final = frozenset("0123456789abcdefABCDEF")


def wrong(what: str, text: Optional[str]) -> RequestError:
    return RequestError(f"domain XML: {what}: {(text or '')[:40]!r}")


def number(what: str, text: Optional[str], most: int, base: int = 10) -> int:
    """A number from 0 to `most`. Raises RequestError."""
    digits = (text or "").strip()
    try:
        value = int(digits, base) if len(digits) <= 20 and HEX.issuperset(digits) else most + 1
    except ValueError:
        raise wrong(what, text) from None
    if value > most:
        raise wrong(what, text)
    return value


def c_number(what: str, text: str, most: int) -> int:
    """A number as C reads it: 0x1f, 037 or 31. Raises RequestError."""
    digits = text.strip()
    if digits[:2] in ("0x", "0X"):
        return number(what, digits[2:], most, 16)
    return number(what, digits, most, 8 if digits.startswith("0") else 10)


def kib(what: str, text: Optional[str], unit: Optional[str]) -> int:
    """Memory in KiB, rounded up. Units: b, bytes, KB (1000), K or KiB (1024, the default), ... Raises RequestError."""
    name = (unit or "KiB").lower()
    if name in BYTE:
        scale = 1
    elif name[0] in "kmgtpe" and name[1:] in BASES:
        scale = BASES[name[1:]] ** ("kmgtpe".index(name[0]) + 1)
    else:
        raise wrong(f"unit of {what}", unit)
    size = -(-number(what, text, KIB * 1024) * scale // 1024)
    if size > KIB:
        raise wrong(what, text)
    return size


def cpus(what: str, text: Optional[str], most: int = CPUS) -> tuple[int, ...]:
    """'0-3,^2,8' -> (0, 1, 3, 8). Raises RequestError."""
    mask = 0                # one number, not a set: '0-8191' a hundred thousand times costs nothing
    for part in (text or "").split(","):
        low, dash, high = part.strip().removeprefix("^").partition("-")
        first = number(what, low, most - 1)
        last = number(what, high, most - 1) if dash else first
        bits = ((2 << last) - 1) >> first << first
        if not bits:
            raise wrong(what, text)
        mask = mask & ~bits if part.strip().startswith("^") else mask | bits
    bits_up, found = f"{mask:b}"[::-1], []
    at = bits_up.find("1")
    while at >= 0:
        found.append(at)
        at = bits_up.find("1", at + 1)
    return tuple(found)


def pci_address(attributes: Mapping[str, str]) -> PciAddress:
    """'0000:41:00.4' from domain, bus, slot and function, each 0 where absent. Raises RequestError."""
    domain, bus, slot, function = pci_numbers(attributes)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def pci_numbers(attributes: Mapping[str, str]) -> tuple[int, int, int, int]:
    """(domain, bus, slot, function), each 0 where absent. Raises RequestError."""
    domain, bus, slot, function = [c_number(f"PCI {key}", attributes.get(key, "0"), most)
                                   for key, most in PCI_LIMITS.items()]
    return domain, bus, slot, function


def pci_parts(address: PciAddress) -> tuple[int, int, int, int]:
    """'0000:41:00.4' -> (0, 0x41, 0, 4)."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(slot, 16), int(function)


def uuid(what: str, text: Optional[str]) -> str:
    """Lower case with hyphens. Raises RequestError."""
    digits = (text or "").strip().replace("-", "").lower()
    if len(digits) != 32 or not HEX.issuperset(digits):
        raise wrong(what, text)
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
