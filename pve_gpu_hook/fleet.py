"""What the whole cluster has, what is taken, and what can still be sold: each node's own counts, by size.

The sizes of one board are alternatives: what one takes, others lose. They are never added to each other.
"""
from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvm_gpu import claims
from kvm_gpu.errors import GpuError, HostError
from kvm_gpu.site import Site
from kvm_gpu.tables import table
from pve_gpu_hook.cluster import Node

FORMAT: Final = "kvm-gpu/1"
KNOWN_HOSTS: Final = "etc/pve/nodes/{}/ssh_known_hosts"
TIMEOUT_S: Final = 60


class Size(NamedTuple):
    """Counts of one profile on one node, or over all of them (node None)."""
    profile: str
    model: str
    node: str | None
    nodes: int                      # that have it
    total: int
    taken: int
    free: int
    sellable: int


def read(site: Site, root: Path, here: str, nodes: Iterable[Node]) -> tuple[tuple[Size, ...], tuple[str, ...]]:
    """What each node has, by profile and node, and what could not be learned."""
    found: list[Size] = []
    trouble: list[str] = []
    for node in nodes:
        try:
            rows = _own(site) if node.name == here else _others(root, node)
        except GpuError as failure:
            trouble.append(f"{node.name}: {failure.message}")
        else:
            found += _sizes(node.name, rows)
    return tuple(sorted(found, key=lambda size: (_by_number(size.profile), size.node))), tuple(trouble)


def summed(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """One row for each profile."""
    by_profile: dict[str, list[Size]] = {}
    for size in sizes:
        by_profile.setdefault(size.profile, []).append(size)
    return tuple(Size(profile, rows[0].model, None, len(rows), *_sums(rows)) for profile, rows in by_profile.items())


def shown(sizes: tuple[Size, ...]) -> str:
    """For people."""
    head = ("SIZE", "MODEL", "NODE" if sizes and sizes[0].node else "NODES", "TOTAL", "TAKEN", "FREE", "SELLABLE")
    rows = [(size.profile, size.model, size.node or size.nodes, *size[4:]) for size in sizes]
    return table(head, rows, "No node has a GPU to give.")


def as_json(sizes: Iterable[Size], trouble: Iterable[str]) -> str:
    return json.dumps({"format": FORMAT, "sizes": [size._asdict() for size in sizes], "trouble": list(trouble)}) + "\n"


def _own(site: Site) -> list[dict[str, Any]]:
    return [row._asdict() for row in claims.capacity(site)]


def _others(root: Path, node: Node) -> list[dict[str, Any]]:
    """As nodes of a cluster reach each other. Source: PVE::SSHInfo."""
    if not node.online:
        raise HostError("is offline")
    known = root / KNOWN_HOSTS.format(node.name)
    options = ["-o", "BatchMode=yes", "-o", f"HostKeyAlias={node.name}",
               *(["-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=none"] if known.exists() else [])]
    command = ["ssh", *options, f"root@{node.address}", "kvm-gpu", "--json", "capacity"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False)
        if done.returncode == 0:
            rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
            return rows
    except subprocess.TimeoutExpired:
        raise HostError(f"no answer within {TIMEOUT_S} s") from None
    except OSError as error:
        raise HostError(f"ssh: {error.strerror}") from None
    except (ValueError, KeyError):
        raise HostError("kvm-gpu capacity answers with something else than JSON") from None
    raise HostError(_message(done.stderr) or f"kvm-gpu capacity: exit code {done.returncode}")


def _message(stderr: str) -> str:
    """kvm-gpu's own error, or ssh's last word."""
    try:
        return str(json.loads(stderr)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return stderr.strip().rpartition("\n")[2]


def _sizes(node: str, rows: Iterable[dict[str, Any]]) -> list[Size]:
    """The counts of a node's boards together. A board has several rows for a profile that it could give in several
    ways: alternatives, of which the first is in use."""
    boards: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["total"] or row["taken"]:
            boards.setdefault((row["profile"], row["board"]), row)
    by_profile: dict[str, list[dict[str, Any]]] = {}
    for (profile, _), row in boards.items():
        by_profile.setdefault(profile, []).append(row)
    return [Size(profile, same[0]["model"], node, 1, *(sum(row[name] for row in same) for name in Size._fields[4:]))
            for profile, same in by_profile.items()]


def _by_number(profile: str) -> list[tuple[int, str]]:
    """A16-4Q comes before A16-16Q."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", profile, flags=re.ASCII)]


def _sums(rows: list[Size]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*(row[4:] for row in rows), strict=True))
