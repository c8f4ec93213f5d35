"""Reads tests/hosts/NAME.toml and cards.toml, the kinds of cards that the machines share."""
from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakekernel.kernel import Kernel
from tests.fakekernel.machine import Bridge, Card, Kind, Machine, NodeSpec, ShareType, Sriov, VgpuType

FOLDER = Path(__file__).parent.parent / "hosts"
KINDS = FOLDER / "cards.toml"


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml") if path != KINDS))


def load(name: str) -> Kernel:
    """A running machine, what its operator does after boot done."""
    return Kernel(describe(name))


@cache
def describe(name: str) -> Machine:
    """Raises TypeError on a key that no machine has."""
    said = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    nodes = {int(number): _node(**node) for number, node in said.pop("nodes").items()}
    cards = tuple(_card(**card) for group in said.pop("cards") for card in _each_place(group))
    bridges = {address: Bridge(**bridge) for address, bridge in said.pop("bridges", {}).items()}
    mtty = tuple(ShareType(**type) for type in said.pop("mtty", ()))
    setup = tuple((path, value) for path, value in said.pop("setup", ()))
    return Machine(name=name, nodes=nodes, cards=cards, bridges=bridges, mtty=mtty, setup=setup, **said)


def _each_place(card: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`places` is short for the same card several times, each place with its own keys."""
    places = card.pop("places", [{}])
    return ({**card, **place} for place in places)


def _card(kind: str, alias: dict[str, str] | None = None, **said: Any) -> Card:
    return Card(kind=_kinds()[kind], alias={int(index): prefix for index, prefix in (alias or {}).items()}, **said)


def _node(**said: Any) -> NodeSpec:
    for key in ("pages", "free_pages"):
        said[key] = {int(size): number for size, number in said.get(key, {}).items()}
    return NodeSpec(distances=tuple(said.pop("distances", ())), **said)


@cache
def _kinds() -> dict[str, Kind]:
    return {name: _kind(said) for name, said in tomllib.loads(KINDS.read_text()).items()}


def _kind(said: dict[str, Any]) -> Kind:
    said = {"subsystem": "0000:0000", **said}
    sriov = said.pop("sriov", None)
    shares = tuple(ShareType(**share) for share in said.pop("shares", ()))
    functions = tuple(_kind({"subsystem": said["subsystem"], **function}) for function in said.pop("functions", ()))
    types = tuple(_vgpu_type(*line.split()) for line in said.pop("vgpu_types", "").strip().splitlines())
    return Kind(pci_class=int(said.pop("class"), 16), bars=_bars(said.pop("bars", {})), functions=functions,
                sriov=sriov and Sriov(bars=_bars(sriov.pop("bars", {})), **sriov),
                vgpu_types=types, shares=shares, **said)


def _bars(said: dict[str, str]) -> dict[int, str]:
    return {int(number): size for number, size in said.items()}


def _vgpu_type(id: str, name: str, fb_mb: str, most: str, slices: str = "0", per_instance: str = "1") -> VgpuType:
    return VgpuType(int(id), name, int(fb_mb), int(most), int(slices), int(per_instance))
