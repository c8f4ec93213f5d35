"""Killed at any step, read again, decided again: the next one arrives, and a release leaves nothing."""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvm_gpu import claims
from kvm_gpu import reconcile as reconciling
from kvm_gpu.model import Request, Vm, Want
from kvm_gpu.reconcile import reconcile
from kvm_gpu.site import Site
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.fakekernel.kernel import Kernel
from tests.sites import essence, fake_site, folder_in_memory

DEAD = (1 << 22, 1)         # above pid_max: nobody's
PLANS = pytest.mark.parametrize(("host", "want", "steps"), [
    ("whole-or-vf", Want(mechanism="whole"), 2),
    ("flex170", Want(mechanism="whole", cards=2), 4),
    ("flex170", Want(mechanism="vf", cards=2), 2),
    ("t4-mdev", Want(profile="T4-4Q", cards=2), 2),
    ("a40-mdev", Want(profile="A40-8Q"), 1),
    ("x48", Want(profile="X48-8Q", cards=2), 4),
    ("rtx6000x4", Want(mechanism="whole", cards=3), 3),
], ids=lambda value: value if isinstance(value, str) else None)
KILLED = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as name:
        yield Path(name)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


class Dying(FakeSysfs):
    """Ends at the step `at`, before or after doing it: a write, or a group taken hold of."""

    def __init__(self, kernel: Kernel, root: str, at: int, after: bool) -> None:
        super().__init__(kernel, root)
        self.steps = at
        self.after = after

    def write(self, path: str, value: str) -> None:
        self._count(lambda: super(Dying, self).write(path, value))

    def hold(self, group: int) -> int | None:
        self._count(lambda: None)
        return super().hold(group)

    def _count(self, work: Callable[[], None]) -> None:
        self.steps -= 1
        if self.steps >= 0:
            return work()
        if self.after:
            work()
        raise Killed


def load(name: str) -> Kernel:
    """The machine with at most four VFs on a card: a step is a step."""
    machine = hosts.describe(name)
    cards = tuple(dataclasses.replace(card, vfs=min(card.vfs, 4)) for card in machine.cards)
    return Kernel(dataclasses.replace(machine, cards=cards))


def start(site: Site, want: Want) -> None:
    claims.claim(site, Request(Vm("vm-1"), (want,)), DEAD)


def dies(site: Site, at: int, after: bool, work: Callable[[Site], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `work` got as far as step `at`. Its process is dead then: no holder that it named lives."""
    assert isinstance(site.sysfs, FakeSysfs)
    dying = Site(Dying(site.sysfs.kernel, site.sysfs.root, at, after), site.ledger, site.config)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "holder_of", lambda pid: DEAD)
        patch.setattr(reconciling, "holder_of", lambda pid: DEAD)
        try:
            work(dying)
        except Killed:
            return True
    return False


def ready(kernel: Kernel) -> dict[str, str]:
    """The tree, whatever UUIDs are in it."""
    anonymous = {uuid: f"mdev on {kernel.mdev.mdevs[uuid][0].name}" for uuid in kernel.mdev.mdevs}

    def hide(text: str) -> str:
        return re.sub("[0-9a-f-]{36}", lambda found: anonymous.get(found[0], found[0]), text)

    return {hide(path): hide(text) for path, text in essence(kernel).items()}


@PLANS
@KILLED
@pytest.mark.parametrize("cleaned", [True, False], ids=["reconciled", "at once"])
def test_a_start_killed_at_any_step(host: str, want: Want, steps: int, after: bool, cleaned: bool, folder: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = load(host)
    site, before = fake_site(kernel, folder), essence(kernel)
    start(site, want)
    made = ready(kernel)
    claims.release(site, "vm-1")
    assert essence(kernel) == before
    at = 0
    while dies(site, at, after, lambda dying: start(dying, want), monkeypatch):
        assert [held.note for held in site.ledger.claims()] == ["making ready"]
        if cleaned:
            assert reconcile(site) == ("VM vm-1: released",)
            assert (site.ledger.claims(), essence(kernel)) == ((), before)
        start(site, want)
        assert [(held.vm, held.state, held.note) for held in site.ledger.claims()] == [("vm-1", "starting", None)]
        assert ready(kernel) == made
        claims.release(site, "vm-1")
        assert (site.ledger.claims(), essence(kernel)) == ((), before)
        at += 1
    assert at >= steps


@PLANS
@KILLED
def test_a_release_killed_at_any_step(host: str, want: Want, steps: int, after: bool, folder: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = load(host)
    site, before = fake_site(kernel, folder), essence(kernel)
    start(site, want)
    at = 0
    while dies(site, at, after, lambda dying: claims.release(dying, "vm-1"), monkeypatch):
        assert [held.state for held in site.ledger.claims()] == ["releasing"]
        assert reconcile(site) == ("VM vm-1: released",)
        assert (site.ledger.claims(), essence(kernel)) == ((), before)
        start(site, want)
        at += 1
    assert at >= steps
    assert (site.ledger.claims(), essence(kernel)) == ((), before)
