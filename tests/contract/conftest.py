"""Hosts to run the command on. They need root and FUSE: a user's machine may lack both, CI may not."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.host import Host
from tests.fakekernel import hosts
from tests.fakekernel.fusefront import mount


@pytest.fixture(scope="session")
def privileged() -> None:
    if os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK):
        return
    assert not os.environ.get("CI"), "contract tests need root and /dev/fuse"
    pytest.skip("contract tests need root and /dev/fuse")


def machines(folder: Path) -> Iterator[Callable[[str], Host]]:
    """up("t4-mdev"): that machine, up, until this iterator goes on."""
    with ExitStack() as stack:
        def up(name: str) -> Host:
            root = folder / name
            root.mkdir()
            return Host(stack.enter_context(mount(hosts.load(name), root)))
        yield up


@pytest.fixture
def boot(privileged: None, tmp_path: Path) -> Iterator[Callable[[str], Host]]:
    yield from machines(tmp_path)


@pytest.fixture(scope="module")
def boot_once(privileged: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Host]]:
    """For tests that show that nothing changes."""
    yield from machines(tmp_path_factory.mktemp("hosts"))
