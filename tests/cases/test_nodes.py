"""NUMA nodes that are not told, huge pages on the wrong one, PCI domains beyond the first."""
from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvm_gpu import claims
from kvm_gpu.errors import RequestError
from kvm_gpu.model import GuestNode, Request, Use, Vm, Want
from tests.cases.starts import refused, slots, start
from tests.fakekernel import hosts
from tests.sites import fake_site

GUEST = (GuestNode(0, (0, 1), 2048),)
BIG = (GuestNode(0, (0, 1, 2, 3), 32768, 1 << 20),)
DOMAIN = b"""<domain type='kvm'><name>vm-1</name><memory unit='MiB'>2048</memory><vcpu>2</vcpu>
<os><type machine='q35'>hvm</type></os><devices></devices></domain>"""


def test_c07_pci_domains_that_are_not_0000(tmp_path: Path) -> None:
    site = fake_site(hosts.load("domains"), tmp_path)
    boards = {board.address: board.trouble for board in site.view().host.boards}
    assert boards == {"0000:0a:00.0": (), "0001:d6:00.0": (),
                      "10000:00:02.0": ("its PCI domain has more than 16 bits, which no hypervisor takes",)}
    _, xml = claims.inject(site, Request(Vm("vm-1"), (Want(address="0001:d6:00.0"),)), DOMAIN)
    address = ElementTree.fromstring(xml).find("devices/hostdev/source/address")
    assert address is not None
    assert address.attrib == {"domain": "0x0001", "bus": "0xd6", "slot": "0x00", "function": "0x0"}
    with pytest.raises(RequestError) as wrong:
        start(site, "vm-2", Want(address="d6:00.0"))
    assert wrong.value.message == "VM vm-2: 0000:d6:00.0: not found; did you mean 0001:d6:00.0?"
    assert refused(site, "vm-3", Want(address="10000:00:02.0")) == {
        "10000:00:02.0": "its PCI domain has more than 16 bits, which no hypervisor takes"}


def test_c08_numa_node_minus_one(tmp_path: Path) -> None:
    site = fake_site(hosts.load("minus-one-port"), tmp_path)
    first, second = Want(address="0000:41:00.0"), Want(address="0000:81:00.0")
    assert [(board.numa_node, board.numa_source) for board in site.view().host.boards] == [
        (1, "parent 0000:40:01.1"), (None, "unknown")]
    placed = start(site, "vm-1", first, numa="required", guest=GUEST)
    assert (placed.memory, [use.node for use in placed.uses]) == ("strict", [1])
    assert refused(site, "vm-2", second, numa="required", guest=GUEST) == {"0000:81:00.0": "NUMA node unknown"}
    placed = start(site, "vm-2", second, guest=GUEST)
    assert (placed.memory, [use.node for use in placed.uses], placed.warnings) == (
        None, [None], ("0000:81:00.0: NUMA node unknown, nothing is bound near it",))


def test_c08_on_a_host_of_one_node_that_is_the_answer(tmp_path: Path) -> None:
    site = fake_site(hosts.load("minus-one"), tmp_path)
    board, = site.view().host.boards
    assert (board.numa_node, board.numa_source) == (0, "only node")
    assert slots(start(site, "vm-1", Want(mechanism="whole"), numa="required", guest=GUEST)) == ["0000:41:00.0"]


def test_c22_pages_on_the_wrong_node(tmp_path: Path) -> None:
    site = fake_site(hosts.load("pages"), tmp_path)
    whole = Want(mechanism="whole")
    assert refused(site, "vm-60", whole, numa="required", guest=BIG) == {
        "0000:3b:00.0": "node0 has 8 of 32 free 1 GiB pages (GPU node)"}
    placed = start(site, "vm-60", whole, guest=BIG)
    assert placed.uses == (Use("vm-60", 0, 1, (), (), 32768, 1 << 20),)
    assert placed.warnings == ("memory on node1, GPU on node0",)
