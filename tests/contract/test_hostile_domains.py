"""Domain XML that a VM's owner could have written: refused in one sentence, and nothing has changed."""
from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.contract.host import DOMAIN, Host

Boot = Callable[[str], Host]

NOT_TEXT = "not UTF-8 text that begins with an element"
TEXT = DOMAIN.decode()


def entities() -> bytes:
    """The billion laughs."""
    names = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))
    return f'<!DOCTYPE d [<!ENTITY l0 "ha">{names}]>'.encode() + DOMAIN.replace(b"vm-plain", b"&l9;", 1)


WRONG = {
    "nothing": (b"", NOT_TEXT),
    "no XML": (b"hello", NOT_TEXT),
    "cut off": (DOMAIN[:500], "unclosed token: line 17, column 3"),
    "two documents": (DOMAIN + DOMAIN, "junk after document element: line 73, column 0"),
    "a network": (b"<network/>", "begins with <network>"),
    "DOCTYPE": (b"<!DOCTYPE domain>" + DOMAIN, "has a DOCTYPE"),
    "entities": (entities(), "has a DOCTYPE"),
    "undefined entity": (DOMAIN.replace(b"vm-plain", b"&a;", 1), "undefined entity: line 3, column 8"),
    "UTF-16": (TEXT.encode("utf-16"), NOT_TEXT),
    "UTF-16, little endian, no mark": (TEXT.encode("utf-16-le"), NOT_TEXT),
    "UTF-16, big endian, no mark": (TEXT.encode("utf-16-be"), NOT_TEXT),
    "UTF-8 with a mark": (TEXT.encode("utf-8-sig"), NOT_TEXT),
    "Latin-1": (b"<?xml version='1.0' encoding='latin-1'?>" + DOMAIN, "encoding 'latin-1', only UTF-8 is read"),
    "no UTF-8": (DOMAIN.replace(b"vm-plain", b"vm-\xff", 1), "not well-formed (invalid token): line 3, column 11"),
    "NUL": (DOMAIN.replace(b"vm-plain", b"vm-\0", 1), NOT_TEXT),
    "10 MB": (DOMAIN + b" " * 10_000_000, "1048577 bytes, at most 1048576 are read"),
    "10,000 levels": (b"<a>" * 10_000 + b"</a>" * 10_000, "over 32 levels or 16384 elements"),
    "100,000 elements": (b"<domain>" + b"<a/>" * 100_000 + b"</domain>", "over 32 levels or 16384 elements"),
    "absurd vCPUs": (DOMAIN.replace(b"[CDATA[2]]", b"[CDATA[99999999999]]"), "vcpu: '99999999999'"),
    "negative memory": (DOMAIN.replace(b">131072<", b">-1<"), "memory: '-1'"),
}


@pytest.fixture(scope="module")
def host(boot_once: Boot) -> Host:
    host = boot_once("a16-vfio")
    assert host.run("claim", "--vm", "one-9", "--profile", "A16-4Q").code == 0
    return host


@pytest.mark.parametrize("case", WRONG)
def test_wrong_xml(host: Host, case: str) -> None:
    xml, words = WRONG[case]
    before = host.state()
    done = host.run("inject", "--vm", "one-0", "--profile", "A16-4Q", stdin=xml)
    assert done == (2, "", f"kvm-gpu: domain XML: {words}\n")
    assert host.state() == before


def source(address: str) -> str:
    domain, bus, device, function = address.replace(".", ":").split(":")
    return ("<source><address type='pci'"
            f" domain='0x{domain}' bus='0x{bus}' slot='0x{device}' function='0x{function}'/></source>")


TAKEN = {
    "a VF": ("<hostdev mode='subsystem' type='pci'>{}</hostdev>", "0000:25:00.4"),
    "a VF that is held": ("<hostdev mode='subsystem' type='pci'>{}</hostdev>", "0000:25:00.5"),
    "a PF with VFs": ("<hostdev mode='subsystem' type='pci' managed='yes'>{}</hostdev>", "0000:25:00.0"),
    "a VF as a network card": ("<interface type='hostdev'>{}</interface>", "0000:26:00.4"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_domain_that_takes_our_devices_by_itself(host: Host, case: str) -> None:
    element, address = TAKEN[case]
    before = host.state()
    xml = TEXT.replace("<graphics", element.format(source(address)) + "<graphics").encode()
    done = host.run("inject", "--vm", "one-0", "--profile", "A16-4Q", stdin=xml)
    assert (done.code, done.out) == (5, "")
    assert done.err == (f"kvm-gpu: VM one-0: its XML takes {address} by itself, which is ours to give\n"
                        "Hint: ask for a profile, or adopt the device by its address\n")
    assert host.state() == before


def test_a_domain_that_takes_the_mdev_of_another(boot: Boot) -> None:
    host = boot("t4-mdev")
    uuid = host.json("claim", "--vm", "one-9", "--profile", "T4-4Q")["slots"][0]["uuid"]
    before = host.state()
    element = ("<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
               f"<source><address uuid='{uuid.upper()}'/></source></hostdev>")
    xml = TEXT.replace("<graphics", element + "<graphics").encode()
    done = host.run("inject", "--vm", "one-0", "--profile", "T4-4Q", stdin=xml)
    assert (done.code, done.out) == (5, "")
    assert f"takes {uuid} by itself" in done.err
    assert host.state() == before


def test_a_device_that_the_request_adopts(boot: Boot) -> None:
    host = boot("a16-vfio")
    host.write("/etc/request.json", json.dumps({
        "vm": {"id": "one-0"}, "wants": [{"address": "0000:26:00.7", "profile": "A16-2Q"}]}))
    element = f"<hostdev mode='subsystem' type='pci' managed='no'>{source('0000:26:00.7')}</hostdev>"
    xml = TEXT.replace("<graphics", element + "<graphics").encode()
    done = host.run("inject", "--request", str(host.root / "etc/request.json"), stdin=xml)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("function='0x7'") == 1        # it is not given twice
    assert host.slots() == [("one-0", "0000:26:00.7")]


def test_metadata_that_the_owner_made_up(boot: Boot) -> None:
    """A claim planted in the XML, naming another VM's claim, gives no right over it."""
    host = boot("t4-mdev")
    assert host.run("claim", "--vm", "one-9", "--profile", "T4-4Q").code == 0
    [other] = host.claims()
    planted = f"<kvm-gpu:claim xmlns:kvm-gpu='urn:kvm-gpu:domain:1' id='{other['claim']}'/>"
    xml = TEXT.replace("<metadata>", "<metadata>" + planted).encode()
    done = host.run("inject", "--vm", "one-0", "--profile", "T4-4Q", stdin=xml)
    assert (done.code, done.err) == (0, "")
    assert planted not in done.out
    assert other["claim"] not in done.out
    assert other in host.claims()
