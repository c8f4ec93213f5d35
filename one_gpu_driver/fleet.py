"""What the whole cloud has, who has it, and what can still be sold: the hosts' own attributes, added up by size.

The sizes are alternatives, as on one board: what one takes, others lose. They are never added to each other.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from kvm_gpu.tables import table
from one_gpu_driver.cloud import CloudHost

FORMAT: Final = "kvm-gpu/1"


class Size(NamedTuple):
    """Counts of one size on one host, or over all of them (host None)."""
    profile: str
    model: str
    host: str | None
    hosts: int                      # that have it
    total: int
    taken: int
    free: int                       # on hosts that take new VMs
    sellable: int


def by_host(hosts: Iterable[CloudHost]) -> tuple[Size, ...]:
    """What each host has now, by size and host; what is gone everywhere is left out."""
    sizes = (size for host in hosts for size in _sizes(host) if size.total or size.taken)
    return tuple(sorted(sizes, key=lambda size: (_by_number(size.profile), size.host)))


def summed(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """One row for each size."""
    by_profile: dict[str, list[Size]] = {}
    for size in sizes:
        by_profile.setdefault(size.profile, []).append(size)
    return tuple(Size(profile, rows[0].model, None, len(rows), *_sums(rows)) for profile, rows in by_profile.items())


def troubles(hosts: Iterable[CloudHost]) -> tuple[str, ...]:
    """What the hosts' probes complain of."""
    told = ((host.name, host.attributes.get("GPU_TROUBLE")) for host in hosts)
    return tuple(f"{name}: {text}" for name, text in told if text)


def shown(sizes: tuple[Size, ...]) -> str:
    """For people."""
    head = ("SIZE", "MODEL", "HOST" if sizes and sizes[0].host else "HOSTS", "TOTAL", "TAKEN", "FREE", "SELLABLE")
    rows = [(size.profile, size.model, size.host or size.hosts, *size[4:]) for size in sizes]
    return table(head, rows, "No host has a GPU to give.")


def as_json(sizes: Iterable[Size], trouble: Iterable[str]) -> str:
    return json.dumps({"format": FORMAT, "sizes": [size._asdict() for size in sizes], "trouble": list(trouble)}) + "\n"


def _sizes(host: CloudHost) -> Iterator[Size]:
    pools: Any = host.attributes.get("GPU_POOL", [])
    for pool in [pools] if isinstance(pools, dict) else pools:
        free, sellable = (_number(pool, name) if host.places_new else 0 for name in ("FREE", "SELLABLE"))
        yield Size(pool.get("PROFILE") or "?", pool.get("MODEL") or "", host.name, 1,
                   _number(pool, "TOTAL"), _number(pool, "TAKEN"), free, sellable)


def _by_number(profile: str) -> list[tuple[int, str]]:
    """A16-4Q comes before A16-16Q."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", profile, flags=re.ASCII)]


def _sums(rows: list[Size]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*(row[4:] for row in rows), strict=True))


def _number(pool: dict[str, Any], name: str) -> int:
    """0 for anything but a number: an attribute can be edited by hand."""
    text = str(pool.get(name) or "")
    return int(text) if text.isascii() and text.isdecimal() else 0
