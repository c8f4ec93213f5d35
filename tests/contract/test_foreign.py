"""What others made: seen, counted as foreign, never given and never written."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contract.host import Host

Boot = Callable[[str], Host]

PCI = "/sys/bus/pci/devices/"
UUID = "aaaaaaaa-0000-4000-8000-00000000000a"


def counts(host: Host, board: str, profile: str) -> tuple[int, int, int, int]:
    """total, taken, free, foreign"""
    row: Any
    row, = (row for row in host.json("capacity")["rows"] if (row["board"], row["profile"]) == (board, profile))
    return row["total"], row["taken"], row["free"], row["foreign"]


def use_up(host: Host, *wish: str) -> list[str]:
    """The slots that VMs get until one is refused, all released again."""
    slots, vm = [], "one-0"
    while (done := host.run("--json", "claim", "--vm", vm, *wish)).code == 0:
        slots.append(done.json["slots"][0]["slot"])
        vm = f"one-{len(slots)}"
    assert done.code == 3, done
    for number in range(len(slots)):
        assert host.run("release", "--vm", f"one-{number}").code == 0
    return sorted(slots)


def test_an_mdev_made_by_hand(boot: Boot) -> None:
    host = boot("t4-mdev")
    host.kernel.write(PCI + "0000:3b:00.0/mdev_supported_types/nvidia-232/create", UUID)
    before = host.kernel.snapshot()
    assert counts(host, "0000:3b:00.0", "T4-4Q") == (4, 0, 3, 1)
    assert len(use_up(host, "--profile", "T4-4Q")) == 7
    assert host.run("reconcile").code == 0
    assert host.kernel.snapshot() == before


def test_an_mdev_of_another_size_decides_the_board(boot: Boot) -> None:
    host = boot("t4-mdev")
    host.kernel.write(PCI + "0000:3b:00.0/mdev_supported_types/nvidia-230/create", UUID)
    assert [slot.partition("#")[0] for slot in use_up(host, "--profile", "T4-4Q")] == ["0000:af:00.0"] * 4


def test_a_type_set_by_hand(boot: Boot) -> None:
    host = boot("x48")
    current = PCI + "0000:17:00.4/nvidia/current_vgpu_type"
    host.kernel.write(current, "9124")
    before = host.kernel.snapshot()
    assert counts(host, "0000:17:00.0", "X48-24Q") == (2, 0, 1, 1)
    slots = use_up(host, "--profile", "X48-24Q")
    assert len(slots) == 3
    assert "0000:17:00.4" not in slots
    assert host.kernel.snapshot() == before


def test_a_type_set_behind_the_back_of_the_cache(boot: Boot) -> None:
    host = boot("x48")
    host.run("inventory")
    host.kernel.write(PCI + "0000:17:00.4/nvidia/current_vgpu_type", "9108")
    claimed = host.json("claim", "--vm", "one-1", "--profile", "X48-8Q")
    assert claimed["slots"][0]["slot"] == "0000:17:00.5"
    assert host.kernel.read(PCI + "0000:17:00.4/nvidia/current_vgpu_type") == b"9108\n"


def test_a_vm_started_by_hand_on_a_whole_card(boot: Boot) -> None:
    host = boot("rtx6000x4")
    host.run("inventory")
    functions = tuple(f"0000:3b:00.{number}" for number in range(4))
    host.kernel.vm_start("by-hand", managed=functions)
    before = host.kernel.snapshot()
    assert use_up(host, "--profile", "rtx6000") == ["0000:5e:00.0", "0000:af:00.0", "0000:d8:00.0"]
    assert counts(host, "0000:3b:00.0", "rtx6000") == (1, 0, 0, 1)
    assert host.run("release", "--vm", "by-hand", "--force") == (0, "Nothing to do.\n", "")
    assert host.kernel.snapshot() == before
    host.kernel.vm_stop("by-hand")
    assert counts(host, "0000:3b:00.0", "rtx6000") == (1, 0, 1, 0)


def test_a_vm_started_by_hand_on_a_vf(boot: Boot) -> None:
    host = boot("whole-or-vf")
    host.kernel.vm_start("by-hand", managed=("0000:3b:00.4",))
    before = host.kernel.snapshot()
    assert use_up(host, "--mechanism", "vf") == ["0000:3b:00.5"]
    refused = host.run("claim", "--vm", "one-1", "--mechanism", "whole")
    assert (refused.code, refused.out) == (3, "")       # its VFs are not all idle
    assert host.kernel.snapshot() == before
