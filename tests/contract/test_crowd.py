"""Sixteen starts at the same moment on a host with fewer places: all are given, each once, the rest refused."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.host import DOMAIN, Answer, Host, answer

Boot = Callable[[str], Host]

CROWD = 16


class Crowd(NamedTuple):
    host: str
    profile: str
    capacity: int


CROWDS = {
    "nvidia_vfio": Crowd("l40s-vfio", "L40S-12Q", 8),
    "mdev on the PF": Crowd("t4-mdev", "T4-4Q", 8),
    "mdev on VFs": Crowd("a40-mdev", "A40-12Q", 8),
    "vf": Crowd("flex170", "flex170-vf", 8),
    "whole": Crowd("rtx6000x4", "rtx6000", 4),
}


def all_at_once(host: Host, *argv: str, stdin: Path | None = None) -> list[Answer]:
    """The answers to VMs one-0 to one-15."""
    crowd = []
    for number in range(CROWD):
        with (stdin or Path("/dev/null")).open("rb") as file:
            crowd.append(host.start(argv[0], "--vm", f"one-{number}", *argv[1:], stdin=file))
    return [answer(start) for start in crowd]


def check(host: Host, answers: list[Answer], given: int) -> None:
    """Exit codes and words of all, and that no slot was given twice."""
    assert Counter(each.code for each in answers) == {0: given, 3: CROWD - given}, answers
    for vm, each in enumerate(answers):
        if each.code == 3:
            assert each.out == ""
            assert each.err.startswith(f"VM one-{vm}: ")
            assert ": refused on this host\n  0000:" in each.err
        else:
            assert each.err == ""
    winners = {f"one-{vm}" for vm, each in enumerate(answers) if each.code == 0}
    slots = host.slots()
    assert {vm for vm, _ in slots} == winners
    assert len({slot for _, slot in slots}) == given == len(slots)


def set_by_kernel(host: Host) -> list[str]:
    """VFs with a vGPU type and mdevs, as the kernel shows them."""
    snapshot = host.kernel.snapshot()
    types = [path.split("/")[-3] for path, content in snapshot.items()
             if path.endswith("/current_vgpu_type") and content != "0\n"]
    return sorted(types) + sorted(host.kernel.list("/sys/bus/mdev/devices"))


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_all_is_given_and_nothing_twice(boot: Boot, crowd: Crowd) -> None:
    host = boot(crowd.host)
    before = host.kernel.snapshot()
    check(host, all_at_once(host, "claim", "--profile", crowd.profile), crowd.capacity)
    slots = [slot for claim in host.claims() for slot in claim["slots"]]
    made = [slot["uuid"] or slot["slot"] for slot in slots if slot["mechanism"] in ("mdev", "nvidia_vfio")]
    assert set_by_kernel(host) == sorted(made)
    for vm, _ in host.slots():
        assert host.run("release", "--vm", vm).code == 0
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


@pytest.mark.parametrize("crowd", [CROWDS["nvidia_vfio"], CROWDS["mdev on the PF"], CROWDS["vf"]],
                         ids=["nvidia_vfio", "mdev", "vf"])
def test_dedicated_cpus_go_to_one_vm_each(boot: Boot, crowd: Crowd, tmp_path: Path) -> None:
    """Two vCPUs each take a core: a pool of six cores serves six of the eight places."""
    host = boot(crowd.host)
    host.write("/etc/kvm-gpu/config.toml", '[cpus]\ndedicated = "2-4,10-12,18-20,26-28"\n')
    domain = tmp_path / "domain.xml"
    domain.write_bytes(DOMAIN)
    answers = all_at_once(host, "inject", "--profile", crowd.profile, "--cpu", "dedicated", "--numa", "required",
                          stdin=domain)
    taken = Counter(cpu for vm in {vm for vm, _ in host.slots()}
                    for row in host.json("show", vm)["cpus"] for cpu in row["pcpus"])
    assert taken == dict.fromkeys([*range(2, 5), *range(10, 13), *range(18, 21), *range(26, 29)], 1)
    check(host, [each._replace(out="") if each.code == 3 else each for each in answers], 6)


def test_the_first_start_of_a_host_makes_one_ledger(boot: Boot) -> None:
    host = boot("t4-mdev")
    assert not (host.root / "var/lib/kvm-gpu").exists()
    all_at_once(host, "claim", "--profile", "T4-8Q")
    assert sorted(path.name for path in (host.root / "var/lib/kvm-gpu").glob("*")) == [
        "ledger.db", "ledger.db-shm", "ledger.db-wal"]
