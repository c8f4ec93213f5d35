"""The `resource` file: thirteen lines of start, end, flags.
Source: drivers/pci/pci-sysfs.c resource_show; include/linux/ioport.h."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakekernel.pci import PciFunction

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY_32, MEMORY_64_PREFETCH = 0x40200, 0x14220c
FIRST_VF_BAR, LINES = 7, 13
FIRST_ADDRESS = 0x200000000000


class Resources:
    """Hands out bus addresses upwards, each aligned to its size; VFs get theirs out of the PF's SR-IOV BARs."""

    def __init__(self) -> None:
        self.next = FIRST_ADDRESS
        self.vf_starts: dict[tuple[str, int], int] = {}     # PF, number of a VF BAR -> where VF 0 has it

    def lines(self, function: PciFunction) -> str:
        rows = [_row(0, 0, 0)] * LINES
        for number, text in function.kind.bars.items():
            size, flags = _parse(text)
            start = self._vf_start(function, number, size) if function.physfn else self._allocate(size, 1)
            rows[number] = _row(start, start + size - 1, flags)
        if function.kind.sriov:
            for number, text in function.kind.sriov.bars.items():
                size, flags = _parse(text)
                all_vfs = size * function.kind.sriov.total
                start = self.vf_starts[function.name, number] = self._allocate(size, function.kind.sriov.total)
                rows[FIRST_VF_BAR + number] = _row(start, start + all_vfs - 1, flags)
        return "\n".join(rows)

    def _vf_start(self, vf: PciFunction, number: int, size: int) -> int:
        assert vf.physfn
        return self.vf_starts[vf.physfn.name, number] + size * vf.physfn.virtfns.index(vf)

    def _allocate(self, size: int, times: int) -> int:
        start = -(-self.next // size) * size
        self.next = start + size * times
        return start


def _parse(text: str) -> tuple[int, int]:
    """"256M p" -> bytes, flags."""
    size, _, prefetch = text.partition(" ")
    return int(size[:-1]) * UNITS[size[-1]], MEMORY_64_PREFETCH if prefetch == "p" else MEMORY_32


def _row(start: int, end: int, flags: int) -> str:
    return f"0x{start:016x} 0x{end:016x} 0x{flags:016x}"
