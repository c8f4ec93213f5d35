"""NVIDIA's vendor VFIO on a real VFIO core: the VF keeps its driver, and QEMU opens it as it is."""
from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.inside import guests, kernel, ours

WISH = ("--mechanism", "nvidia_vfio", "--profile", "LAB-2Q")


@pytest.fixture
def vf() -> str:
    return kernel.vf(kernel.VFIO_CARD)


@contextmanager
def proxmox_runs(vm: str, vf: str) -> Iterator[int]:
    """Pid of a QEMU that Proxmox started; it is killed at the end, and its pid file stays behind."""
    file = Path(f"/run/qemu-server/{vm}.pid")
    file.parent.mkdir(exist_ok=True)
    process = subprocess.Popen([
        "qemu-system-x86_64", "-machine", "q35,accel=kvm", "-cpu", "host", "-m", "64", "-bios", guests.rom(),
        "-nodefaults", "-display", "none", "-device", f"vfio-pci,host={vf}", "-pidfile", file])
    try:
        guests.wait_for(lambda: kernel.opened(process.pid) == ([kernel.group(vf)], 1))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def current(vf: str) -> str:
    return kernel.read(kernel.DEVICES / vf / "nvidia/current_vgpu_type")


def test_a_vgpu_in_a_vm_of_proxmox(vf: str) -> None:
    assert ours.run("claim", "--vm", "104", *WISH).code == 0
    assert (ours.slots("104"), current(vf), kernel.driver(vf)) == ([vf], "902", "nvidia")
    with proxmox_runs("104", vf):
        assert ours.reconcile() == ["VM 104: runs on its device"]
        assert ours.run("claim", "--vm", "104", *WISH).code == 5
        assert current(vf) == "902"
    assert ours.reconcile() == ["VM 104: released"]
    assert (current(vf), kernel.driver(vf)) == ("0", "nvidia")


def test_a_vgpu_is_not_taken_from_a_vm(vf: str) -> None:
    assert ours.run("claim", "--vm", "104", *WISH).code == 0
    with proxmox_runs("104", vf):
        [said] = ours.run("--json", "release", "--vm", "104").json["done"]
        assert said == f"VM 104: releasing, still in use: {vf}: a VM has it open (VFIO group {kernel.group(vf)})"
        assert (ours.reconcile(), current(vf)) == ([], "902")
    assert ours.reconcile() == ["VM 104: released"]
    assert current(vf) == "0"


def test_one_size_on_a_board(vf: str) -> None:
    assert ours.run("claim", "--vm", "a", *WISH).code == 0
    refused = ours.run("claim", "--vm", "b", "--mechanism", "nvidia_vfio", "--profile", "LAB-1Q")
    assert (refused.code, ours.claims()) == (3, [("a", "starting")])
    assert f"{kernel.VFIO_CARD}: runs LAB-2Q (one size per board)" in refused.err
    assert ours.run("claim", "--vm", "b", *WISH).code == 0
    assert [current(one) for one in kernel.vfs(kernel.VFIO_CARD)] == ["902", "902"]


def test_libvirt_before_10_refuses_it_and_nothing_stays(vf: str) -> None:
    """libvirt 10.0 is the first that knows VFIO drivers other than vfio-pci."""
    xml = ours.orphaned("inject", "--vm", "vgpu", *WISH, stdin=guests.domain("vgpu")).out
    created = guests.create(xml)
    if guests.libvirt_version() >= (10, 0):
        assert created.returncode == 0, created.stderr
        assert kernel.opened(guests.pid("vgpu")) == ([kernel.group(vf)], 1)
        guests.virsh("destroy", "vgpu")
    else:
        said = f"Unmanaged PCI device {vf} must be manually detached from the host"
        assert (created.returncode, said.encode() in created.stderr) == (1, True)
    assert ours.reconcile() == ["VM vgpu: released"]
    assert current(vf) == "0"
