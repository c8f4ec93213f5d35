"""Domains of the real libvirt, started with the XML that `kvm-gpu inject` wrote: what the kernel says of them."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.inside import guests, kernel, ours

WISH = ("--numa", "required", "--cpu", "dedicated")
NODE_CPUS = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
PAGES = 32      # of 2 MiB, for 64 MiB


def start(vm: str, *wish: str) -> int:
    """Pid of the QEMU of a VM that gets what it wishes and runs, of which reconcile has come to know."""
    created = guests.create(ours.inject(vm, guests.domain(vm), *wish, *WISH))
    assert created.returncode == 0, created.stderr
    assert ours.reconcile() == [f"VM {vm}: runs on its device"]
    return guests.pid(vm)


def end(vm: str) -> None:
    guests.virsh("destroy", vm)
    assert ours.reconcile() == [f"VM {vm}: released"]


def assert_all_on_node(pid: int, node: int) -> None:
    """Each vCPU on a CPU of its own, and the memory in huge pages, all on this node."""
    cpus = kernel.vcpus(pid)
    assert sorted(cpus) == [0, 1]
    assert len(set(cpus.values())) == 2
    assert {int(cpu) for cpu in cpus.values()} < NODE_CPUS[node]
    assert kernel.status(Path(f"/proc/{pid}"), "Mems_allowed_list") == str(node)
    assert kernel.guest_memory(pid) == (f"bind:{node}", {node: PAGES})
    assert [kernel.free_pages(one) for one in (0, 1)] == [32 if one == node else 64 for one in (0, 1)]


@pytest.mark.parametrize("node", [0, 1])
def test_vf(node: int) -> None:
    other = kernel.PLAIN[1 - node]
    ours.run("cordon", other)
    pid = start("vf", "--mechanism", "vf")
    assert_all_on_node(pid, node)
    given = kernel.vf(kernel.PLAIN[node])
    assert ours.slots("vf") == [given]
    assert kernel.group_members(given) == [given]
    assert kernel.opened(pid) == ([kernel.group(given)], 1)
    assert kernel.driver(given) == "vfio-pci"
    end("vf")
    assert kernel.driver(given) is None
    ours.run("uncordon", other)


def test_a_whole_card_of_two_functions() -> None:
    pid = start("display", "--model", "1234:1111")
    assert_all_on_node(pid, 0)
    assert kernel.group_members(kernel.DISPLAY[0]) == [*kernel.DISPLAY]
    assert kernel.opened(pid) == ([kernel.group(kernel.DISPLAY[0])], 2)
    assert [kernel.driver(function) for function in kernel.DISPLAY] == ["vfio-pci", "vfio-pci"]
    end("display")
    assert [kernel.driver(function) for function in kernel.DISPLAY] == [None, "snd_hda_intel"]


def test_a_whole_card_whose_vfs_go_first_and_come_back() -> None:
    card = kernel.PLAIN[1]
    ours.run("cordon", kernel.PLAIN[0])
    pid = start("card", "--mechanism", "whole", "--model", "lab")
    assert_all_on_node(pid, 1)
    assert kernel.opened(pid) == ([kernel.group(card)], 1)
    assert (kernel.driver(card), kernel.vfs(card)) == ("vfio-pci", [])
    end("card")
    assert (kernel.driver(card), len(kernel.vfs(card))) == ("nvme", 2)
    ours.run("uncordon", kernel.PLAIN[0])


def test_an_mdev_until_its_guest_turns_itself_off() -> None:
    turns_off = guests.domain("mdev", turns_off=True)
    xml = ours.inject("mdev", turns_off, "--mechanism", "mdev", "--profile", "LAB-2Q", *WISH)
    assert guests.create(xml, "--paused").returncode == 0
    assert ours.reconcile() == ["VM mdev: runs on its device"]
    pid, [uuid] = guests.pid("mdev"), kernel.mdevs()
    assert_all_on_node(pid, 1)
    assert kernel.opened(pid) == ([kernel.group_of_mdev(uuid)], 1)
    guests.virsh("resume", "mdev")
    guests.wait_for(lambda: guests.running() == [])
    assert ours.reconcile() == ["VM mdev: released"]
    assert kernel.mdevs() == []


def test_two_starts_at_once_on_huge_pages_for_one() -> None:
    """Both want 48 of the 64 pages of the node where the mdev cards are."""
    wish = ("--mechanism", "mdev", "--profile", "LAB-1Q", *WISH)
    starts = {vm: ours.begin("inject", "--vm", vm, *wish, stdin=guests.domain(vm, mib=96)) for vm in ("one", "two")}
    ends = {vm: ours.end(start) for vm, start in starts.items()}
    assert sorted(end.code for end in ends.values()) == [0, 3]
    given, refused = sorted(ends, key=lambda vm: ends[vm].code)
    assert "node1 has 16 of 48 free 2 MiB pages" in ends[refused].err
    assert guests.create(ends[given].out).returncode == 0
    assert kernel.guest_memory(guests.pid(given)) == ("bind:1", {1: 48})
