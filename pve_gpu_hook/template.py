"""Configurations of VMs with GPUs, made from templates/proxmox."""
from __future__ import annotations

from pathlib import Path
from sysconfig import get_path
from typing import Any, Final, NamedTuple

from kvm_gpu.errors import HostError, RequestError
from kvm_gpu.site import Site
from pve_gpu_hook import wish as wishes
from pve_gpu_hook.cluster import Cluster
from pve_gpu_hook.tags import OFFER
from pve_gpu_hook.vmchange import ROOTS, change, make
from pve_gpu_hook.wish import Machine, Wish

PLACES: Final = (Path(__file__).parents[1] / "templates", Path(get_path("data")) / "share/kvm-gpu/templates",
                 Path("/usr/share/kvm-gpu/templates"))


class Frame(NamedTuple):
    """What the VM has besides its GPUs."""
    name: str
    cores: int
    memory_mib: int
    ostype: str


def render(site: Site, frame: Frame, wish: Wish) -> str:
    """Lines KEY: VALUE of a VM's configuration file. Raises RequestError, NoCapacity where the host has to be asked and
    refuses now, HostError where Jinja2 is not installed."""
    machine = Machine(frame.cores, frame.memory_mib, q35=True)
    devices = wishes.devices(site, frame.name, machine, wish)
    numa = wishes.numa(site, frame.name, machine, wish)
    return _filled(**frame._asdict(), devices=tuple(map(str, devices)), numa=numa,
                   tag=wish.offer and OFFER + wish.offer)


def values(text: str) -> dict[str, str]:
    """The keys of a rendered configuration."""
    return {key: value for key, _, value in (line.partition(": ") for line in text.splitlines())}


def create(cluster: Cluster, node: str, vmid: int, wanted: dict[str, str]) -> tuple[str, ...]:
    """Make the VM; what is left for root to do, as commands. Raises HostError."""
    cluster.create_vm(node, vmid, {key: value for key, value in wanted.items() if key not in ROOTS})
    guest = cluster.guest(vmid)
    return make(cluster, change(guest, cluster.config(guest), {key: wanted[key] for key in wanted if key in ROOTS}))


def _filled(**given: Any) -> str:
    try:
        import jinja2
    except ImportError:
        raise HostError("the Python package jinja2 is not installed", "apt install python3-jinja2") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([place / "proxmox" for place in PLACES]), undefined=jinja2.StrictUndefined,
        finalize=_value, keep_trailing_newline=True, trim_blocks=True,
        autoescape=False)   # noqa: S701  # not HTML: _value keeps each value on its line
    return environment.get_template("vm.j2").render(given)


def _value(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise RequestError(f"{value!r} cannot stand in a configuration")
    return value
