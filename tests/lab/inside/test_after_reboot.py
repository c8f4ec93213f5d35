"""The second boot: the ledger still has the claims of the first, and the kernel nothing of them."""
from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.lab.inside import before_reboot, kernel, ours


@pytest.fixture(autouse=True)
def all_given_back(host: None) -> Iterator[None]:
    """In place of conftest's: this test begins with claims, and ends without."""
    yield
    for vm in {vm for vm, _ in ours.claims()}:
        ours.run("release", "--vm", vm, "--force")
    assert (ours.claims(), kernel.mdevs()) == ([], [])


def test_what_ran_is_freed_and_a_stopped_vm_keeps_its_slot() -> None:
    left = json.loads(before_reboot.LEFT.read_text())
    assert ours.claims() == [("card", "starting"), ("keeps", "kept"), ("mdev", "starting"), ("vgpu", "starting")]
    before = kernel.state()
    assert sorted(ours.reconcile()) == [
        "VM card: released", f"VM keeps: keeps {left['keeps']['slot']} after the reboot", "VM mdev: released",
        "VM vgpu: released"]
    assert (ours.claims(), kernel.state()) == ([("keeps", "kept")], before)
    again = ours.run("--json", "claim", "--vm", "keeps", "--mechanism", "mdev", "--profile", "LAB-2Q", "--keep")
    assert again.json["slots"] == [left["keeps"]]
    assert kernel.mdevs() == [left["keeps"]["uuid"]]
