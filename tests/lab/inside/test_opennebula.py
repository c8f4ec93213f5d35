"""OpenNebula's deploy and cancel, as oneadmin runs them, with the real sudo, libvirtd and QEMU: what the kernel says
of the VM in between, and what is left afterwards."""
from __future__ import annotations

import socket

import pytest

from tests.lab.inside import guests, kernel, opennebula, ours
from tests.lab.inside.opennebula import Vm, begin_deploy, cancel, deploy

CLOSE = {"NUMA": "required", "CPU": "dedicated"}
MDEV = {"PROFILE": "LAB-1Q", "MECHANISM": "mdev"}
REFUSED = 3
FAILED = 255
NOT_EXCLUSIVE = "WARN: CPUs are not exclusive unless other VMs stay off the pool\n"


@pytest.fixture(scope="module", autouse=True)
def installed(host: None) -> None:
    opennebula.install()


def started(vm: Vm) -> bytes:
    return f"{vm.uuid}\n".encode()


def test_deploy_and_cancel() -> None:
    vm = Vm(7, {"PROFILE": "lab-vf", **CLOSE})
    assert deploy(vm) == (0, started(vm), NOT_EXCLUSIVE)
    [vf], pid = ours.slots(vm.name), guests.pid(vm.name)
    node = int(kernel.read(kernel.DEVICES / vf / "numa_node"))
    assert vf == kernel.vf(kernel.PLAIN[node])
    assert kernel.opened(pid) == ([kernel.group(vf)], 1)
    assert kernel.vcpus(pid) == {0: str(4 * node), 1: str(4 * node + 1)}
    assert kernel.guest_memory(pid) == (f"bind:{node}", {node: 32})
    assert ours.reconcile() == ["VM one-7: runs on its device"]
    assert cancel(vm) == (0, f"Domain '{vm.uuid}' destroyed\n\n".encode(), "INFO: VM one-7: released\n")
    assert (guests.running(), ours.claims(), kernel.driver(vf)) == ([], [], None)
    assert not opennebula.is_marked(vm)


def test_a_second_vm_is_refused_and_the_first_turns_itself_off() -> None:
    """oned calls nothing then."""
    first, second = Vm(3, {**MDEV, **CLOSE}, turns_off=True), Vm(4, {**MDEV, "PROFILE": "LAB-4Q"})
    assert deploy(first, "--paused") == (0, started(first), NOT_EXCLUSIVE)
    assert ours.reconcile() == ["VM one-3: runs on its device"]

    refused = deploy(second)
    assert (refused.code, refused.out) == (REFUSED, b"")
    told = refused.err.splitlines()
    assert told[0].startswith("no GPU free for 1 x LAB-4Q mdev on this host: ")
    assert f"INFO: GPU {kernel.MDEV_CARD}: runs LAB-1Q (one size per board)" in told
    assert (second.deployment_file.exists(), opennebula.is_marked(second)) == (False, False)

    [uuid] = kernel.mdevs()
    assert kernel.opened(guests.pid(first.name)) == ([kernel.group_of_mdev(uuid)], 1)
    guests.virsh("resume", first.name)
    guests.wait_for(lambda: guests.running() == [])
    assert (ours.claims(), kernel.mdevs()) == ([("one-3", "active")], [uuid])
    assert ours.reconcile() == ["VM one-3: released"]
    assert (ours.claims(), kernel.mdevs()) == ([], [])


def test_a_stock_deploy_that_fails_gives_all_back() -> None:
    """QEMU cannot have the port of its display. The card had given up its VFs by then."""
    before, vm = kernel.state(), Vm(5, {"MECHANISM": "whole", "MODEL": "lab"})
    with socket.create_server(("127.0.0.1", vm.display_port)):
        done = deploy(vm)
    assert (done.code, done.out) == (FAILED, b"")
    first, why, *rest = done.err.splitlines()
    assert first == f"error: Failed to create domain from {vm.deployment_file}"
    assert why.endswith("Failed to find an available port: Address already in use")
    assert rest == [f"Could not create domain from {vm.deployment_file}", "INFO: VM one-5: released"]
    assert (kernel.state(), ours.claims(), opennebula.is_marked(vm)) == (before, [], False)


def test_two_starts_at_once_on_huge_pages_for_one() -> None:
    """Both want 48 of the 64 pages of the node where the mdev cards are."""
    starts = [(vm, begin_deploy(vm)) for vm in (Vm(number, {**MDEV, **CLOSE}, mib=96) for number in (1, 2))]
    ends = [(ours.end(start), vm) for vm, start in starts]
    (done, given), (refusal, refused) = sorted(ends, key=lambda end: end[0].code)
    assert done == (0, started(given), NOT_EXCLUSIVE)
    assert (refusal.code, refusal.out) == (REFUSED, b"")
    told = refusal.err.splitlines()
    assert told[0].startswith("no GPU free for 1 x LAB-1Q mdev on this host: numa=preferred would fit; ")
    assert f"INFO: GPU {kernel.MDEV_CARD}: node1 has 16 of 48 free 2 MiB pages (GPU node)" in told
    assert (guests.running(), opennebula.is_marked(refused)) == ([given.name], False)
    assert kernel.guest_memory(guests.pid(given.name)) == ("bind:1", {1: 48})
