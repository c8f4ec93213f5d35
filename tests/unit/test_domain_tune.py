"""The CPUs, memory and PCI window that an injection writes."""
import pytest
from lxml import etree

from kvm_gpu.domain import inject
from kvm_gpu.model import Placement, Use
from tests.domains import BIG, NODES, PINNED, SAMPLES, device

QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"


def children(xml, path):
    """Tag, attributes and text of each child."""
    found = etree.fromstring(xml).find(path)
    return [] if found is None else [(etree.QName(child).localname, dict(child.attrib), (child.text or "").strip())
                                     for child in found if isinstance(child.tag, str)]


def test_pins_where_the_platform_pinned_nothing():
    xml = inject(SAMPLES["q35-uefi"], Placement((), (PINNED,), (12, 13)), "c-1")
    assert children(xml, "cputune") == [
        ("vcpupin", {"vcpu": "0", "cpuset": "8-9"}, ""), ("vcpupin", {"vcpu": "1", "cpuset": "10-11"}, ""),
        ("emulatorpin", {"cpuset": "12-13"}, ""),
        ("iothreadpin", {"iothread": "1", "cpuset": "12-13"}, ""),
        ("iothreadpin", {"iothread": "2", "cpuset": "12-13"}, "")]


def test_pins_of_the_platform_stay():
    xml = inject(SAMPLES["cells"], Placement((), NODES, (0,)), "c-1")
    assert children(xml, "cputune") == [
        ("shares", {}, "2048"), ("vcpupin", {"vcpu": "7", "cpuset": "40-43,^41"}, ""),
        ("iothreadpin", {"iothread": "7", "cpuset": "1"}, ""),
        ("vcpupin", {"vcpu": "0", "cpuset": "2"}, ""), ("vcpupin", {"vcpu": "1", "cpuset": "3"}, ""),
        ("vcpupin", {"vcpu": "4", "cpuset": "18"}, ""), ("emulatorpin", {"cpuset": "0"}, ""),
        ("iothreadpin", {"iothread": "1", "cpuset": "0"}, ""), ("iothreadpin", {"iothread": "2", "cpuset": "0"}, "")]
    xml = inject(SAMPLES["19-numa-affinity"], Placement((), (PINNED,), (12, 13), "strict"), "c-1")
    assert children(xml, "cputune") == children(SAMPLES["19-numa-affinity"], "cputune")
    assert children(xml, "numatune") == children(SAMPLES["19-numa-affinity"], "numatune")


def bind(name, mode, nodeset, **cell):
    return (name, {**cell, "mode": mode, "nodeset": nodeset}, "")


@pytest.mark.parametrize(("sample", "uses", "mode", "found"), [
    ("01-plain", (PINNED,), "strict", [bind("memory", "strict", "1")]),
    ("one-line", (PINNED,), "preferred", [bind("memory", "preferred", "1")]),
    ("01-plain", (PINNED,), None, []),
    ("01-plain", (PINNED._replace(node=None),), "strict", []),
    ("01-plain", NODES, "strict", [bind("memory", "strict", "0-1")]),
    ("01-plain", NODES, "preferred", []),
    ("cells", NODES, "strict", [bind("memory", "strict", "0-1"), bind("memnode", "strict", "0", cellid="0"),
                                bind("memnode", "strict", "1", cellid="1")]),
    ("cells", NODES, "preferred", [bind("memnode", "preferred", "0", cellid="0"),
                                   bind("memnode", "preferred", "1", cellid="1")]),
])
def test_binding(sample, uses, mode, found):
    assert children(inject(SAMPLES[sample], Placement((), uses, (), mode), "c-1"), "numatune") == found


def test_one_guest_cell_over_two_host_nodes():
    xml = (b"<domain><name>a</name><vcpu>2</vcpu><cpu><numa><cell cpus='0-1' memory='2048'/></numa></cpu></domain>")
    assert children(inject(xml, Placement((), NODES, (), "strict"), "c-1"), "numatune") == [
        bind("memory", "strict", "0-1"), bind("memnode", "strict", "0-1", cellid="0")]


def page(size, **nodeset):
    return ("page", {"size": str(size), "unit": "KiB", **nodeset}, "")


@pytest.mark.parametrize(("sample", "sizes", "found"), [
    ("01-plain", (None,), []),
    ("01-plain", (2048,), [page(2048)]),
    ("cdata", (1 << 20, 1 << 20), [page(1 << 20)]),
    ("01-plain", (None, 2048), [page(2048, nodeset="1")]),
    ("cells", (2048, 2048), children(SAMPLES["cells"], "memoryBacking/hugepages")),
])
def test_pages(sample, sizes, found):
    uses = tuple(Use("vm", cell, cell, (), (), 2048, size) for cell, size in enumerate(sizes))
    assert children(inject(SAMPLES[sample], Placement((), uses), "c-1"), "memoryBacking/hugepages") == found


def window(xml):
    tree = etree.fromstring(xml)
    return ([(hole.getparent().get("model"), hole.get("unit"), hole.text) for hole in tree.iter("pcihole64")],
            [arg.get("value") for arg in tree.iter(f"{{{QEMU}}}arg")])


@pytest.mark.parametrize(("sample", "bars", "found"), [
    ("01-plain", (16 << 10, 256), ([], [])),
    ("01-plain", (32 << 10,), ([], [])),
    ("01-plain", (32 << 10, 32), ([("pcie-root", "KiB", str(64 << 20))], [])),
    ("01-plain", (None, 64 << 10, 64 << 10), ([("pcie-root", "KiB", str(128 << 20))], [])),
    ("cdata", (40 << 10,), ([("pcie-root", "KiB", str(64 << 20))], [])),
    ("pc", (2 << 10,), ([], [])),
    ("pc", (8 << 10, 32), ([("pci-root", "KiB", str(16 << 20))], [])),
    ("q35-uefi", (8 << 10, 32), ([], [])),
    ("q35-uefi", (128 << 10, 32), ([], ["-fw_cfg", "name=opt/ovmf/X-PciMmio64Mb,string=262144"])),
    ("cells", (64 << 10, 32), ([], ["-fw_cfg", "name=opt/org.example/a,string=1",
                                    "-fw_cfg", "name=opt/ovmf/X-PciMmio64Mb,string=131072"])),
])
def test_window_for_bars(sample, bars, found):
    cards = tuple(device("whole", f"0000:{bus:02x}:00.0", bar_mib=bar) for bus, bar in enumerate(bars, 0x41))
    assert window(inject(SAMPLES[sample], Placement(cards, ()), "c-1")) == found


@pytest.mark.parametrize("given", [
    b"<devices><controller type='pci' model='pcie-root'><pcihole64>9</pcihole64></controller></devices>",
    b"<os firmware='efi'/><c:commandline xmlns:c='%s'><c:arg value='name=opt/ovmf/X-PciMmio64Mb,string=9'/>"
    b"</c:commandline>" % QEMU.encode(),
])
def test_a_window_that_the_platform_chose_stays(given):
    xml = b"<domain><os><type machine='q35'>hvm</type></os>%s</domain>" % given
    assert window(inject(xml, Placement((BIG,), ()), "c-1")) == window(xml)
