"""post-start and what comes after: what QEMU really has, its threads and its scope; a VM that ends in every way."""
from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.contract.proxmox.node import Given, Node, states
from tests.contract.proxmox.qemu import qemu

Up = Callable[[str], Node]

VFS = [f"0000:a5:{device:02x}.{function}" for device, function in [divmod(number, 8) for number in range(4, 20)]]
CONF = "cores: 2\nmemory: 4096\nhostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n"
OFFERS = '[offer.near]\nprofile = "A16-4Q"\ncpu = "shared"\nnuma = "required"\n'
ALL = set(os.sched_getaffinity(0))


@pytest.fixture
def node(up: Up) -> Node:
    assert {0, 1} <= ALL, "these tests need the CPUs 0 and 1"
    node = up("two-cpus")
    node.mapping("gpu-a16-4q", *VFS)
    node.host.write("/etc/kvm-gpu/offers.toml", OFFERS)
    return node


def run(node: Node, vm: int, given: list[Given] | None = None, tasks: tuple[int, ...] = ()) -> int:
    """QEMU starts, in a scope that has what the drop-in says."""
    pid = node.run(vm, node.choose(vm) if given is None else given)
    for task in tasks:
        node.kernel.place(f"/proc/{pid}/task/{task}")
    names = {"AllowedCPUs": "cpuset.cpus", "AllowedMemoryNodes": "cpuset.mems"}
    for name, value in node.dropin(vm).items():
        node.kernel.place(f"/sys/fs/cgroup/qemu.slice/{vm}.scope/{names[name]}", value)
    return pid


def test_threads_are_pinned_beside_the_device(node: Node) -> None:
    node.vm(104, CONF + "tags: gpu-offer-near\n")
    assert node.hook(104, "pre-start") == (
        0, "GPU: hostpci0 (gpu-a16-4q): A16-4Q at 0000:a5:00.4, NUMA node 1\nGPU: CPUs 1\nGPU: memory on node 1\n"
           "", "")
    assert node.dropin(104) == {"AllowedCPUs": "1", "AllowedMemoryNodes": "1"}
    with qemu(node.root / "run/qemu-server/104.qmp", vcpus=2) as told:
        run(node, 104, tasks=(*told.vcpus, *told.others))
        assert node.hook(104, "post-start") == (
            0, "GPU: QEMU has 0000:a5:00.4\nGPU: 2 vCPUs pinned to CPUs 1\n", "")
        assert told.affinity() == ([{1}, {1}], [{1}])
        assert told.asked == ["qmp_capabilities", "query-cpus-fast"]
    assert states(node) == [("104", "active", ["0000:a5:00.4"])]


def test_threads_that_are_not_qemus_are_left_alone(node: Node) -> None:
    node.vm(104, CONF + "tags: gpu-offer-near\n")
    node.hook(104, "pre-start")
    with qemu(node.root / "run/qemu-server/104.qmp", vcpus=2, others=0) as told:
        run(node, 104, tasks=(told.vcpus[0],))
        assert node.hook(104, "post-start") == (
            0, "GPU: QEMU has 0000:a5:00.4\nGPU: WARN: vCPUs not pinned: QEMU names threads "
               f"{told.vcpus[1]}, which are not its own\n", "")
        assert told.affinity() == ([ALL, ALL], [])


def test_a_monitor_that_says_nothing(node: Node) -> None:
    node.vm(104, CONF + "tags: gpu-offer-near\n")
    node.hook(104, "pre-start")
    path = node.root / "run/qemu-server/104.qmp"
    with qemu(path, vcpus=2) as told:
        told.speechless = True
        run(node, 104)
        assert node.hook(104, "post-start") == (
            0, f"GPU: QEMU has 0000:a5:00.4\nGPU: WARN: vCPUs not pinned: {path}: timed out\n", "")
    path.unlink()
    assert node.hook(104, "post-start") == (
        0, "GPU: QEMU has 0000:a5:00.4\nGPU: WARN: vCPUs not pinned: /run/qemu-server/104.qmp: [Errno 2] No such file "
           "or directory\n".replace("/run/", f"{node.root}/run/"), "")
    assert states(node) == [("104", "active", ["0000:a5:00.4"])]


def test_another_device_than_the_chosen_one(node: Node) -> None:
    """Where volumes took longer to activate than the reservation lasts."""
    node.vm(104, CONF)
    node.hook(104, "pre-start")
    node.kernel.write(f"/sys/bus/pci/devices/{VFS[1]}/nvidia/current_vgpu_type", "713")
    run(node, 104, [Given((VFS[1],))])
    assert node.hook(104, "post-start") == (
        0, f"GPU: WARN: QEMU has {VFS[1]} in place of {VFS[0]}\n", "")
    [claim] = node.host.claims()
    assert (claim["state"], claim["verified_at"], claim["note"]) == (
        "active", None, f"QEMU has {VFS[1]} in place of {VFS[0]}")
    node.stop(104)
    assert (states(node), node.book()) == ([], [])


def test_a_scope_that_is_not_bound(node: Node) -> None:
    node.vm(104, CONF)
    node.hook(104, "pre-start")
    node.run(104, node.choose(104))
    assert node.hook(104, "post-start") == (
        0, "GPU: QEMU has 0000:a5:00.4\nGPU: WARN: the VM's scope has AllowedMemoryNodes not set and not 1\n", "")


def test_one_reload_for_a_boot(node: Node) -> None:
    """The folder stays, and systemd knows it; what is in it is read for each scope."""
    node.vm(104, CONF)
    for _ in range(2):
        node.start(104)
        assert node.dropin(104) == {"AllowedMemoryNodes": "1"}
        node.stop(104)
        assert node.dropin(104) == {}
    assert node.reloaded() == ["daemon-reload"]


def test_a_start_whose_worker_dies_is_reconciled(node: Node) -> None:
    """No phase is called after it."""
    node.vm(104, CONF)
    before = node.kernel.snapshot()
    assert node.hook_of_a_worker_that_dies(104, "pre-start").code == 0
    assert states(node) == [("104", "starting", [VFS[0]])]
    node.cleanup(104)
    assert node.host.json("reconcile") == {"done": ["VM 104: released"]}
    assert (states(node), node.kernel.snapshot()) == ([], before)
    assert node.hook(104, "post-stop") == (0, "", "")


def test_a_start_that_is_under_way_is_not_reconciled(node: Node) -> None:
    node.vm(104, CONF)
    node.hook(104, "pre-start")
    assert node.host.json("reconcile") == {"done": []}
    assert states(node) == [("104", "starting", [VFS[0]])]


def test_the_next_start_after_one_that_failed(node: Node) -> None:
    node.vm(104, CONF)
    for _ in range(2):
        assert node.hook(104, "pre-start").code == 0
        node.cleanup(104)
    given, _ = node.start(104)
    assert given == [Given((VFS[0],))]
    assert states(node) == [("104", "active", [VFS[0]])]


def test_qemu_was_killed(node: Node) -> None:
    """qmeventd runs `qm cleanup`; where it does not, the next start finds the old pid file."""
    node.vm(104, CONF)
    node.start(104)
    node.kernel.vm_stop("104")
    node.cleanup(104)
    assert node.hook(104, "post-stop") == (0, "GPU: VM 104: released\n", "")
    node.start(104)
    node.kernel.vm_stop("104")
    given, _ = node.start(104)
    assert given == [Given((VFS[0],))]
    assert states(node) == [("104", "active", [VFS[0]])]


def test_the_source_of_a_live_migration_is_reconciled(node: Node) -> None:
    """post-stop is not called there."""
    node.vm(104, CONF)
    node.start(104)
    node.kernel.vm_stop("104")
    node.cleanup(104)
    assert node.host.json("reconcile") == {"done": ["VM 104: released"]}
    assert states(node) == []


def test_a_device_that_stays_open_stays_claimed(node: Node) -> None:
    node.vm(104, CONF)
    node.start(104)
    node.hook(104, "pre-stop")
    done = node.hook(104, "post-stop")      # qm stop gave up; QEMU is still there
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("GPU: VM 104: releasing, still in use: ")
    assert states(node) == [("104", "releasing", [VFS[0]])]
    node.vm(105, CONF)
    given, _ = node.start(105)
    assert given == [Given((VFS[1],))]


def test_a_released_claim_is_told(node: Node) -> None:
    node.vm(104, CONF)
    node.hook(104, "pre-start")
    node.host.run("release", "--vm", "104", "--force")
    run(node, 104)
    assert node.hook(104, "post-start") == (0, "GPU: WARN: its claim was released meanwhile\n", "")


def test_a_vm_that_lost_its_device_loses_its_binding(node: Node) -> None:
    node.vm(104, CONF)
    node.hook(104, "pre-start")
    node.cleanup(104)
    assert node.dropin(104) == {"AllowedMemoryNodes": "1"}
    node.vm(104, "cores: 2\n")
    for phase in ("pre-start", "post-start", "post-stop"):
        assert node.hook(104, phase) == (0, "", "")
    assert node.dropin(104) == {}
