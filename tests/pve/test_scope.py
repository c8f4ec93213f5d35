"""The drop-in's settings for what was decided."""
from __future__ import annotations

import pytest

from kvm_gpu.model import Placement, Use
from pve_gpu_hook import scope


def use(node: int | None, *cpus: int) -> Use:
    return Use("104", 0, node, tuple(enumerate((cpu,) for cpu in cpus)), (), 1024, None)


@pytest.mark.parametrize(("placement", "settings"), [
    (Placement((), (use(1),), (), "preferred"), {"AllowedMemoryNodes": "1"}),
    (Placement((), (use(0), use(1)), (), "strict"), {"AllowedMemoryNodes": "0-1"}),
    (Placement((), (use(0), use(None)), (), "preferred"), {}),
    (Placement((), (use(0),), (), None), {}),
    (Placement((), (use(1, 4, 5),), (8, 9), "strict"), {"AllowedCPUs": "4-5,8-9", "AllowedMemoryNodes": "1"}),
    (Placement((), (use(1, 4, 5),), (4, 5), None), {"AllowedCPUs": "4-5"}),
    (Placement((), ()), {}),
], ids=["near", "two nodes", "partly anywhere", "bound by Proxmox", "CPUs", "CPUs alone", "no guest"])
def test_settings(placement: Placement, settings: dict[str, str]) -> None:
    assert scope.settings(placement) == settings
