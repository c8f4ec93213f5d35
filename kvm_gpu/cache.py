"""The host as last read, under /run: what cannot change within a boot is not read for each start.

A stale cache costs time, never a card: what it offers is looked at before it is given, and before a refusal the
host is read afresh.
"""
from __future__ import annotations

from itertools import repeat

from kvm_gpu import private
from kvm_gpu.model import Board, Cell, Function, Host, Layout, NumaNode, Pages, Profile, Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Optional

FORMAT: Final = 1       # raise it when a value of model.py changes its form


def load(path: str, key: tuple[object, ...]) -> Optional[Host]:
    """The host stored under `key` (boot, configuration), None where there is none that can be trusted."""
    rows = private.load(path, (FORMAT, *key))
    return None if rows is None else _host(*rows)


def store(path: str, key: tuple[object, ...], host: Host) -> None:
    """Replace what is stored. That it cannot be is no error: the next start reads the host itself."""
    private.store(path, (FORMAT, *key), host)


def _many(kind: Any, rows: Any) -> Any:
    """Rows as values of one kind, without a call of Python's for each of a thousand slots."""
    return tuple(map(tuple.__new__, repeat(kind), rows))


def _host(boot_id: str, nodes: Any, boards: Any) -> Host:
    return Host(boot_id, tuple(map(_node, nodes)), tuple(map(_board, boards)))


def _node(row: Any) -> NumaNode:
    node = NumaNode._make(row)
    return node._replace(pages=_many(Pages, node.pages))


def _board(row: Any) -> Board:
    board = Board._make(row)
    return board._replace(functions=_many(Function, board.functions),
                          layouts=tuple(map(_layout, board.layouts)))


def _layout(row: Any) -> Layout:
    name, mechanism, slots, cells, known = row
    return Layout(name, mechanism, _many(Slot, slots), tuple(map(_cell, cells)), known)


def _cell(row: Any) -> Cell:
    name, one_size, profiles = row
    return Cell(name, one_size, _many(Profile, profiles))
