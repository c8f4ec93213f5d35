"""What the phases of one start tell each other: a file for each VM that has, or had, something of ours.

A VM without one costs no look into the ledger. It may outlive the claim: then there is nothing left to do.
"""
from __future__ import annotations

from kvm_gpu.cpulist import format_cpus, parse_cpus
from pve_gpu_hook import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, NamedTuple, Optional
else:
    from kvm_gpu.light import NamedTuple

FOLDER: Final = "/run/kvm-gpu-pve"


class Lease(NamedTuple):
    """`emulator`: host CPUs for QEMU's own threads. `scope`: the settings of the VM's scope."""
    claim: str
    emulator: tuple[int, ...]
    scope: dict[str, str]


def read(root: str, vm: str) -> Optional[Lease]:
    """Raises HostError."""
    text = files.content(f"{root}{FOLDER}/{vm}")
    if text is None:
        return None
    fields = dict(line.split("=", 1) for line in text.splitlines())
    return Lease(fields.pop("claim"), parse_cpus(fields.pop("emulator")), fields)


def write(root: str, vm: str, lease: Lease) -> None:
    """Raises HostError."""
    files.make_folder(root + FOLDER)
    fields = {"claim": lease.claim, "emulator": format_cpus(lease.emulator), **lease.scope}
    files.replace(f"{root}{FOLDER}/{vm}", "".join(f"{key}={value}\n" for key, value in fields.items()))


def remove(root: str, vm: str) -> None:
    """Raises HostError."""
    files.remove(f"{root}{FOLDER}/{vm}")
