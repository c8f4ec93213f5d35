"""The scripts of our driver folder, made from the names in the stock folder beside it.

Files, not links: `onehost sync` turns links into copies, and a copied script looks for its parts in the wrong place.
"""
from __future__ import annotations

import os

from one_gpu_driver.vmm import ACTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

MARK: Final = "# Made by `one-gpu install`; changes are lost when it runs again."

SHIM: Final = f"""\
#!/bin/sh
{MARK}
exec "$(dirname "$0")/../kvm/{{name}}" "$@"
"""
WRAPPER: Final = f"""\
#!/bin/sh
{MARK}
stock=$(dirname "$0")/../kvm/{{name}}
ours=/usr/libexec/kvm-gpu/one-vmm
[ -x "$ours" ] || exec "$stock" "$@"
exec "$ours" {{name}} "$stock" "$@"
"""


def scripts(stock: Path) -> dict[str, str]:
    """Name and text of each script, by name: one for every program of the stock folder. Raises OSError."""
    return {name: (WRAPPER if name in ACTIONS else SHIM).format(name=name) for name in sorted(os.listdir(stock))
            if os.path.isfile(stock / name) and os.access(stock / name, os.X_OK)}


def is_ours(text: str) -> bool:
    return MARK in text.splitlines()[1:2]
