"""kill -9 at every boundary of a start and of a release, with all that is ever written to a kernel in one claim."""
from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import kernel, ours

WANTS = [{"mechanism": "whole", "model": "lab"}, {"mechanism": "mdev", "profile": "LAB-2Q"},
         {"mechanism": "nvidia_vfio", "profile": "LAB-2Q"}]


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"vm": {"id": "vm"}, "wants": WANTS}))
    return str(file)


def crashes(*argv: str) -> Iterator[int]:
    """Each step in turn, after the kill there; ends when the command gets to its end."""
    for at in itertools.count():
        done = ours.killed(at, *argv)
        if done.code == 0:
            return
        assert done.code == 128 + 9, done
        yield at


def test_a_start_is_killed(request_file: str) -> None:
    before, at = kernel.state(), -1
    for at in crashes("claim", "--request", request_file):
        ours.reconcile()
        assert (ours.claims(), kernel.state()) == ([], before), at
    assert at >= 11
    assert kernel.state() != before
    ours.reconcile()
    assert (ours.claims(), kernel.state()) == ([], before)


def test_a_release_is_killed(request_file: str) -> None:
    before, at = kernel.state(), -1
    ours.orphaned("claim", "--request", request_file)
    for at in crashes("release", "--vm", "vm"):
        ours.reconcile()
        assert (ours.claims(), kernel.state()) == ([], before), at
        ours.orphaned("claim", "--request", request_file)
    assert at >= 9
    assert (ours.claims(), kernel.state()) == ([], before)
