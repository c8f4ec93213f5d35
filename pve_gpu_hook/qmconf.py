"""A VM's configuration file, as Proxmox VE starts it: the part above the first section.

Pending changes are written into that part before the pre-start hook runs; snapshots are sections of their own.
"""
from __future__ import annotations

from pve_gpu_hook.files import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    Conf = dict[str, str]

ETC: Final = "/etc/pve"
LOCAL: Final = ETC + "/qemu-server"             # a link to this node's folder
HOSTPCI: Final = tuple([f"hostpci{number}" for number in range(16)])


def read(root: str, vm: str, source: str) -> Optional[Conf]:
    """None where there is no such VM. `source`: the node that the VM is just migrated from, which has the file until
    the migration is done; empty: none. Raises HostError."""
    folder = f"{ETC}/nodes/{source}/qemu-server" if source else LOCAL
    text = content(f"{root}{folder}/{vm}.conf")
    return None if text is None else parse(text)


def parse(text: str) -> Conf:
    """Keys and values; notes (lines with #) and what is no "key: value" are passed over. Source: parse_vm_config in
    PVE::QemuServer."""
    conf: Conf = {}
    for line in text.splitlines():
        if line.startswith("["):
            break
        key, colon, value = line.partition(":")
        if colon and value.strip() and not line.startswith("#"):
            conf[key] = value.strip()
    return conf


def properties(text: str, default: str) -> Conf:
    """The keys of a property string; a value without a key is that of `default`. Source: parse_property_string in
    PVE::JSONSchema."""
    found: Conf = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if part.strip():
            found[key.strip() if equals else default] = (value if equals else part).strip()
    return found


def flag(text: Optional[str]) -> bool:
    return text is not None and text.lower() in ("1", "on", "yes", "true")


def number(text: Optional[str], otherwise: int) -> int:
    """`otherwise` too for what is no whole number: Proxmox VE refuses that itself."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else otherwise
