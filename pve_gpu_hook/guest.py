"""The guest's NUMA nodes, CPUs and memory as Proxmox VE will give them to QEMU.

Source: PVE::QemuServer::Memory (config, hugepages_topology), PVE::QemuServer (config_to_command).
"""
from __future__ import annotations

from kvm_gpu.cpulist import parse_cpus
from kvm_gpu.model import GuestNode
from pve_gpu_hook.qmconf import flag, number, properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from pve_gpu_hook.qmconf import Conf

    Pins = Optional[tuple[tuple[int, tuple[int, ...]], ...]]

MOST: Final = 8                 # numa0 to numa7
MEMORY_MIB: Final = 512         # where the configuration says nothing


def nodes(conf: Conf) -> tuple[GuestNode, ...]:
    """Huge pages count as ordinary memory: Proxmox VE makes the pages itself, at each start. Raises ValueError."""
    sockets, cores = number(conf.get("sockets"), 1), number(conf.get("cores"), 1)
    memory_mib = number(properties(conf.get("memory", ""), "current").get("current"), MEMORY_MIB)
    if not flag(conf.get("numa")):
        return (_node(conf, 0, tuple(range(sockets * cores)), memory_mib, None),)
    custom = tuple(_custom(conf, index) for index in range(MOST) if f"numa{index}" in conf)
    return custom or tuple(
        _node(conf, socket, tuple(range(socket * cores, (socket + 1) * cores)), memory_mib // sockets,
              (socket,) if "hugepages" in conf else None)   # the pages are made on the host node of the same number
        for socket in range(sockets))


def _custom(conf: Conf, index: int) -> GuestNode:
    wish = properties(conf[f"numa{index}"], "cpus")
    hosts = wish.get("hostnodes")
    return _node(conf, index, _set(wish.get("cpus", "")), int(float(wish.get("memory", "0"))),
                 None if hosts is None else _set(hosts))


def _node(conf: Conf, index: int, vcpus: tuple[int, ...], memory_mib: int, bound: Optional[tuple[int, ...]],
          ) -> GuestNode:
    return GuestNode(index, vcpus, memory_mib, None, _pins(conf, vcpus), bound)


def _pins(conf: Conf, vcpus: tuple[int, ...]) -> Pins:
    """`affinity` holds for all of QEMU's threads."""
    cpus = parse_cpus(conf.get("affinity", ""))
    return tuple((vcpu, cpus) for vcpu in vcpus) if cpus else None


def _set(text: str) -> tuple[int, ...]:
    """"0-3;8" """
    return parse_cpus(text.replace(";", ","))
