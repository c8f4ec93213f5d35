"""Whatever the domain and the placement: every byte that is not ours stays, and every byte of ours can go."""
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from kvm_gpu.domain import inject, remove
from kvm_gpu.model import Placement, Use
from tests.domains import BIG, MDEV, NVIDIA_VFIO, SAMPLES, VF, WHOLE

CONTAINERS = {
    "cputune": ("<shares>2</shares>", "<vcpupin vcpu='0' cpuset='7'/>", "<emulatorpin cpuset='7'/>", "<!-- c -->"),
    "numatune": ("<memory mode='strict' nodeset='0'/>",),
    "memoryBacking": ("<nosharepages/>", "<hugepages/>", "<hugepages></hugepages>"),
    "metadata": ("<a:x xmlns:a='urn:a' b='/>'>/></a:x>", "<![CDATA[/>]]>"),
    "devices": ("<controller type='pci' index='0' model='pcie-root'/>",
                "<controller type='pci' index='4' model='pcie-root-port'></controller>",
                "<video><address type='pci' bus='4'/></video>", "<x><address type='pci' slot='0x1f'/></x>"),
    "qemu:commandline": ("<qemu:arg value='-fw_cfg'/>", "<qemu:env name='A' value='>'/>"),
}
SPACES = ("",), ("\n\t", "\n\t\t"), ("\r\n  ",), ("", " ", "\n\n", "<!-- > -->")
HEAD = ("<os><type machine='pc'>hvm</type></os>", "<os><type machine='q35'>hvm</type></os>",
        "<os firmware='efi'><type machine='q35'>hvm</type></os>")


@st.composite
def elements(draw, name, space):
    """A container with some of its content, closed in each way that XML knows."""
    inside = draw(st.lists(st.sampled_from(CONTAINERS[name]), max_size=3, unique=True))
    if not inside and draw(st.booleans()):
        return draw(st.sampled_from((f"<{name}/>", f"<{name} />", f"<{name}\n/>")))
    return f"<{name}>" + "".join(draw(space) + text for text in inside) + draw(space) + f"</{name}>"


@st.composite
def domains(draw):
    space = st.sampled_from(draw(st.sampled_from(SPACES)))
    names = draw(st.lists(st.sampled_from([*CONTAINERS]), max_size=7))
    parts = [draw(st.sampled_from(HEAD)), *[draw(elements(name, space)) for name in names]]
    return ("<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
            + "".join(draw(space) + part for part in draw(st.permutations(parts))) + draw(space)
            + "</domain>" + draw(st.sampled_from(("", "\n")))).encode()


uses = st.builds(lambda node, pins, page: Use("vm", 0, node, pins, (), 1024, page), st.sampled_from((None, 0, 1)),
                 st.sampled_from(((), ((0, (4, 5)), (1, (6,))))), st.sampled_from((None, 2048)))
devices = st.lists(st.sampled_from((WHOLE, VF, NVIDIA_VFIO, MDEV, BIG)), unique=True).map(tuple)
placements = st.builds(Placement, devices, st.tuples(uses), st.sampled_from(((), (1, 2))),
                       st.sampled_from((None, "strict", "preferred")))
documents = domains() | st.sampled_from([*SAMPLES.values()])


@settings(max_examples=200, deadline=None)
@given(xml=documents, placement=placements, other=placements)
def test_injections(xml, placement, other):
    once = inject(xml, placement, "c-1")
    assert remove(once) == xml
    assert inject(once, placement, "c-1") == once
    assert inject(once, other, "c-2") == inject(xml, other, "c-2")
    assert remove(xml) == xml


@settings(max_examples=100, deadline=None)
@given(xml=documents, placement=placements)
def test_all_bytes_stay_in_order(xml, placement):
    rest = iter(inject(xml, placement, "c-1"))
    assert all(byte in rest for byte in xml)


@settings(max_examples=100, deadline=None)
@given(xml=documents, placement=placements)
def test_elements_of_the_platform_stay_as_they_are(xml, placement):
    """Judged by another parser, which knows nothing of offsets."""
    before, after = etree.fromstring(xml), etree.fromstring(inject(xml, placement, "c-1"))
    old = [(element.tag, dict(element.attrib)) for element in before.iter(etree.Element)]
    new = iter([(element.tag, dict(element.attrib)) for element in after.iter(etree.Element)])
    assert all(element in new for element in old)
