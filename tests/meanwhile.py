"""Somebody else is faster: a deed done at a chosen moment of somebody's steps."""
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kvm_gpu.ledger import Ledger
from kvm_gpu.site import Site
from tests.fakekernel.fakesysfs import FakeSysfs

Deed = Callable[[], object]


class Slow(FakeSysfs):
    """The deed is done once, before a group is opened or a file written."""

    def __init__(self, site: Site, deed: Deed, before: str) -> None:
        assert isinstance(site.sysfs, FakeSysfs)
        super().__init__(site.sysfs.kernel, site.sysfs.root)
        self.deeds = [deed]
        self.before = before

    def hold(self, group: int) -> int | None:
        if self.before == f"group {group}":
            self.do()
        return super().hold(group)

    def write(self, path: str, value: str) -> None:
        if path.endswith(self.before):
            self.do()
        super().write(path, value)

    def do(self) -> None:
        while self.deeds:
            self.deeds.pop()()


class SlowLedger(Ledger):
    """The deed is done once, before the lock is taken."""

    def __init__(self, path: str, deed: Deed) -> None:
        super().__init__(path)
        self.deeds = [deed]

    def _begin(self, synchronous: Literal["full", "normal"]) -> None:
        while self.deeds:
            self.deeds.pop()()
        super()._begin(synchronous)


def before(site: Site, step: str, deed: Deed) -> Site:
    """The site for whom `deed` comes before "group 31" is opened, or before a path with this end is written."""
    return Site(Slow(site, deed, step), Ledger(site.ledger.path), site.config)


def before_recording(site: Site, deed: Deed) -> Site:
    """The site for whom `deed` comes before it first takes the ledger's lock."""
    return Site(site.sysfs, SlowLedger(site.ledger.path, deed), site.config)
