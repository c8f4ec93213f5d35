"""What each verb answers: the --json forms field by field, the human forms, and the exit codes."""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.host import DOMAIN, Host

Boot = Callable[[str], Host]

TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"
SET = {"action": "attribute", "path": TYPE, "value": "713", "before": "0", "through": "0"}
GIVEN = {"board": "0000:25:00.0", "slot": "0000:25:00.4", "mechanism": "nvidia_vfio", "profile": "A16-4Q", "uuid": None}
GUEST = '{"vm": {"id": "one-1", "user": "ann", "groups": ["vdi"]}, "wants": [{"profile": "A16-4Q"}],' \
        ' "guest": [{"id": 0, "vcpus": [0, 1], "mem_mib": 4096, "page_kib": 2048}],' \
        ' "numa": "required", "cpu": "dedicated"}'
PLACED = {
    "vm": "one-1", "owner": "ann", "decision": "placed", "slots": [{**GIVEN, "numa_node": 0}],
    "cpus": [{"guest_node": 0, "host_node": 0, "vcpu": 0, "pcpus": [0]},
             {"guest_node": 0, "host_node": 0, "vcpu": 1, "pcpus": [16]}],
    "memory": [{"guest_node": 0, "host_node": 0, "mib": 4096, "page_kib": 2048}],
    "reasons": [], "hint": "", "actions": [SET]}


@pytest.fixture
def host(boot: Boot) -> Host:
    host = boot("a16-vfio")
    host.write("/etc/request.json", GUEST)
    return host


def request(host: Host) -> tuple[str, str]:
    return "--request", str(host.root / "etc/request.json")


def without(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def test_explain_and_claim(host: Host) -> None:
    before = host.state()
    explained = host.json("explain", *request(host))
    assert host.state() == before
    assert without(explained, "warnings") == {**PLACED, "claim": None}
    claimed = host.json("claim", *request(host))
    assert re.fullmatch("[0-9a-f]{16}", claimed["claim"])
    assert {**claimed, "claim": None} == explained
    assert [warning for warning in claimed["warnings"] if "not exclusive" in warning] == claimed["warnings"] != []
    assert host.kernel.read(TYPE) == b"713\n"


def test_list_and_show(host: Host) -> None:
    assert host.json("list") == {"claims": []}
    claim = host.json("claim", *request(host))["claim"]
    [listed] = host.claims()
    assert time.time() - 60 < listed["since"] <= time.time()
    assert without(listed, "since") == {
        "claim": claim, "vm": "one-1", "owner": "ann", "state": "starting", "keep": False, "slots": [GIVEN],
        "verified_at": None, "note": None}
    shown = host.json("show", "one-1")
    assert shown == {**listed, "cpus": PLACED["cpus"], "memory": PLACED["memory"], "actions": [SET]}


def test_events_and_reconcile(host: Host) -> None:
    claim = host.json("claim", *request(host))["claim"]
    host.vm_runs("one-1")
    assert host.json("reconcile") == {"done": ["VM one-1: runs on its device"]}
    assert host.json("reconcile") == {"done": []}
    host.kernel.vm_stop("one-1")
    assert host.json("reconcile") == {"done": ["VM one-1: released"]}
    events = host.json("events")["events"]
    assert [without(event, "time") for event in events] == [
        {"claim": claim, "vm": "one-1", "event": "claimed", "detail": "0000:25:00.4"},
        {"claim": claim, "vm": "one-1", "event": "active", "detail": "its device is open"},
        {"claim": claim, "vm": "one-1", "event": "released", "detail": ""}]
    assert all(time.time() - 60 < event["time"] <= time.time() for event in events)
    assert host.json("events", "--limit", "1") == {"events": events[-1:]}


def test_inventory(host: Host) -> None:
    found = host.json("inventory")
    assert list(found) == ["nodes", "boards"]
    assert list(found["nodes"][0]) == ["id", "cores", "mem_mib", "free_mib", "pages", "distances"]
    assert [(node["id"], node["mem_mib"], node["distances"]) for node in found["nodes"]] == [
        (0, 131072, [10, 21]), (1, 131072, [21, 10])]
    assert found["nodes"][0]["cores"] == [[cpu, cpu + 16] for cpu in range(8)]
    assert found["nodes"][0]["pages"][0] == {"size_kib": 2048, "total": 8192, "free": 8192}
    board = found["boards"][0]
    assert without(board, "functions", "layouts") == {
        "address": "0000:25:00.0", "identity": "00-00-00-00-00-00-25-01", "model": "a16", "partitioner": "nvidia",
        "numa_node": 0, "numa_source": "device",
        "pci_path": ["pci0000:22", "0000:22:01.0", "0000:23:00.0", "0000:24:00.0"], "trouble": []}
    assert board["functions"] == [{
        "address": "0000:25:00.0", "ids": "10de:25b6", "pci_class": 0x030200, "driver": "nvidia",
        "iommu_group": board["functions"][0]["iommu_group"], "boot_vga": False}]
    assert board["layouts"][0]["slots"][0]["name"] == "0000:25:00.4"


def test_capacity(host: Host) -> None:
    host.run("claim", *request(host))
    rows = {(row["board"], row["profile"]): row for row in host.json("capacity")["rows"]}
    assert rows["0000:25:00.0", "A16-4Q"] == {
        "board": "0000:25:00.0", "model": "a16", "mechanism": "nvidia_vfio", "numa_node": 0, "profile": "A16-4Q",
        "total": 4, "taken": 1, "free": 3, "sellable": 3, "foreign": 0, "stuck": 0, "retiring": 0, "not_restored": 0,
        "stranded_mib": 0, "why": rows["0000:25:00.0", "A16-4Q"]["why"]}
    others = [rows["0000:25:00.0", name] for name in ("A16-8Q", "A16-4C")]
    assert [(row["total"], row["free"]) for row in others] == [(2, 0), (4, 3)]  # one size, whatever the series


def test_inject_and_release(host: Host) -> None:
    before = host.kernel.snapshot()
    done = host.run("inject", "--vm", "one-0", "--profile", "A16-4Q", stdin=DOMAIN)
    assert (done.code, done.err) == (0, "")
    [claim] = host.claims()
    assert f"id='{claim['claim']}'" in done.out
    assert "managed='no'" in done.out
    assert host.json("release", "--vm", "one-0") == {"done": ["VM one-0: released"]}
    assert host.json("release", "--vm", "one-0") == {"done": []}
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_cordon(host: Host) -> None:
    assert host.json("cordon", "25:00.0", "--why", "fan") == {"done": ["0000:25:00.0 gets no new VM"]}
    assert host.json("claim", "--vm", "one-1", "--profile", "A16-4Q")["slots"][0]["board"] == "0000:26:00.0"
    refused = host.run("--json", "explain", "--vm", "one-2", "--profile", "A16-4Q", "--cards", "4")
    assert (refused.code, refused.err) == (3, "")
    assert {reason["candidate"]: reason["why"] for reason in refused.json["reasons"]}["0000:25:00.0"] == "cordoned: fan"
    assert host.json("uncordon", "0000:25:00.0") == {"done": ["0000:25:00.0 gets new VMs again"]}
    assert host.json("uncordon", "0000:25:00.0") == {"done": []}
    assert host.run("cordon", "0000:99:00.0").code == 2


def test_a_refusal_is_a_result(host: Host) -> None:
    before = host.state()
    wish = ("--vm", "one-1", "--user", "ann", "--profile", "A16-16Q", "--cards", "5")
    refused = host.run("--json", "claim", *wish)
    assert (refused.code, refused.err) == (3, "")
    found = refused.json
    assert without(found, "reasons", "hint") == {
        "format": "kvm-gpu/1", "vm": "one-1", "owner": "ann", "claim": None, "decision": "refused", "slots": [],
        "cpus": [], "memory": [], "warnings": [], "actions": []}
    assert found["reasons"] != []
    assert all(set(reason) == {"candidate", "why"} and reason["why"] for reason in found["reasons"])
    assert host.run("--json", "explain", *wish).json == found
    assert host.state() == before


def test_human_words(host: Host) -> None:
    claim = host.run("claim", *request(host)).out
    assert re.sub("[0-9a-f]{16}", "ID", claim).splitlines()[:4] == [
        "VM one-1 has claim ID:", "  0000:25:00.4: A16-4Q (nvidia_vfio), node 0",
        "  guest node 0: 4096 MiB in pages of 2 MiB on node 0, vCPU 0 on CPU 0, vCPU 1 on CPU 16", f"  {TYPE} = 713"]
    assert [line.split() for line in host.run("inventory").out.splitlines()[:2]] == [
        ["BOARD", "MODEL", "NODE", "DRIVER", "LAYOUT", "SLOTS"],
        ["0000:25:00.0", "a16", "0", "nvidia", "nvidia_vfio", "16"]]
    assert host.run("list").out.split()[:9] == [
        "VM", "OWNER", "STATE", "SLOTS", "PROFILES", "SINCE", "CLAIM", "one-1", "ann"]
    assert ["0000:25:00.0", "a16", "0", "nvidia_vfio", "A16-4Q", "4", "1", "3", "3"] in [
        line.split()[:9] for line in host.run("capacity").out.splitlines()]
    assert host.run("show", "one-1").out.startswith("VM one-1 of ann: claim ")
    assert host.run("release", "--vm", "one-1").out == "VM one-1: released\n"
    assert host.run("release", "--vm", "one-1").out == "Nothing to do.\n"
    assert [line.split()[2:5] for line in host.run("events").out.splitlines()[1:]] == [
        ["one-1", "claimed", "0000:25:00.4"], ["one-1", "released", "-"]]


def test_the_administrators_table_of_types(boot: Boot) -> None:
    """It counts from the next command on, a cached host notwithstanding, and from the folder that was named."""
    host = boot("x48")
    file = host.root / "etc/kvm-gpu/vgpu-types.json"
    wish = ("explain", "--vm", "one-1", "--profile", "X48-8Q", "--model")
    assert (host.run(*wish, "x48").code, host.run(*wish, "x49").code) == (0, 3)
    file.write_text(file.read_text().replace('"X48"', '"X49"'))
    assert (host.run(*wish, "x48").code, host.run(*wish, "x49").code) == (3, 0)
    elsewhere = host.root / "etc/elsewhere"
    elsewhere.mkdir()
    file.rename(elsewhere / file.name)
    assert host.run("--config", str(elsewhere), *wish, "x49").code == 0
    assert [board["model"] for board in host.json("inventory")["boards"]] == ["10de:fff1", "10de:fff1"]


def test_a_cordon_is_in_the_history(host: Host) -> None:
    host.run("cordon", "25:00.0", "--why", "fan")
    host.run("uncordon", "25:00.0")
    host.run("uncordon", "25:00.0")
    assert [(event["event"], event["detail"]) for event in host.json("events")["events"]] == [
        ("cordoned", "0000:25:00.0: fan"), ("uncordoned", "0000:25:00.0")]
