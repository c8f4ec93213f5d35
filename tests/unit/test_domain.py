"""What is read from a domain, and what an injection writes. Whole values; the schema is tested elsewhere."""
import time

import pytest
from lxml import etree

from kvm_gpu.domain import Domain, inject, read, remove
from kvm_gpu.model import GuestNode, Placement
from tests.domains import BIG, MDEV, NVIDIA_VFIO, OPENNEBULA, PINNED, SAMPLES, VF, WHOLE, device

PLAIN = GuestNode(0, (0, 1), 128)
PINS = tuple((vcpu, (100, 101, 102, 103)) for vcpu in (0, 1))
READ = {
    "01-plain": Domain("one-0", "53064096-270b-46a9-aaf7-47d82d0e71c2", (PLAIN,), (), (), None, "q35"),
    "11-pci-amd-vf":
        Domain("one-1", "61b50e3b-4263-40ff-a062-362135203a05", (PLAIN,), ("0000:c1:02.0",), (), None, "q35"),
    "12-pci-nvidia-vfio":
        Domain("one-2", "4c8835a6-4013-4688-902c-0298093a09d3", (PLAIN,), ("0000:41:00.4",), (), None, "q35"),
    "13-pci-nvidia-mdev":
        Domain("one-3", "43cb76e6-0d86-47b8-8d55-772e013e7e48", (PLAIN,), (),
               ("11111111-e63d-56cf-bcc8-4e6eecccf12e",), None, "q35"),
    "18-numa-core":
        Domain("one-4", "2e662041-2226-4455-8ec7-146c7806303d",
               (GuestNode(0, (0,), 128, None, ((0, (0,)),), (0,)),), ("0000:f1:02.0",), (), None, "q35"),
    "19-numa-affinity":
        Domain("one-5", "35276c04-1297-45c1-9c8f-6034199174fa",
               (GuestNode(0, (0, 1), 128, None, PINS, (1,)),), ("0000:f1:02.1",), (), None, "q35"),
    "pc":
        Domain("pc", "00000000-0000-4000-8000-000000000001", (GuestNode(0, (0, 1, 2, 3), 4096),),
               ("0001:d6:00.0",), (), None, "pc"),
    "q35-uefi":
        Domain("q35-uefi", "00000000-0000-4000-8000-000000000002", (GuestNode(0, tuple(range(8)), 16384),),
               (), (), None, "q35"),
    "cells":
        Domain("cells", "00000000-0000-4000-8000-000000000003",
               (GuestNode(0, (0, 1, 2, 3), 8192), GuestNode(1, (4, 5, 6, 7), 24576, 1 << 20, ((7, (40, 42, 43)),))),
               (), (), None, "q35"),
    "cdata":        # 2 GiB and one byte
        Domain("cdata", "00000000-0000-4000-8000-000000000004", (GuestNode(0, (0, 1), 2049),), (), (), None, "q35"),
    "one-line":
        Domain("one-line", "00000000-0000-4000-8000-000000000005",
               (GuestNode(0, (0, 1), 1 << 20, None, tuple((vcpu, tuple(range(8))) for vcpu in (0, 1))),),
               (), (), None, "pc"),
}
READ["cdata-crlf"] = READ["cdata"]


@pytest.mark.parametrize("name", SAMPLES)
def test_read(name):
    assert read(SAMPLES[name]) == READ[name]


@pytest.mark.parametrize(("text", "mib"), [
    ("<memory>1048576</memory>", 1024),
    ("<memory unit='b'>1</memory>", 1),
    ("<memory unit='bytes'>1073741824</memory>", 1024),
    ("<memory unit='KB'>1048576</memory>", 1000),
    ("<memory unit='k'>1024</memory>", 1),
    ("<memory unit='KiB'>1025</memory>", 2),
    ("<memory unit='MB'>1000</memory>", 954),
    ("<memory unit='M'>7</memory>", 7),
    ("<memory unit='gib'>3</memory>", 3072),
    ("<memory unit='GB'>1</memory>", 954),
    ("<memory unit='TiB'>1</memory>", 1 << 20),
    ("<memory> 2048\n</memory>", 2),
    ("<memory>20<!-- -->48</memory>", 2),
])
def test_memory_units(text, mib):
    assert read(f"<domain><name>a</name>{text}</domain>".encode()).guest == (GuestNode(0, (0,), mib),)


@pytest.mark.parametrize(("pages", "sizes"), [
    ("<hugepages/>", (2048, 2048)),
    ("<hugepages><page size='1' unit='GiB'/></hugepages>", (1 << 20, 1 << 20)),
    ("<hugepages><page size='2048' nodeset='1'/></hugepages>", (None, 2048)),
    ("<hugepages><page size='2048'/><page size='1' unit='G' nodeset='0'/></hugepages>", (1 << 20, 2048)),
    ("<hugepages><page size='4'/></hugepages>", (None, None)),
    ("<nosharepages/>", (None, None)),
])
def test_huge_pages(pages, sizes):
    found = read(b"<domain><name>a</name><vcpu>2</vcpu><memoryBacking>%s</memoryBacking><cpu><numa>"
                 b"<cell cpus='1' memory='2048' id='1'/><cell cpus='0' memory='1024' id='0'/>"
                 b"</numa></cpu></domain>" % pages.encode())
    assert found.guest == (GuestNode(0, (0,), 1, sizes[0]), GuestNode(1, (1,), 2, sizes[1]))


@pytest.mark.parametrize(("machine", "kind"), [
    ("q35", "q35"), ("pc-q35-9.2", "q35"), ("pc-q35-rhel9.4.0", "q35"), ("pc", "pc"), ("pc-i440fx-9.0", "pc"),
    ("microvm", "microvm"), ("virt-9.1", "virt-9.1"),
])
def test_machine(machine, kind):
    xml = f"<domain><name>a</name><memory>1</memory><os><type machine='{machine}'>hvm</type></os></domain>"
    assert read(xml.encode()).machine == kind


def test_read_finds_each_way_to_take_a_device_of_the_host():
    found = read(b"<domain><name>a</name><memory>1</memory><devices>"
                 b"<hostdev type='pci'><source><address bus='65' slot='037' function='0x7'/></source></hostdev>"
                 b"<interface type='hostdev'><source><address type='pci' bus='0x3B'/></source></interface>"
                 b"<disk type='nvme'><source type='pci'><address domain='1' bus='2' slot='3'/></source></disk>"
                 b"<hostdev type='usb'><source><address bus='1' device='2'/></source></hostdev>"
                 b"<hostdev type='mdev'><source><address uuid='AAAAAAAA0000400080000000000000FF'/></source></hostdev>"
                 b"</devices></domain>")
    assert found.hostdevs == ("0000:41:1f.7", "0000:3b:00.0", "0001:02:03.0")
    assert found.mdevs == ("aaaaaaaa-0000-4000-8000-0000000000ff",)


# ---- devices ---------------------------------------------------------------------------------------

def devices(xml):
    """Every hostdev with an alias of ours: managed or model, source, guest address."""
    found = []
    for hostdev in etree.fromstring(xml).findall("devices/hostdev"):
        if hostdev.find("alias") is not None:
            assert hostdev.get("mode") == "subsystem"
            source, guest = hostdev.find("source/address").attrib, hostdev.find("address").attrib
            place = ".".join(source.get(key, "")[2:] for key in ("domain", "bus", "slot", "function"))
            found.append((hostdev.get("managed") or hostdev.get("model"), source.get("uuid") or place,
                          f"{guest['bus'][2:]}:{guest['slot'][2:]}.{guest['function'][2:]}",
                          guest.get("multifunction")))
    return found


def ports(xml):
    """Root ports of ours."""
    return [controller.get("index") for controller in etree.fromstring(xml).findall("devices/controller")
            if controller.get("model") == "pcie-root-port" and controller.find("alias") is not None]


CARD = [("yes", "0000.41.00.0", 0, "on"), ("yes", "0000.41.00.1", 1, None), ("yes", "0000.41.00.2", 2, None),
        ("yes", "0000.41.00.3", 3, None)]


def card_at(slot):
    return [(managed, source, f"{slot}.{function}", multi) for managed, source, function, multi in CARD]


@pytest.mark.parametrize(("sample", "given", "found", "own_ports"), [
    ("01-plain", (WHOLE,), card_at("10:00"), []),
    ("01-plain", (VF, WHOLE), [("yes", "0000.c1.02.1", "10:00.0", None), *card_at("0f:00")], []),
    ("01-plain", (NVIDIA_VFIO, MDEV), [("no", "0000.81.00.5", "10:00.0", None),
                                       ("vfio-pci", MDEV.uuid, "0f:00.0", None)], []),
    ("18-numa-core", (VF,), [("yes", "0000.c1.02.1", "0b:00.0", None)], []),
    ("q35-uefi", (VF, MDEV), [("yes", "0000.c1.02.1", "01:00.0", None),
                              ("vfio-pci", MDEV.uuid, "03:00.0", None)], ["3"]),
    ("cells", (WHOLE, VF), [*card_at("01:00"), ("yes", "0000.c1.02.1", "02:00.0", None)], ["1", "2"]),
    ("pc", (WHOLE, VF), [*card_at("00:1e"), ("yes", "0000.c1.02.1", "00:1d.0", None)], []),
])
def test_devices(sample, given, found, own_ports):
    xml = inject(SAMPLES[sample], Placement(given, ()), "c-1")
    assert devices(xml) == found
    assert ports(xml) == own_ports


def test_cards_of_one_device_sit_on_a_slot_each():
    pair = device("whole", "0000:43:00.1", "0000:42:00.0", "0000:42:00.1", "0000:43:00.0")
    assert devices(inject(SAMPLES["01-plain"], Placement((pair,), ()), "c-1")) == [
        ("yes", "0000.42.00.0", "10:00.0", "on"), ("yes", "0000.42.00.1", "10:00.1", None),
        ("yes", "0000.43.00.0", "0f:00.0", "on"), ("yes", "0000.43.00.1", "0f:00.1", None)]


def test_a_slot_without_function_0_is_numbered_anew():
    functions = device("whole", "0000:42:00.2", "0000:42:00.5")
    assert devices(inject(SAMPLES["01-plain"], Placement((functions,), ()), "c-1")) == [
        ("yes", "0000.42.00.2", "10:00.0", "on"), ("yes", "0000.42.00.5", "10:00.1", None)]


@pytest.mark.parametrize(("sample", "adopted"), [
    ("11-pci-amd-vf", device("vf", "0000:c1:02.0")),
    ("12-pci-nvidia-vfio", device("nvidia_vfio", "0000:41:00.4")),
    ("13-pci-nvidia-mdev", device("mdev", uuid="11111111-e63d-56cf-bcc8-4e6eecccf12e")),
])
def test_what_the_platform_gave_is_not_given_twice(sample, adopted):
    xml = inject(SAMPLES[sample], Placement((adopted, BIG), ()), "c-1")
    assert [source for _, source, _, _ in devices(xml)] == ["0000.b1.00.0"]
    assert read(xml)[3:5] == READ[sample][3:5]


def test_guest_addresses_do_not_depend_on_the_card():
    one = devices(inject(SAMPLES["pc"], Placement((device("whole", "0000:05:00.0"),), ()), "c-1"))
    other = devices(inject(SAMPLES["pc"], Placement((device("whole", "0001:d6:1f.0"),), ()), "c-2"))
    assert (one[0][2], other[0][2]) == ("00:1e.0", "00:1e.0")


def test_a_guest_address_stays_when_libvirt_has_added_ports_since():
    first = inject(SAMPLES["cells"], Placement((VF,), ()), "c-1")
    later = first.replace(b"</devices>", b"<controller type='pci' index='9' model='pcie-root-port'/></devices>")
    again = inject(later, Placement((WHOLE, MDEV), ()), "c-2")
    assert devices(again) == [*card_at("01:00"), ("vfio-pci", MDEV.uuid, "09:00.0", None)]
    assert ports(again) == ["1"]


# ---- the claim -------------------------------------------------------------------------------------

def test_the_claim_and_its_record():
    placement = Placement((), (PINNED._replace(page_kib=None),), (12,), "strict")
    xml = inject(b"<domain>\r\n  <name>a</name>\r\n  <cputune/>\r\n</domain>", placement, "<'")
    assert xml == b"""<domain>\r
  <name>a</name>\r
  <cputune>\r
    <vcpupin vcpu='0' cpuset='8-9'/>\r
    <vcpupin vcpu='1' cpuset='10-11'/>\r
    <emulatorpin cpuset='12'/>\r
  </cputune>\r
  <numatune>\r
    <memory mode='strict' nodeset='1'/>\r
  </numatune>\r
  <metadata>\r
    <kvm-gpu:claim xmlns:kvm-gpu='urn:kvm-gpu:domain:1' id='&lt;&apos;' added='numatune metadata' opened='cputune'>\r
      <kvm-gpu:vcpupin vcpu='0' cpuset='8-9'/>\r
      <kvm-gpu:vcpupin vcpu='1' cpuset='10-11'/>\r
      <kvm-gpu:emulatorpin cpuset='12'/>\r
      <kvm-gpu:memory mode='strict' nodeset='1'/>\r
    </kvm-gpu:claim>\r
  </metadata>\r
</domain>"""


def test_what_we_wrote_is_not_read_as_the_platforms():
    placement = Placement((WHOLE, MDEV), (PINNED,), (12,), "strict")
    xml = inject(SAMPLES["01-plain"], placement, "c-1")
    assert read(xml) == READ["01-plain"]._replace(claim="c-1")
    assert read(remove(xml)) == READ["01-plain"]


def test_reading_and_injecting_takes_less_than_a_millisecond():
    xml, placement = OPENNEBULA["12-pci-nvidia-vfio"], Placement((WHOLE, MDEV), (PINNED,), (12,), "strict")
    times = []
    for _ in range(30):
        begin = time.process_time()
        read(xml)
        inject(xml, placement, "c-1")
        times.append(time.process_time() - begin)
    assert min(times) < 0.001
