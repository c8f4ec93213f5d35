"""A change of a VM's configuration from outside: shown, then made, by root where the token may not.

Source of what only root@pam may set: check_vm_modify_config_perm in PVE::API2::Qemu. It compares the user's name, so
that a token of root is not enough.
"""
from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Final, NamedTuple

from kvm_gpu.errors import HostError
from pve_gpu_hook.cluster import Cluster, Guest

ROOTS: Final = frozenset({"hookscript", "hugepages"})     # of what we set
PVESH: Final = "pvesh"                  # acts as root@pam, for VMs of all nodes


class VmChange(NamedTuple):
    """`values`: keys that get another value, with it; `delete`: keys that go. `old`: the configuration they are for."""
    guest: Guest
    old: dict[str, str]
    values: dict[str, str]
    delete: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.values or self.delete)

    def roots(self) -> tuple[str, ...]:
        """Keys that only root@pam may change."""
        return tuple(sorted(ROOTS.intersection((*self.values, *self.delete))))

    def part(self, roots: bool) -> VmChange:
        """What only root@pam may change, or the rest."""
        return self._replace(values={key: value for key, value in self.values.items() if (key in ROOTS) == roots},
                             delete=tuple(key for key in self.delete if (key in ROOTS) == roots))


def change(guest: Guest, config: dict[str, str], wanted: dict[str, str | None]) -> VmChange:
    """What has to be done until the keys have these values; None: the key is gone."""
    values = {key: value for key, value in wanted.items() if value is not None and config.get(key) != value}
    delete = tuple(sorted(key for key, value in wanted.items() if value is None and key in config))
    return VmChange(guest, config, dict(sorted(values.items())), delete)


def shown(todo: VmChange) -> str:
    """For people."""
    lines = []
    for key in sorted({*todo.values, *todo.delete}):
        lines += [f"    - {key}: {todo.old[key]}"] if key in todo.old else []
        lines += [f"    + {key}: {todo.values[key]}"] if key in todo.values else []
    running = ", which runs: from its next start on" if todo.guest.running else ""
    return "\n".join([f"VM {todo.guest.vmid} on {todo.guest.node}{running}", *lines]) + "\n"


def is_root() -> bool:
    """Whether this machine can act as root@pam."""
    return shutil.which(PVESH) is not None


def make(cluster: Cluster, todo: VmChange) -> tuple[str, ...]:
    """What is left for root to do, as commands: none where this machine can act as root@pam. The rest first: huge pages
    need NUMA. Raises HostError, BusyError."""
    rest, root = todo.part(roots=False), todo.part(roots=True)
    if rest:
        cluster.set_config(rest.guest, rest.old["digest"], rest.values, rest.delete)
    if root and is_root():
        _run(arguments(root))
    elif root:
        return (f"as root on {root.guest.node}: {shlex.join(arguments(root))}",)
    return ()


def arguments(todo: VmChange) -> list[str]:
    """The command line that does it."""
    values = [word for key, value in todo.values.items() for word in ("--" + key, value)]
    gone = ["--delete", ",".join(todo.delete)] if todo.delete else []
    return [PVESH, "set", f"/nodes/{todo.guest.node}/qemu/{todo.guest.vmid}/config", *values, *gone]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"{shlex.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
