"""Claims that are kept while the VM is stopped."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.host import DOMAIN, Host

Boot = Callable[[str], Host]

WISHES = {
    "nvidia_vfio": ("x48", ("--profile", "X48-24Q", "--keep"), 4),
    "mdev": ("t4-mdev", ("--profile", "T4-8Q", "--keep"), 4),
    "vf": ("whole-or-vf", ("--mechanism", "vf", "--keep"), 2),
    "whole": ("rtx6000x4", ("--profile", "rtx6000", "--keep"), 4),
}
each_mechanism = pytest.mark.parametrize("case", WISHES.values(), ids=WISHES)


@each_mechanism
def test_stop_and_start(boot: Boot, case: tuple[str, tuple[str, ...], int]) -> None:
    """The slot stays, with its vGPU; CPUs and memory go back; the next start gets the same."""
    name, wish, capacity = case
    host = boot(name)
    before = host.kernel.snapshot()
    first = host.json("claim", "--vm", "one-0", *wish)
    ready = host.kernel.snapshot()
    host.vm_runs("one-0")
    host.run("reconcile")
    host.kernel.vm_stop("one-0")
    assert host.run("reconcile") == (0, "VM one-0: stopped, keeps its device\n", "")
    kept = "VM one-0: keeps its device while it is stopped; `release --force` gives it up\n"
    assert host.run("release", "--vm", "one-0") == (0, kept, "")
    assert [(claim["state"], claim["keep"]) for claim in host.claims()] == [("kept", True)]
    assert host.kernel.snapshot() == ready

    others = [host.run("claim", "--vm", f"one-{number}", *wish).code for number in range(1, capacity + 1)]
    assert others == [0] * (capacity - 1) + [3]
    again = host.json("claim", "--vm", "one-0", *wish)
    assert again["slots"] == first["slots"]
    for number in range(capacity):
        assert host.run("release", "--vm", f"one-{number}", "--force") == (0, f"VM one-{number}: released\n", "")
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_cpus_of_a_stopped_vm_are_free(boot: Boot) -> None:
    host = boot("rtx6000x4")
    host.write("/etc/kvm-gpu/config.toml", '[cpus]\ndedicated = "0,16"\n')
    wish = ("--profile", "rtx6000", "--cpu", "dedicated")
    assert host.run("inject", "--vm", "one-0", *wish, "--keep", stdin=DOMAIN).code == 0
    assert host.run("inject", "--vm", "one-1", *wish, stdin=DOMAIN).code == 3
    assert host.run("release", "--vm", "one-0").out == "VM one-0: stopped, keeps its device\n"
    assert host.run("inject", "--vm", "one-1", *wish, stdin=DOMAIN).code == 0


def test_after_a_reboot(boot: Boot) -> None:
    host = boot("t4-mdev")
    before = host.kernel.snapshot()
    wish = ("--profile", "T4-8Q")
    kept = host.json("claim", "--vm", "one-0", *wish, "--keep")["slots"]
    host.json("claim", "--vm", "one-1", *wish)
    host.kernel.reboot()
    assert sorted(host.json("reconcile")["done"]) == [
        "VM one-0: keeps 0000:3b:00.0#0 after the reboot", "VM one-0: stopped, keeps its device", "VM one-1: released"]
    assert host.kernel.list("/sys/bus/mdev/devices") == ()
    others = [host.run("claim", "--vm", f"one-{number}", *wish).code for number in range(2, 6)]
    assert others == [0, 0, 0, 3]
    assert host.json("claim", "--vm", "one-0", *wish, "--keep")["slots"] == kept
    for number in (0, 2, 3, 4):
        host.run("release", "--vm", f"one-{number}", "--force")
    assert host.claims() == []
    assert [path for path in host.kernel.snapshot() if path not in before] == []
