"""/etc/kvm-gpu/vgpu-types.json: the operator's table of types that the product does not know."""
from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fakekernel.machine import Kind, VgpuType
from tests.fakekernel.tree import File

if TYPE_CHECKING:
    from tests.fakekernel.kernel import Kernel

PATH = "/etc/kvm-gpu/vgpu-types.json"


def write_table(kernel: Kernel) -> None:
    kinds = {card.kind.table: card.kind for card in kernel.machine.cards if card.kind.table}
    if kinds:
        boards = {name: _board(kind) for name, kind in kinds.items()}
        kernel.tree.put(PATH, File(json.dumps(boards, indent=1)))


def _board(kind: Kind) -> dict[str, object]:
    vendor, device = kind.id.split(":")
    return {"device": f"0x{device}", "vendor": f"0x{vendor}", "subsystem": "any",
            "mode": "sriov" if kind.sriov else "pf-mdev", "types": [_type(type) for type in kind.vgpu_types]}


def _type(type: VgpuType) -> dict[str, object]:
    return {"id": type.id, "name": type.name, "framebuffer_mb": type.fb_mb, "max_instance": type.max_instance}
