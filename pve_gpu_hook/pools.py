"""The resource pools of a VM: what an offer may be enabled for, since Proxmox VE's VMs have no owner.

Source: parse_user_config in PVE::AccessControl: `pool:NAME:comment:VMIDs:storages:`.
"""
from __future__ import annotations

from pve_gpu_hook.files import content
from pve_gpu_hook.qmconf import ETC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

USERS: Final = ETC + "/user.cfg"


def pools(root: str, vm: str) -> tuple[str, ...]:
    """Raises HostError."""
    lines = (line.split(":") for line in (content(root + USERS) or "").splitlines() if line.startswith("pool:"))
    return tuple(fields[1] for fields in lines if len(fields) > 3 and vm in fields[3].replace(" ", "").split(","))
