"""The ledger under any order of operations, and killed at any point."""
from __future__ import annotations

import os
import posix
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu import ledgerfile, ledgerrows
from kvm_gpu.errors import HostError
from kvm_gpu.ledger import Claim, Ledger
from kvm_gpu.model import Attribute, Command, Device, Driver, Hold, Mdev, Placement, Taken, Use

WORD = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12)
NUMBER = st.integers(0, 2**62)
MAYBE = st.none() | NUMBER
WORDS = st.lists(WORD, max_size=3).map(tuple)
CPUS = st.frozensets(st.integers(0, 1023), max_size=12).map(lambda cpus: tuple(sorted(cpus)))
PINS = st.lists(st.tuples(st.integers(0, 255), CPUS.filter(bool)), max_size=4).map(tuple)
STATE = st.sampled_from(["starting", "active", "releasing", "kept"])

CLAIMS = st.builds(Claim, WORD, WORD, st.none() | WORD, WORDS, STATE, st.booleans(), WORD,
                   st.none() | st.tuples(NUMBER, NUMBER), MAYBE, NUMBER, MAYBE, st.none() | WORD)
HOLDS = st.builds(Hold, WORD, WORD, WORD, WORD, WORD, NUMBER, NUMBER, st.just("vm"), st.just("starting"))
KINDS = st.sampled_from(["whole", "vf", "mdev", "nvidia_vfio"])
DEVICES = st.builds(Device, HOLDS, KINDS, WORDS, st.none() | WORD, MAYBE)
USES = st.builds(Use, st.just("vm"), st.integers(0, 99), MAYBE, PINS, CPUS, NUMBER, MAYBE, st.just(False))
ACTIONS = st.one_of(st.builds(Attribute, WORD, WORD, WORD, st.none() | WORD), st.builds(Mdev, WORD, WORD),
                    st.builds(Driver, WORD, st.none() | WORD, st.none() | WORD), st.builds(Command, WORDS, WORDS, WORD))


@given(CLAIMS, DEVICES, USES, ACTIONS)
@settings(max_examples=200, deadline=None)
def test_a_row_gives_the_same_value_back(claim: Claim, device: Device, use: Use, action: Any) -> None:
    assert ledgerrows.to_claim(ledgerrows.claim_row(claim)) == claim
    row = ledgerrows.device_row("c", device, "serial")
    assert ledgerrows.to_device((row[0], *row[2:8], "vm", "starting", *row[8:-1])) == device
    assert ledgerrows.to_use(("vm", *ledgerrows.use_row("c", use)[1:], 0)) == use
    kept = ledgerrows.to_action(ledgerrows.action_row("c", 0, action)[2:])
    assert (type(kept), kept) == (type(action), action)


# ---- against a model ----

OPERATIONS = st.lists(st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.frozensets(st.integers(0, 5), max_size=3),
              st.frozensets(st.integers(0, 5), max_size=3)),
    st.tuples(st.just("state"), st.integers(0, 5), STATE), st.tuples(st.just("remove"), st.integers(0, 5)),
    st.tuples(st.just("free_compute"), st.integers(0, 5)), st.tuples(st.just("reopen"))), max_size=25)


class Model:
    """What should be held: claim -> its state, slots and CPUs. The claim's number is its VM's."""

    def __init__(self) -> None:
        self.claims: dict[int, tuple[str, frozenset[int], frozenset[int] | None]] = {}

    def add(self, number: int, slots: frozenset[int], cpus: frozenset[int]) -> bool:
        free = number not in self.claims and all(
            slots.isdisjoint(held) and cpus.isdisjoint(used or ()) for _, held, used in self.claims.values())
        if free:
            self.claims[number] = "starting", slots, cpus
        return free

    def state(self, number: int, state: str) -> None:
        if number in self.claims:
            self.claims[number] = (state, *self.claims[number][1:])

    def remove(self, number: int) -> None:
        self.claims.pop(number, None)

    def free_compute(self, number: int) -> None:
        if number in self.claims:
            self.claims[number] = (*self.claims[number][:2], None)

    def taken(self) -> Taken:
        holds = sorted(_hold(slot, number, state)
                       for number, (state, slots, _) in self.claims.items() for slot in slots)
        uses = [_use(number, cpus, state in ("active", "releasing"))
                for number, (state, _, cpus) in sorted(self.claims.items()) if cpus is not None]
        return Taken(tuple(holds), tuple(uses))


def _hold(slot: int, number: int, state: Any) -> Hold:
    return Hold(f"slot {slot}", "board", "vf", "cell", "size", slot, 1, f"vm {number}", state)


def _use(number: int, cpus: frozenset[int], allocated: bool) -> Use:
    return Use(f"vm {number}", 0, None, (), tuple(sorted(cpus)), 1024, None, allocated)


def _add(ledger: Ledger, number: int, slots: frozenset[int], cpus: frozenset[int]) -> bool:
    claim = Claim(f"c{number}", f"vm {number}", None, (), "starting", False, "boot", None, None, 0)
    devices = tuple(Device(_hold(slot, number, "starting"), "vf", ()) for slot in sorted(slots))
    try:
        with ledger.write():
            ledger.add(claim, Placement(devices, (_use(number, cpus, False),)), ())
    except HostError:
        return False
    return True


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_any_order_of_operations_keeps_one_owner_for_each_slot_and_cpu(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger, model = Ledger(f"{folder}/state/ledger.db"), Model()
        for name, *values in operations:
            if name == "reopen":
                ledger = Ledger(ledger.path)
            elif name == "add":
                assert _add(ledger, *values) == model.add(*values)
            else:
                getattr(model, name)(*values)
                with ledger.note():
                    getattr(ledger, "set_state" if name == "state" else name)(f"c{values[0]}", *values[1:])
            assert ledger.taken() == model.taken()


# ---- killed ----

BEFORE = Claim("c1", "vm 1", None, (), "active", False, "boot", None, None, 0)


def _replace(ledger: Ledger) -> None:
    """One decision of many statements: c1 goes, c2 takes its slots and CPUs."""
    slots = tuple(Device(_hold(slot, 2, "starting"), "vf", ()) for slot in range(3))
    with ledger.write():
        ledger.remove("c1")
        ledger.add(BEFORE._replace(id="c2", vm="vm 2", state="starting"),
                   Placement(slots, (_use(2, frozenset(range(4)), False),)), (Mdev("uuid", "type"),))
        ledger.event("c2", "vm 2", "claimed")


def _whole(ledger: Ledger) -> tuple[object, ...]:
    return (ledger.claims(), ledger.taken(), ledger.actions("c2"), [event.event for event in ledger.events(9)])


def _in_child(work: Callable[[], None]) -> int:
    """What ended a process that does `work`: a signal's number, 0 for none."""
    if (pid := os.fork()) == 0:
        with ExitStack() as stack:
            stack.callback(os._exit, 1)
            work()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _killed_at(limit: int, function: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """`function`, which kills its process at the call `limit`, before or after doing its work."""
    calls = iter(range(limit + 1))

    def counted(*args: Any, **named: Any) -> Any:
        last = next(calls) == limit
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return function(*args, **named)
        finally:
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

    return counted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_killed_at_any_statement_has_done_all_or_nothing(tmp_path: Path, after: bool) -> None:
    seen = []
    for limit in range(100):
        ledger = Ledger(str(tmp_path / str(limit) / "ledger.db"))
        assert _add(ledger, 1, frozenset(range(3)), frozenset(range(4)))
        nothing = _whole(ledger)

        def work(path: str = ledger.path, limit: int = limit) -> None:
            child = Ledger(path)
            child._execute = _killed_at(limit, child._execute, after)   # type: ignore[method-assign]
            _replace(child)

        ended = _in_child(work)
        found = _whole(Ledger(ledger.path))
        seen.append(found != nothing)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        if seen[-1]:
            assert after
        else:
            _replace(Ledger(ledger.path))       # whoever comes next can write at once
            found = _whole(Ledger(ledger.path))
        assert found == _replaced()
    assert len(seen) > 15
    assert seen == [False] * (len(seen) - 1 - after) + [True] * (1 + after)     # only the commit itself makes it so


def _replaced() -> tuple[object, ...]:
    holds = tuple(_hold(slot, 2, "starting") for slot in range(3))
    return ((BEFORE._replace(id="c2", vm="vm 2", state="starting"),),
            Taken(holds, (_use(2, frozenset(range(4)), False),)), (Mdev("uuid", "type"),), ["claimed"])


CALLS = ("mkdir", "open", "close", "link", "unlink", "fsync", "stat")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_creator_killed_at_any_call_leaves_no_ledger_or_a_whole_one(tmp_path: Path, after: bool) -> None:
    calls = {name: getattr(posix, name) for name in dir(posix) if not name.startswith("__")}
    for limit in range(100):
        ledger = Ledger(str(tmp_path / str(limit) / "ledger.db"))

        def work(ledger: Ledger = ledger, limit: int = limit) -> None:
            kill = _killed_at(limit, lambda name, *args: calls[name](*args), after)
            counted = {name: partial(kill, name) for name in CALLS}
            ledgerfile.posix = SimpleNamespace(**{**calls, **counted})  # type: ignore[assignment]
            assert _add(ledger, 1, frozenset({1}), frozenset())

        ended = _in_child(work)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        assert Ledger(ledger.path).claims() == ()
        assert _add(Ledger(ledger.path), 2, frozenset({1}), frozenset())
        assert [claim.id for claim in Ledger(ledger.path).claims()] == ["c2"]
    assert 10 < limit < 99
