"""Giving back: by claim id, twice, and while a VM is still inside."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.host import Host

Boot = Callable[[str], Host]

NOTHING = (0, "Nothing to do.\n", "")
WISHES = {
    "nvidia_vfio": ("x48", "X48-8Q"),
    "mdev": ("t4-mdev", "T4-4Q"),
    "vf": ("whole-or-vf", "vf"),
    "whole": ("rtx6000x4", "rtx6000"),
}
each_mechanism = pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)


def claim(host: Host, vm: str, profile: str, *more: str) -> str:
    """The claim's id."""
    how = "--mechanism" if profile == "vf" else "--profile"
    made: str = host.json("claim", "--vm", vm, how, profile, *more)["claim"]
    return made


def test_twice(boot: Boot) -> None:
    host = boot("t4-mdev")
    claim(host, "one-1", "T4-4Q")
    assert host.run("release", "--vm", "one-1") == (0, "VM one-1: released\n", "")
    before = host.state()
    assert host.run("release", "--vm", "one-1") == NOTHING
    assert host.run("release", "--vm", "never-seen") == NOTHING
    assert host.state() == before


def test_before_there_is_a_ledger(boot: Boot) -> None:
    host = boot("t4-mdev")
    assert host.run("release", "--vm", "one-1") == NOTHING
    assert host.run("reconcile") == NOTHING
    assert not (host.root / "var/lib/kvm-gpu").exists()


def test_by_the_id_of_an_earlier_claim(boot: Boot) -> None:
    """A late stop hook of the VM's last run does not end the present one."""
    host = boot("t4-mdev")
    old = claim(host, "one-1", "T4-4Q")
    new = claim(host, "one-1", "T4-4Q")
    before = host.state()
    assert host.run("release", "--vm", "one-1", "--claim", old) == NOTHING
    assert host.run("release", "--vm", "one-1", "--claim", "0" * 16) == NOTHING
    assert host.run("release", "--vm", "one-2", "--claim", new) == NOTHING
    assert host.state() == before
    assert host.run("release", "--vm", "one-1", "--claim", new) == (0, "VM one-1: released\n", "")
    assert host.claims() == []


def test_a_claim_that_is_still_releasing_has_its_own_id(boot: Boot) -> None:
    host = boot("t4-mdev")
    old = claim(host, "one-1", "T4-4Q")
    host.vm_runs("one-1")
    host.run("release", "--vm", "one-1")
    (host.root / "run/libvirt/qemu/one-1.xml").unlink()     # libvirt has forgotten it, QEMU still ends
    new = claim(host, "one-1", "T4-4Q")
    host.kernel.vm_stop("one-1")
    assert host.run("release", "--vm", "one-1", "--claim", old) == (0, "VM one-1: released\n", "")
    assert [each["claim"] for each in host.claims()] == [new]


@each_mechanism
def test_while_the_vm_has_the_device(boot: Boot, wish: tuple[str, str]) -> None:
    host = boot(wish[0])
    before = host.kernel.snapshot()
    claim(host, "one-1", wish[1])
    host.vm_runs("one-1")
    running = host.kernel.snapshot()
    for done in (host.run("release", "--vm", "one-1"), host.run("release", "--vm", "one-1", "--force")):
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("VM one-1: releasing, still in use: ")
    assert host.run("reconcile") == NOTHING
    assert [(each["vm"], each["state"]) for each in host.claims()] == [("one-1", "releasing")]
    assert host.kernel.snapshot() == running
    host.kernel.vm_stop("one-1")
    assert host.run("reconcile") == (0, "VM one-1: released\n", "")
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_a_slot_that_is_still_open_goes_to_nobody(boot: Boot) -> None:
    host = boot("rtx6000x4")
    for number in range(4):
        claim(host, f"one-{number}", "rtx6000")
        host.vm_runs(f"one-{number}")
        host.run("release", "--vm", f"one-{number}")
    refused = host.run("claim", "--vm", "one-9", "--profile", "rtx6000")
    assert (refused.code, refused.out) == (3, "")
    assert "held by one-0" in refused.err
    host.kernel.vm_stop("one-2")
    assert host.run("claim", "--vm", "one-9", "--profile", "rtx6000").code == 0


def test_a_running_vm_claims_again(boot: Boot) -> None:
    host = boot("t4-mdev")
    first = claim(host, "one-1", "T4-4Q")
    host.vm_runs("one-1")
    host.run("reconcile")
    before = host.state()
    again = host.run("claim", "--vm", "one-1", "--profile", "T4-4Q")
    assert again == (5, "", f"kvm-gpu: VM one-1: runs, with claim {first}\nHint: stop the VM first\n")
    assert host.state() == before


@each_mechanism
def test_a_driver_that_refuses(boot: Boot, wish: tuple[str, str]) -> None:
    """What the kernel does not take back now stays `releasing`, and is tried again."""
    host = boot(wish[0])
    before = host.kernel.snapshot()
    claim(host, "one-1", wish[1])
    undone = [path for path in host.kernel.snapshot() if path.endswith("/remove")]
    undone += [action["path"] for action in host.json("show", "one-1")["actions"] if action["action"] == "attribute"]
    for path in undone:
        host.kernel.fail(path, 5)
    done = host.run("release", "--vm", "one-1")
    assert (done.code, done.err) == (0, "")
    assert (": EIO" in done.out, bool(host.claims())) == ((True, True) if undone else (False, False))
    assert host.run("reconcile").code == 0
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_a_type_that_somebody_changed_meanwhile(boot: Boot) -> None:
    """It is not ours any more: left as it is, and `--force` ends the claim."""
    host = boot("x48")
    claim(host, "one-1", "X48-8Q")
    current = host.json("show", "one-1")["actions"][0]["path"]
    host.kernel.write(current, "0")
    host.kernel.write(current, "9102")
    done = host.run("release", "--vm", "one-1")
    assert done.out == f"VM one-1: releasing, {current}: reads '9102', neither '0' as found nor '9108' as set\n"
    assert host.run("release", "--vm", "one-1", "--force") == (0, "VM one-1: released\n", "")
    assert (host.claims(), host.kernel.read(current)) == ([], b"9102\n")
