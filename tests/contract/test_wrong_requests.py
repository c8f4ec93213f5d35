"""Requests that are wrong, or not this user's to make: one sentence, the right exit code, and nothing has changed."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.host import Host

Boot = Callable[[str], Host]

OFFERS = '''\
[offer.gold]
profile = "A16-16Q"
enabled_for = {groups = ["vdi"]}
'''


@pytest.fixture(scope="module")
def host(boot_once: Boot) -> Host:
    host = boot_once("a16-vfio")
    host.write("/etc/kvm-gpu/offers.toml", OFFERS)
    assert host.run("claim", "--vm", "one-9", "--profile", "A16-4Q").code == 0
    return host


OPTIONS = {
    "unknown profile": (("--profile", "A16-3Q"), 2, "A16-3Q is no profile of this host or of any GPU we know\n"
                        "Hint: did you mean A16-8Q or A16-4Q or A16-2Q?\n"),
    "no card": (("--profile", "A16-4Q", "--cards", "0"), 2, "cards: 0 is not between 1 and 16\n"),
    "minus one card": (("--profile", "A16-4Q", "--cards=-1"), 2, "--cards: '-1' is not a number\n"
                       "Hint: kvm-gpu claim --help\n"),
    "a million cards": (("--profile", "A16-4Q", "--cards", "1000000"), 2, "cards: 1000000 is not between 1 and 16\n"),
    "absurd cards": (("--profile", "A16-4Q", "--cards", "9" * 5000), 2, "' is not a number\n"
                     "Hint: kvm-gpu claim --help\n"),
    "nothing": ((), 2, "asks for nothing: give a profile, mechanism, vendor, model, fb_mib or address\n"),
    "no mechanism": (("--mechanism", "gpu"), 2, "'gpu' is not one of whole, vf, mdev, nvidia_vfio, mig\n"),
    "unknown offer": (("--offer", "silver"), 2, "VM one-1: no offer 'silver' on this host\nHint: offers: gold\n"),
    "an offer of others": (("--offer", "gold", "--user", "bob", "--group", "staff"), 5,
                           "VM one-1: offer gold is not enabled for user bob, groups 'staff'\n"
                           "Hint: add the user or a group to enabled_for of [offer.gold] in offers.toml\n"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(host: Host, case: str) -> None:
    wish, code, words = OPTIONS[case]
    before = host.state()
    for verb in ("claim", "explain"):
        done = host.run(verb, "--vm", "one-1", *wish)
        assert (done.code, done.out) == (code, "")
        assert done.err.replace("explain", "claim").endswith(words)
        assert done.err.startswith("kvm-gpu: ")
    assert host.state() == before


VM, WANTS = '"vm": {"id": "one-1", "user": "bob"}', '"wants": [{"profile": "A16-4Q"}]'
FILES = {
    "unknown key": (f'{{{VM}, {WANTS}, "colour": 1}}', 2,
                    "unknown key 'colour'; known are close, cpu, guest, keep, numa, offer, uuids, vm, wants"),
    "unknown key in TOML": ('vm = {id = "one-1"}\nwants = [{profile = "A16-4Q", card = 2}]', 2,
                            "wants[0]: unknown key 'card'; did you mean 'cards'?"),
    "a key twice": (f"{{{VM}, {WANTS}, {WANTS}}}", 2, "a key stands twice in one table"),
    "no VM": (f"{{{WANTS}}}", 2, "vm.id: expected the VM's id"),
    "cut off": ("{", 2, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    "10,000 levels of JSON": ('{"a":' * 10_000, 2, "nested too deeply"),
    "10,000 levels of TOML": ("a" + ".a" * 10_000 + "=1", 2, "nested more than 16 levels"),
    "2 MB": (" " * 2_000_000, 2, "larger than 1048576 bytes"),
    "NaN": (f'{{{VM}, "wants": [{{"profile": "A16-4Q", "cards": NaN}}]}}', 2, "NaN is not JSON"),
    "a bridge": (f'{{{VM}, "wants": [{{"address": "24:00.0"}}]}}', 2,
                 "0000:24:00.0 (/sys/bus/pci/devices/0000:24:00.0) is a device of class 0604 8086:352a, "
                 "not one of the GPUs that are ours to give"),
    "no device": (f'{{{VM}, "wants": [{{"address": "0000:99:00.0"}}]}}', 2, "0000:99:00.0: not found"),
    "another domain": (f'{{{VM}, "wants": [{{"address": "0001:25:00.4"}}]}}', 2,
                       "0001:25:00.4: not found; did you mean 0000:25:00.4?"),
    "a path": (f'{{{VM}, "wants": [{{"address": "../../etc"}}]}}', 2,
               "wants[0].address: '../../etc' is not like 0000:41:00.0"),
    "unknown offer": (f'{{{VM}, "offer": "silver"}}', 2, "offer: no offer is called 'silver'; known are gold"),
    "an offer of others": (f'{{{VM}, "offer": "gold"}}', 5, "offer gold is not enabled for user bob, groups none"),
    "absurd guest": (f'{{{VM}, {WANTS}, "guest": [{{"id": 0, "vcpus": [0, 0], "mem_mib": -5}}]}}', 2,
                     "guest[0].vcpus: expected different numbers between 0 and 4095; "
                     "guest[0].mem_mib: -5 is not between 0 and 67108864"),
}


@pytest.mark.parametrize("case", FILES)
def test_files(host: Host, case: str) -> None:
    text, code, words = FILES[case]
    before = host.state()
    done = host.run("claim", "--request", "-", stdin=text.encode())
    assert (done.code, done.out) == (code, "")
    assert done.err.split("\n")[0] in [f"kvm-gpu: {who}: {words}" for who in ("stdin", "VM one-1", "VM 'one-1'")]
    assert host.state() == before


NAMES = {"slash": "one/1", "parent": "..", "nothing": "", "tab": "one\t1", "line": "one\n1", "escape": "\x1b[2J",
         "long": "x" * 201, "no text": "\udcff"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_vms(host: Host, name: str) -> None:
    before = host.state()
    claimed = host.run("claim", "--vm", name, "--profile", "A16-4Q")
    assert (claimed.code, claimed.out, claimed.err.count("\n")) == (2, "", 1)
    assert claimed.err.isascii()
    assert claimed.err.rstrip("\n").isprintable()
    assert host.run("release", "--vm", name).code == (2 if name == "\udcff" else 0)
    assert host.run("show", name).code == 2
    assert host.state() == before


def test_an_offer_for_its_group(boot: Boot) -> None:
    host = boot("t4-mdev")
    host.write("/etc/kvm-gpu/offers.toml", OFFERS.replace("A16-16Q", "T4-16Q"))
    wish = ("--vm", "one-1", "--offer", "gold", "--user", "ann", "--group", "staff")
    assert host.run("claim", *wish).code == 5
    claimed = host.json("claim", *wish, "--group", "vdi")
    assert (claimed["owner"], claimed["slots"][0]["profile"]) == ("ann", "T4-16Q")
