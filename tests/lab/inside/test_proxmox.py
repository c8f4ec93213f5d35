"""Proxmox VE's VMs under a real systemd: the kernel binds QEMU from its first moment, then each vCPU on its own."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.inside import kernel, proxmox
from tests.lab.inside.proxmox import Vm

OFFER = """\
[offer.pinned]
mechanism = "vf"
numa = "required"
cpu = "dedicated"
"""
ON_NODE = {0: "hostpci0: mapping=vgpu,mdev=nvidia-902", 1: "hostpci0: mapping=mdev,mdev=nvidia-902"}
CARD = {0: kernel.VFIO_CARD, 1: kernel.MDEV_CARD}
PINNED = "tags: gpu-offer-pinned"
CORE = {0: (0, 1), 1: (4, 5)}       # the first of each node: two CPUs, for two vCPUs
ALL = ("0-7", "0-1")
PAGES = 32                          # of 2 MiB, for 64 MiB


@pytest.fixture(scope="module", autouse=True)
def offer_and_mappings(host: None) -> None:
    Path("/etc/kvm-gpu/offers.toml").write_text(OFFER)
    proxmox.install({"vgpu": kernel.vfs(CARD[0]), "mdev": kernel.vfs(CARD[1])})


def assert_bound(vm: Vm, pid: int, node: int) -> None:
    """What systemd did, with QEMU as it started: all threads on the core, all memory on the node."""
    first, last = CORE[node]
    bound = (f"{first}-{last}", str(node))
    assert tuple(kernel.read(vm.scope / f"cpuset.{name}.effective") for name in ("cpus", "mems")) == bound
    assert kernel.allowed(pid) == {bound}
    assert kernel.guest_memory(pid) == ("default", {node: PAGES})


def assert_pinned(pid: int, node: int) -> None:
    """Each vCPU on one CPU; QEMU's other threads on both."""
    first, last = CORE[node]
    assert kernel.vcpus(pid) == {0: str(first), 1: str(last)}
    assert kernel.allowed(pid) == {(cpus, str(node)) for cpus in (str(first), str(last), f"{first}-{last}")}


@pytest.mark.parametrize("node", [0, 1])
def test_bound_from_the_first_moment_then_pinned(node: int) -> None:
    vm = Vm(f"10{node}")
    first, last = CORE[node]
    with proxmox.started(vm, ON_NODE[node], PINNED) as pid:
        assert_bound(vm, pid, node)
        after = proxmox.hook(vm, "post-start")
        assert (after.code, after.err) == (0, "")
        assert after.out.decode().splitlines() == [
            f"GPU: QEMU has {kernel.vf(CARD[node])}", f"GPU: 2 vCPUs pinned to CPUs {first}-{last}"]
        assert_pinned(pid, node)


def test_the_next_starts_are_bound_anew_without_a_reload() -> None:
    vm = Vm("110")
    before = proxmox.last_reload()
    with proxmox.started(vm, ON_NODE[0], PINNED) as pid:
        assert_bound(vm, pid, 0)
    reload = proxmox.last_reload()
    assert reload != before
    with proxmox.started(vm, ON_NODE[1], PINNED) as pid:
        assert_bound(vm, pid, 1)
    with proxmox.started(vm) as pid:
        assert kernel.allowed(pid) == {ALL}
    assert proxmox.last_reload() == reload


def test_the_reload_for_one_vm_leaves_the_pins_of_another() -> None:
    one, other = Vm("120"), Vm("121")
    with proxmox.started(one, ON_NODE[0], PINNED) as pid:
        assert proxmox.hook(one, "post-start").code == 0
        before = proxmox.last_reload()
        with proxmox.started(other, ON_NODE[1], PINNED) as pid_of_other:
            assert proxmox.last_reload() != before
            assert_bound(other, pid_of_other, 1)
            assert_pinned(pid, 0)
