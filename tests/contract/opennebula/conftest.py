from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.host import Host
from tests.contract.opennebula.remote import Remote

Up = Callable[[str], Remote]


@pytest.fixture
def up(boot: Callable[[str], Host], tmp_path: Path) -> Up:
    """up("a16-vfio"): that machine as a KVM host of OpenNebula."""
    return lambda name: Remote(boot(name), tmp_path / "one")


@pytest.fixture
def remote(up: Up) -> Remote:
    return up("a16-vfio")
