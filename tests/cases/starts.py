"""What the cases say all the time, in one call each."""
from __future__ import annotations

from typing import Any

import pytest

from kvm_gpu import claims
from kvm_gpu.errors import NoCapacity
from kvm_gpu.model import Placement, Refusal, Request, Vm, Want
from kvm_gpu.site import Site


def start(site: Site, vm: str, *wants: Want, **wishes: Any) -> Placement:
    """What the VM gets."""
    made = claims.claim(site, Request(Vm(vm), wants, **wishes)).placement
    assert made is not None
    return made


def explain(site: Site, vm: str, *wants: Want, **wishes: Any) -> Placement | Refusal:
    """What the VM would get, or why nothing."""
    found = claims.explain(site, Request(Vm(vm), wants, **wishes))
    decided = found.placement or found.refusal
    assert decided is not None
    return decided


def slots(placed: Placement | Refusal) -> list[str]:
    assert isinstance(placed, Placement)
    return [device.hold.slot for device in placed.devices]


def refused(site: Site, vm: str, *wants: Want, **wishes: Any) -> dict[str, str]:
    """Reasons by candidate."""
    with pytest.raises(NoCapacity) as failure:
        start(site, vm, *wants, **wishes)
    return reasons(failure.value.refusal)


def reasons(refusal: Placement | Refusal) -> dict[str, str]:
    assert isinstance(refusal, Refusal)
    return dict(refusal.reasons)


def counts(site: Site, board: str) -> dict[str, tuple[int, int, int, int]]:
    """Profile -> total, taken, free, sellable."""
    rows = (row for row in claims.capacity(site) if row.board == board)
    return {row.profile: (row.total, row.taken, row.free, row.sellable) for row in rows}
