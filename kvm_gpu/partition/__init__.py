"""Who can give a board another layout. The modules that do it, one for each vendor, come with layouts."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

BY_DRIVER: Final = {
    "nvidia": "nvidia",     # VFs by NVIDIA's sriov-manage only
    "gim": None,            # VFs are made when the module is loaded; it has no sriov_configure
    "i915": "sriov",
    "xe": "sriov",
}


def partitioner(driver: Optional[str], sriov: bool) -> Optional[str]:
    """"sriov": the kernel's sriov_numvfs switches VFs on and off; None: nobody can. `sriov`: has sriov_totalvfs."""
    if driver is None or not sriov:
        return None
    return BY_DRIVER.get(driver, "sriov")
