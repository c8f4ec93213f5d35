"""Mediated devices: those of a vGPU driver on VFs, and the kernel's own sample mtty."""
from __future__ import annotations

from pathlib import Path

import pytest

from kvm_gpu import claims
from kvm_gpu.errors import NoCapacity
from kvm_gpu.ledger import Ledger
from kvm_gpu.model import Config, Policy, Request, Vm, Want
from kvm_gpu.site import Site
from kvm_gpu.sysfs import Sysfs
from tests.lab.inside import kernel, ours

FOREIGN = "11111111-2222-4333-8444-555555555555"


def test_an_mdev_takes_its_vf() -> None:
    first, second = kernel.vfs(kernel.MDEV_CARD)
    assert [kernel.available(first, kind) for kind in ("901", "902", "904")] == [1, 1, 1]
    given = ours.run("--json", "claim", "--vm", "a", "--mechanism", "mdev", "--profile", "LAB-2Q").json["slots"]
    assert [(slot["slot"], slot["uuid"]) for slot in given] == [(first, kernel.mdevs()[0])]
    assert [kernel.available(first, kind) for kind in ("901", "902", "904")] == [0, 0, 0]
    [slot] = ours.run("--json", "claim", "--vm", "b", "--mechanism", "mdev", "--profile", "LAB-2Q").json["slots"]
    assert (slot["slot"], len(kernel.mdevs())) == (second, 2)
    refused = ours.run("claim", "--vm", "c", "--mechanism", "mdev", "--profile", "LAB-2Q")
    assert (refused.code, len(kernel.mdevs())) == (3, 2)
    for vm in "ab":
        assert ours.run("release", "--vm", vm).code == 0
    assert (kernel.mdevs(), kernel.available(first, "902")) == ([], 1)


def test_what_others_made_stays() -> None:
    first, second = kernel.vfs(kernel.MDEV_CARD)
    kernel.write(kernel.DEVICES / first / "mdev_supported_types/nvidia-902/create", FOREIGN)
    [slot] = ours.run("--json", "claim", "--vm", "a", "--mechanism", "mdev", "--profile", "LAB-2Q").json["slots"]
    assert slot["slot"] == second
    assert ours.run("release", "--vm", "a", "--force").code == 0
    ours.reconcile()
    assert kernel.mdevs() == [FOREIGN]
    kernel.write(kernel.MDEVS / FOREIGN / "remove", "1")


def test_the_sample_of_the_kernel(tmp_path: Path) -> None:
    """Ports are what mtty has 24 of: mtty-1 takes one, mtty-2 two."""
    site = Site(Sysfs(), Ledger(str(tmp_path / "ledger.db")), Config(Policy(ours=("mtty",))))
    for number in range(10):
        claims.claim(site, Request(Vm(f"one-{number}"), (Want("mtty-2", "mdev"),)))
    assert [kernel.available("mtty", kind) for kind in ("1", "2")] == [4, 2]
    assert {row.profile: row.free for row in claims.capacity(site)} == {"mtty-1": 4, "mtty-2": 2}
    claims.claim(site, Request(Vm("four"), (Want("mtty-1", "mdev", cards=4),), close="required"))
    with pytest.raises(NoCapacity):
        claims.claim(site, Request(Vm("late"), (Want("mtty-1", "mdev"),)))
    assert (kernel.available("mtty", "1"), len(kernel.mdevs())) == (0, 14)
    for held in site.ledger.claims():
        claims.release(site, held.vm)
    assert (kernel.available("mtty", "1"), kernel.mdevs()) == (24, [])
