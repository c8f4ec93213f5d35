"""Lists of CPUs as the kernel and libvirt write them: "0-3,8".

Source: the kernel's Documentation/admin-guide/cputopology.rst (cpulist), libvirt's formatdomain (cpuset).
"""
from __future__ import annotations


def parse_cpus(text: str) -> tuple[int, ...]:
    """'0-3,8' -> (0, 1, 2, 3, 8), sorted, each once. Source: the kernel's bitmap list format.
    Raises ValueError on anything else, on a range that runs backwards, and above 65535."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if not 0 <= first <= last <= 65535:
            raise ValueError(f"{part!r} is no CPU range")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 8) -> '0-3,8'."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)
