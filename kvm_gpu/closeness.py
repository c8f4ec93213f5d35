"""How near two boards are, and which sets of near boards a choice would break."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from kvm_gpu.model import Board, NumaNode

SAME_BOARD: Final = 0
SAME_SWITCH: Final = 1
SAME_ROOT: Final = 2
SAME_NODE: Final = 3    # above it: SLIT distances, which begin at 10
LOCAL: Final = 10       # SLIT distance of a node to itself
REMOTE: Final = 20      # Linux's REMOTE_DISTANCE, where firmware gives no SLIT
UNKNOWN: Final = 255    # SLIT's "unreachable"


def distance(nodes: tuple[NumaNode, ...], first: int, second: int) -> int:
    """SLIT distance of two host nodes by id. Source: Documentation/ABI/stable/sysfs-devices-node."""
    if first == second:
        return LOCAL
    ids = [node.id for node in nodes]
    if first not in ids or second not in ids:
        return UNKNOWN
    row = nodes[ids.index(first)].distances
    column = ids.index(second)
    return row[column] if column < len(row) else REMOTE


def gap(first: Board, second: Board, nodes: tuple[NumaNode, ...]) -> int:
    """Same board < same switch < same root complex < same NUMA node < SLIT distance < unknown."""
    if first.address == second.address:
        return SAME_BOARD
    if first.pci_path and first.pci_path[:1] == second.pci_path[:1]:
        return SAME_SWITCH if _same_switch(first, second) else SAME_ROOT
    if first.numa_node is None or second.numa_node is None:
        return UNKNOWN
    if first.numa_node == second.numa_node:
        return SAME_NODE
    return distance(nodes, first.numa_node, second.numa_node)


def is_close(first: Board, second: Board) -> bool:
    """What close=required asks of every pair: one known NUMA node, or one root complex where a node is unknown."""
    if first.numa_node is None or second.numa_node is None:
        return first.address == second.address or bool(first.pci_path) and first.pci_path[0] == second.pci_path[0]
    return first.numa_node == second.numa_node


def splits(chosen: Iterable[Board], idle: Iterable[Board]) -> int:
    """How many idle boards would lose a neighbour on their switch if `chosen` were taken."""
    taken = [board for board in chosen if len(board.pci_path) > 1]
    gone = {board.address for board in taken}
    return sum(board.address not in gone and any(_same_switch(board, other) for other in taken) for board in idle)


def _same_switch(first: Board, second: Board) -> bool:
    """A common way of at least a root complex and a bridge."""
    return len(first.pci_path) > 1 and first.pci_path[:2] == second.pci_path[:2]
