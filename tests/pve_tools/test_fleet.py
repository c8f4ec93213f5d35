"""pve-gpu fleet: this node by its own ledger, the others by ssh."""
from __future__ import annotations

import json
import sys

import pytest

from tests.pve_tools.conftest import Lab

COMMAND = "-o BatchMode=yes -o HostKeyAlias=pve2 root@192.0.2.2 kvm-gpu --json capacity"


@pytest.fixture
def fleet(lab: Lab, monkeypatch):
    """An ssh on PATH that runs the command in the other node's root, and notes what it was asked."""
    folder = lab.root / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f"#!/bin/sh\necho \"$@\" >>{lab.root}/ssh.said\n"
        f"exec {sys.executable} -IS bin/kvm-gpu --root {lab.node('pve2')} --json capacity\n")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return lab


def rows(table):
    return [line.split() for line in table.splitlines()]


def test_sizes_over_all_nodes(fleet, pve_gpu):
    code, out, err = pve_gpu("fleet")
    assert (code, err) == (0, "")
    found = rows(out)
    assert found[0] == ["SIZE", "MODEL", "NODES", "TOTAL", "TAKEN", "FREE", "SELLABLE"]
    assert ["A16-4Q", "a16", "1", "16", "0", "16", "16"] in found
    assert ["rtx6000", "rtx6000", "1", "4", "0", "4", "4"] in found
    assert [row[0] for row in found if row[0] in ("A16-4Q", "A16-16Q")] == ["A16-4Q", "A16-16Q"]
    assert (fleet.root / "ssh.said").read_text() == COMMAND + "\n"


def test_known_hosts_of_the_cluster(fleet, pve_gpu):
    known = fleet.root / "etc/pve/nodes/pve2/ssh_known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text("")
    pve_gpu("fleet")
    assert f"-o UserKnownHostsFile={known} -o GlobalKnownHostsFile=none" in (fleet.root / "ssh.said").read_text()


def test_json_for_each_node(fleet, pve_gpu):
    found = json.loads(pve_gpu("fleet", "--nodes", "--json").out)
    assert (found["format"], found["trouble"]) == ("kvm-gpu/1", [])
    assert [size for size in found["sizes"] if size["profile"] == "A16-4Q"] == [
        {"profile": "A16-4Q", "model": "a16", "node": "pve1", "nodes": 1, "total": 16, "taken": 0, "free": 16,
         "sellable": 16}]
    assert {size["node"] for size in found["sizes"]} == {"pve1", "pve2"}


@pytest.mark.parametrize(("script", "why"), [
    ("echo 'root@192.0.2.2: Permission denied (publickey).' >&2; exit 255",
     "root@192.0.2.2: Permission denied (publickey)."),
    ("echo 'bash: kvm-gpu: command not found' >&2; exit 127", "bash: kvm-gpu: command not found"),
    ("""echo '{"error": {"code": "host", "message": "/proc: EIO", "hint": ""}}' >&2; exit 4""", "/proc: EIO"),
    ("echo hello", "kvm-gpu capacity answers with something else than JSON"),
    ("exit 3", "kvm-gpu capacity: exit code 3"),
])
def test_a_node_that_does_not_answer(fleet, pve_gpu, script, why):
    (fleet.root / "bin/ssh").write_text(f"#!/bin/sh\n{script}\n")
    code, out, err = pve_gpu("fleet")
    assert (code, err, "A16-4Q" in out) == (0, f"pve2: {why}\n", True)


def test_a_node_that_is_offline(fleet, pve_gpu):
    fleet.pve.offline = {"pve2"}
    assert pve_gpu("fleet").err == "pve2: is offline\n"
    assert not (fleet.root / "ssh.said").exists()
