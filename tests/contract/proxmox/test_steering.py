"""Proxmox VE's reservations: what others have is respected, starts compose, and nothing stays behind."""
from __future__ import annotations

import fcntl
import time
from collections.abc import Callable

import pytest

from tests.contract.host import answer
from tests.contract.proxmox.node import BOOK, Given, Node, StartFailed, states

Up = Callable[[str], Node]

A, B, C, D = (f"0000:{bus}:00.4" for bus in ("25", "26", "27", "28"))
CONF = "cores: 1\nmemory: 2048\nhostpci0: mapping=gpu-a16-16q,mdev=nvidia-715\n"     # one fills a GPU
LATER = int(time.time()) + 1000


@pytest.fixture
def node(up: Up) -> Node:
    node = up("a16-vfio")
    node.mapping("gpu-a16-16q", A, B, C, D)
    for vm in (104, 105, 106):
        node.vm(vm, CONF)
    return node


@pytest.mark.parametrize(("line", "slot"), [
    (f"{A} 200 time:{LATER}", B), (f"{A} 200 time:100", A), (f"{A} 200 pid:4000000", A), (f"{A} 104 time:{LATER}", A),
    (f"{A} 999999999 time:{LATER}", A), ("nonsense", A), (f"{A} 200 time:{LATER} and more", A), (f"{B} x time:1", A),
], ids=["being started", "expired", "ended", "our own", "steered", "nonsense", "too much", "no VMID"])
def test_reservations_of_others(node: Node, line: str, slot: str) -> None:
    node.reserve(line)
    assert node.hook(104, "pre-start").code == 0
    assert states(node) == [("104", "starting", [slot])]
    given = node.choose(104)
    assert given == [Given((slot,))]


def test_a_vm_without_the_hook_keeps_its_device(node: Node) -> None:
    node.run(105, node.choose(105))
    given, _ = node.start(104)
    assert given == [Given((B,))]
    assert node.book() == [f"{A} 105 pid", f"{B} 104 pid"]


def test_all_are_reserved(node: Node) -> None:
    node.reserve(*(f"{address} 20{number} time:{LATER}" for number, address in enumerate((A, B, C, D))))
    before = node.host.state()
    assert node.hook(104, "pre-start") == (
        3, "", "GPU: VM 104: hostpci0 (gpu-a16-16q): none is free\n" + "".join(
            f"GPU:   {address}: reserved by Proxmox VE for VM 20{number}\n" for number, address in
            enumerate((A, B, C, D))) + "GPU: Hint: stop one of these VMs\n")
    assert node.host.state() == before


def test_a_refusal_tells_of_both_books(node: Node) -> None:
    node.reserve(f"{A} 200 time:{LATER}")
    for number in range(4):
        assert node.host.run("claim", "--vm", f"other-{number}", "--profile", "A16-16Q").code == 0
    done = node.hook(104, "pre-start")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("GPU: VM 104: 1 x A16-16Q: refused on this host\n")
    assert f"GPU:   {A}: reserved by Proxmox VE for VM 200\n" in done.err


def test_two_starts_at_once(node: Node) -> None:
    """Both decide before either has chosen; whoever chooses first takes its own."""
    begun = [node.begin(vm, "pre-start") for vm in (104, 105)]
    assert [answer(one).code for one in begun] == [0, 0]
    claims = {vm: slots for vm, _, slots in states(node)}
    assert sorted(claims.values()) == [[A], [B]]
    assert node.book() == [f"{A} {'104' if claims['104'] == [A] else '105'} time",
                           f"{B} {'104' if claims['104'] == [B] else '105'} time",
                           f"{C} 999999999 time", f"{D} 999999999 time"]
    for vm in (105, 104):
        given = node.choose(vm)
        assert [list(one.functions) for one in given] == [claims[str(vm)]]
        node.run(vm, given)
        node.hook(vm, "post-start")
    assert sorted(line.split()[1:] for line in node.book()) == [["104", "pid"], ["105", "pid"]]


def test_steering_lasts_while_another_start_needs_it(node: Node) -> None:
    node.hook(104, "pre-start")
    node.hook(105, "pre-start")
    node.run(104, node.choose(104))
    node.hook(104, "post-start")
    assert node.book() == [f"{A} 104 pid", f"{B} 105 time", f"{C} 999999999 time", f"{D} 999999999 time"]
    node.cleanup(105)                       # its start failed
    node.hook(106, "pre-start")             # nobody else needs the old lines; it has its own
    node.run(106, node.choose(106))
    node.hook(106, "post-start")
    assert [line.split()[1:] for line in node.book()] == [["104", "pid"], ["106", "pid"]]


def test_a_crowd(node: Node) -> None:
    """Six starts for four devices: two are refused, the others get one each."""
    for vm in range(110, 116):
        node.vm(vm, CONF)
    codes = [answer(one).code for one in [node.begin(vm, "pre-start") for vm in range(110, 116)]]
    assert sorted(codes) == [0, 0, 0, 0, 3, 3]
    given = {}
    for vm, code in zip(range(115, 109, -1), reversed(codes), strict=True):
        if code == 0:
            given[str(vm)] = list(node.choose(vm)[0].functions)
    assert given == {vm: slots for vm, _, slots in states(node)}
    assert sorted(given.values()) == [[A], [B], [C], [D]]


def test_a_vm_without_the_hook_waits_for_a_start_under_way(node: Node) -> None:
    node.hook(104, "pre-start")
    with pytest.raises(StartFailed, match="could not find a free device"):
        node.choose(105)
    node.run(104, node.choose(104))
    node.hook(104, "post-start")
    assert node.choose(105) == [Given((B,))]


def test_the_lock_is_waited_for(node: Node) -> None:
    with (node.root / f"{BOOK}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = node.begin(104, "pre-start")
        time.sleep(1)
        assert begun.poll() is None
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert answer(begun).code == 0


def test_a_lock_that_stays_held_fails_the_start(node: Node) -> None:
    before = node.kernel.snapshot()
    with (node.root / f"{BOOK}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = node.hook(104, "pre-start")
    assert (done.code, done.out) == (75, "")
    assert done.err == f"GPU: {node.root}/{BOOK}.lock: held by another process for 10 s\nGPU: Hint: try again\n"
    assert (states(node), node.book(), node.kernel.snapshot()) == ([], [], before)
