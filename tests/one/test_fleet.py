"""one-gpu fleet against a running XML-RPC server."""
from __future__ import annotations

import json

import pytest

from tests.one.oned import gpus, host


@pytest.fixture
def fleet(oned):
    """Two hosts that take VMs, one that is switched off, and one without GPUs."""
    oned.hosts = [
        host("node2", gpus(("A16-4Q", "a16", 16, 3, 13, 11), ("A16-16Q", "a16", 4, 0, 3, 3))),
        host("node1", gpus(("A16-4Q", "a16", 16, 16, 0, 0), ("rtx6000", "rtx6000", 0, 0, 0, 0))),
        host("node3", gpus(("A16-4Q", "a16", 16, 2, 14, 14)), state=4),
        host("node4"),
    ]
    return oned


def test_sizes_over_all_hosts(fleet, one_gpu):
    assert one_gpu("fleet") == (0, (
        "SIZE     MODEL  HOSTS  TOTAL  TAKEN  FREE  SELLABLE\n"
        "A16-4Q   a16        3     48     21    13        11\n"
        "A16-16Q  a16        1      4      0     3         3\n"), "")


def test_a_row_for_each_host(fleet, one_gpu):
    assert one_gpu("fleet", "--hosts") == (0, (
        "SIZE     MODEL  HOST   TOTAL  TAKEN  FREE  SELLABLE\n"
        "A16-4Q   a16    node1     16     16     0         0\n"
        "A16-4Q   a16    node2     16      3    13        11\n"
        "A16-4Q   a16    node3     16      2     0         0\n"
        "A16-16Q  a16    node2      4      0     3         3\n"), "")


def test_json(fleet, one_gpu):
    code, out, err = one_gpu("fleet", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"format": "kvm-gpu/1", "trouble": [], "sizes": [
        {"profile": "A16-4Q", "model": "a16", "host": None, "hosts": 3, "total": 48, "taken": 21, "free": 13,
         "sellable": 11},
        {"profile": "A16-16Q", "model": "a16", "host": None, "hosts": 1, "total": 4, "taken": 0, "free": 3,
         "sellable": 3}]}


def test_a_host_that_cannot_be_read(oned, one_gpu):
    oned.hosts = [host("node1", gpus(("A16-4Q", "a16", 0, 0, 0, 0), trouble="/sys/bus/pci/devices: EIO"))]
    assert one_gpu("fleet") == (0, "No host has a GPU to give.\n", "node1: /sys/bus/pci/devices: EIO\n")


def test_an_attribute_that_somebody_edited(oned, one_gpu):
    edited = gpus(("A16-4Q", "a16", 16, 3, 13, 11)).replace("<FREE>13", "<FREE>many")
    oned.hosts = [host("node1", edited)]
    assert json.loads(one_gpu("fleet", "--json").out)["sizes"] == [
        {"profile": "A16-4Q", "model": "a16", "host": None, "hosts": 1, "total": 16, "taken": 3, "free": 0,
         "sellable": 11}]


def test_a_wrong_password(oned, one_gpu, tmp_path):
    (tmp_path / "one_auth").write_text("oneadmin:wrong\n")
    assert one_gpu("fleet") == (4, "", (
        f"one-gpu: {oned.endpoint}: one.hostpool.info: [one.x] User couldn't be authenticated, aborting.\n"))


def test_no_oned(oned, one_gpu, monkeypatch):
    monkeypatch.setenv("ONE_XMLRPC", "http://127.0.0.1:1/RPC2")
    code, out, err = one_gpu("fleet")
    assert (code, out) == (4, "")
    assert err.startswith("one-gpu: http://127.0.0.1:1/RPC2: one.hostpool.info: ")


def test_no_password(one_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("ONE_AUTH", str(tmp_path / "none"))
    assert one_gpu("fleet") == (2, "", (
        f"one-gpu: {tmp_path}/none: No such file or directory\nHint: run it as oneadmin, or set ONE_AUTH\n"))
