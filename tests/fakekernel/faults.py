"""Writes that go wrong because a test said so."""
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.fakekernel.tree import Tree


class Fault(NamedTuple):
    path: str
    errno: int      # 0: says yes and does nothing
    times: int


class Faults:
    def __init__(self) -> None:
        self.coming: list[Fault] = []

    def add(self, path: str, errno: int, times: int) -> None:
        self.coming.append(Fault(path, errno, times))

    def next(self, tree: Tree, path: str) -> Fault | None:
        """The fault that meets a write to `path`, spent once more."""
        for place, fault in enumerate(self.coming):
            if _same(tree, fault.path, path):
                left = fault._replace(times=fault.times - 1)
                self.coming[place:place + 1] = [left] if left.times else []
                return fault
        return None


def _same(tree: Tree, one: str, other: str) -> bool:
    """Paths of one file, by whatever links; a fault may wait for a file that does not exist yet."""
    try:
        return tree.resolve(one)[0] == tree.resolve(other)[0]
    except OSError:
        return False
