"""How near two boards are, and which sets of near boards a choice would break."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from kvm_gpu.model import Board, NumaNode

    Distances = dict[int, dict[int, int]]

SAME_BOARD: Final = 0
SAME_SWITCH: Final = 1
SAME_ROOT: Final = 2
SAME_NODE: Final = 3    # above it: SLIT distances, which begin at 10
LOCAL: Final = 10       # SLIT distance of a node to itself
REMOTE: Final = 20      # Linux's REMOTE_DISTANCE, where firmware gives no SLIT
UNKNOWN: Final = 255    # SLIT's "unreachable"


def distances(nodes: tuple[NumaNode, ...]) -> Distances:
    """The SLIT by node ids. Source: distance in Documentation/ABI/stable/sysfs-devices-node."""
    ids = [node.id for node in nodes]
    return {node.id: dict(zip(ids, node.distances, strict=False)) for node in nodes}


def distance(table: Distances, first: int, second: int) -> int:
    """SLIT distance of two host nodes."""
    return LOCAL if first == second else table.get(first, {}).get(second, REMOTE)


def gap(first: Board, second: Board, table: Distances) -> int:
    """Same board < same switch < same root complex < same NUMA node < SLIT distance < unknown."""
    if first.address == second.address:
        return SAME_BOARD
    if _shares(first, second, 2):
        return SAME_SWITCH
    if _shares(first, second, 1):
        return SAME_ROOT
    if first.numa_node is None or second.numa_node is None:
        return UNKNOWN
    if first.numa_node == second.numa_node:
        return SAME_NODE
    return distance(table, first.numa_node, second.numa_node)


def is_close(first: Board, second: Board) -> bool:
    """What close=required asks of every pair: one known NUMA node, or one root complex where a node is unknown."""
    if first.numa_node is None or second.numa_node is None:
        return first.address == second.address or _shares(first, second, 1)
    return first.numa_node == second.numa_node


def splits(chosen: Sequence[Board], idle: Sequence[Board]) -> tuple[int, int]:
    """How many idle boards would lose a neighbour if `chosen` were taken: on their switch, on their root complex."""
    gone = {board.address for board in chosen}
    left = [board.pci_path for board in idle if board.address not in gone]
    switches = {board.pci_path[:2] for board in chosen if len(board.pci_path) > 1}
    roots = {board.pci_path[:1] for board in chosen if board.pci_path}
    return sum(path[:2] in switches for path in left), sum(path[:1] in roots for path in left)


def _shares(first: Board, second: Board, depth: int) -> bool:
    """The same way from the root complex over `depth` devices: 1 is the root complex, 2 the bridge below it."""
    return len(first.pci_path) >= depth and first.pci_path[:depth] == second.pci_path[:depth]
