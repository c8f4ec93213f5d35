"""`inject` as a platform uses it: valid XML, the same when it is done again, and gone without a trace."""
from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree

from tests.contract.host import DOMAIN, HERE, Host
from tests.unit.test_domain_libvirt import SCHEMA, merged, needed

Boot = Callable[[str], Host]

NUMA = (HERE / "tests/data/opennebula/18-numa-core.xml").read_bytes()
ID = "[0-9a-f]{16}"
MECHANISMS = {
    "nvidia_vfio": ("x48", ("--profile", "X48-8Q", "--cards", "2")),
    "mdev": ("t4-mdev", ("--profile", "T4-4Q", "--cards", "2")),
    "mdev on a VF": ("a40-mdev", ("--profile", "A40-12Q")),
    "vf": ("flex170", ("--mechanism", "vf", "--cards", "2")),
    "whole": ("rtx6000x4", ("--profile", "rtx6000", "--cards", "2")),
    "pinned": ("rtx6000x4", ("--profile", "rtx6000", "--numa", "required", "--cpu", "dedicated")),
}
each_mechanism = pytest.mark.parametrize("case", MECHANISMS.values(), ids=MECHANISMS)


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    needed(SCHEMA.exists(), str(SCHEMA))
    return etree.RelaxNG(etree.parse(SCHEMA))


def inject(host: Host, *wish: str, xml: bytes = DOMAIN) -> str:
    done = host.run("inject", "--vm", "one-0", *wish, stdin=xml)
    assert (done.code, done.err) == (0, "")
    return done.out


def devices(xml: str) -> list[dict[str, Any]]:
    """What each hostdev takes of the host: address or UUID, and `managed`."""
    found = etree.fromstring(xml.encode()).findall("devices/hostdev")
    return [{**device.find("source/address").attrib, "managed": device.get("managed")} for device in found]


@each_mechanism
def test_the_domain_is_valid_and_takes_what_was_claimed(boot: Boot, case: Any, schema: etree.RelaxNG) -> None:
    name, wish = case
    host = boot(name)
    xml = inject(host, *wish)
    schema.assertValid(merged(xml.encode()))
    [claim] = host.claims()
    taken = [device.get("uuid") or "{domain}:{bus}:{slot}.{function}".format(**device).replace("0x", "")
             for device in devices(xml)]
    whole = [f"{slot['slot'][:-1]}{number}" for slot in claim["slots"] for number in range(4)]
    assert taken == (whole if wish[1] == "rtx6000" else [slot["uuid"] or slot["slot"] for slot in claim["slots"]])
    managed = {"nvidia_vfio": "no", "mdev": None, "vf": "yes", "whole": "yes"}
    assert {device["managed"] for device in devices(xml)} == {managed[claim["slots"][0]["mechanism"]]}


@each_mechanism
def test_injecting_twice_changes_nothing(boot: Boot, case: Any) -> None:
    name, wish = case
    host = boot(name)
    before = host.kernel.snapshot()
    once = inject(host, *wish)
    [first] = host.claims()
    twice = inject(host, *wish, xml=once.encode())
    [second] = host.claims()
    assert first["claim"] != second["claim"]
    named = once.replace(first["claim"], second["claim"])
    for old, new in zip(first["slots"], second["slots"], strict=True):
        named = named.replace(old["uuid"] or "-", new["uuid"] or "-")
    assert twice == named
    assert host.run("release", "--vm", "one-0", "--claim", second["claim"]).code == 0
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


@each_mechanism
def test_a_domain_with_nodes_of_its_own_is_valid(boot: Boot, case: Any, schema: etree.RelaxNG) -> None:
    name, wish = case
    xml = inject(boot(name), *wish, xml=NUMA)
    schema.assertValid(merged(xml.encode()))


def test_every_other_byte_stays(boot: Boot) -> None:
    host = boot("flex170")
    lines = inject(host, "--mechanism", "vf", "--numa", "none").splitlines()
    kept = iter(lines)
    assert all(line in kept for line in DOMAIN.decode().splitlines())       # all, and in order
    added = [line.strip() for line in lines if line not in DOMAIN.decode().splitlines()]
    assert [re.sub(ID, "ID", line).partition(" ")[0] for line in added] == [
        "<hostdev", "<source>", "<address", "</source>", "<alias", "<address", "</hostdev>", "<kvm-gpu:claim"]


def test_pins_and_memory(boot: Boot) -> None:
    host = boot("rtx6000x4")
    domain = etree.fromstring(inject(host, *MECHANISMS["pinned"][1]).encode())
    [claim] = host.claims()
    shown = host.json("show", "one-0")
    node = {"0000:3b:00.0": 0, "0000:af:00.0": 1}[claim["slots"][0]["slot"]]
    assert [dict(pin.attrib) for pin in domain.findall("cputune/vcpupin")] == [
        {"vcpu": str(row["vcpu"]), "cpuset": str(row["pcpus"][0])} for row in shown["cpus"]]
    assert [row["host_node"] for row in shown["memory"]] == [node]
    assert dict(domain.find("numatune/memory").attrib) == {"mode": "strict", "nodeset": str(node)}
    assert domain.findtext("cputune/shares") == "512"


def test_what_nobody_reads_is_given_back(boot: Boot) -> None:
    host = boot("t4-mdev")
    before = host.kernel.snapshot()
    process = host.start("inject", "--vm", "one-0", "--profile", "T4-4Q", stdin=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    _, said = process.communicate(DOMAIN)
    assert (process.returncode, said) == (128 + signal.SIGPIPE, b"")
    assert (host.claims(), host.kernel.snapshot()) == ([], before)


def test_xml_that_does_not_go_together_with_the_devices(boot: Boot) -> None:
    """The claim is there already when a place in the guest is sought; a failure gives it back."""
    host = boot("rtx6000x4")
    before = host.kernel.snapshot()
    slots = "".join(f"<hostdev><address type='pci' domain='0' bus='0' slot='{slot}' function='0'/></hostdev>"
                    for slot in range(32))
    xml = DOMAIN.replace(b"machine='q35'", b"machine='pc'").replace(b"<graphics", slots.encode() + b"<graphics")
    done = host.run("inject", "--vm", "one-0", "--profile", "rtx6000", stdin=xml)
    assert (done.code, done.out) == (2, "")
    assert (host.claims(), host.kernel.snapshot()) == ([], before)
