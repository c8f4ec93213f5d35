from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.host import Host
from tests.contract.proxmox.node import Node

Up = Callable[[str], Node]


@pytest.fixture
def up(boot: Callable[[str], Host], tmp_path: Path) -> Up:
    """up("a16-vfio"): that machine as a node of Proxmox VE."""
    def node(name: str) -> Node:
        folder = tmp_path / "pve"
        folder.mkdir()
        return Node(boot(name), folder)
    return node
