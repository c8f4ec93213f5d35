"""What a VM of OpenNebula asks for: every form, and what is wrong with the others."""
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu.errors import OwnershipError, RequestError
from kvm_gpu.model import Offer, Request, Vm, Want
from one_gpu_driver import frame, vmxml
from one_gpu_driver.vmxml import Pci, VmXml
from one_gpu_driver.wanted import wanted

CAPTURES = Path(__file__).parents[1] / "data/opennebula"
ANN = VmXml("one-42", "ann", "vdi", (), {}, ())
WHO = Vm("one-42", "ann", ("vdi",))
HOW = "GPU: says how, not what: give one of OFFER, PROFILE, MECHANISM, VENDOR, MODEL, FB_MIB"
KEPT = "GPU: none is kept for a VM that is off: OpenNebula does not tell us when such a VM ends"
OFFERS = (
    Offer("light", Want("A16-4Q"), cpu="shared", groups=("vdi",)),
    Offer("heavy", Want("A16-16Q", cards=2), numa="required", users=("bob",)),
    Offer("kept", Want("A16-8Q"), keep=True),
)


def asked(*gpus: dict[str, str], flat: dict[str, str] | None = None) -> Request | None:
    return wanted(ANN._replace(gpus=gpus, flat=flat or {}), OFFERS, ())


@pytest.mark.parametrize(("gpus", "request_"), [
    ([{"PROFILE": "A16-4Q"}], Request(WHO, (Want("A16-4Q"),))),
    ([{"PROFILE": "A16-4Q", "CARDS": "2", "NUMA": "REQUIRED", "CLOSE": "none", "CPU": "dedicated", "KEEP": "NO"}],
     Request(WHO, (Want("A16-4Q", cards=2),), (), "required", "none", "dedicated")),
    ([{"MECHANISM": "vf", "VENDOR": "amd", "MODEL": "mi300x", "FB_MIB": "4096"}],
     Request(WHO, (Want(None, "vf", "1002", "mi300x", 4096),))),
    ([{"OFFER": "light"}], Request(WHO, (Want("A16-4Q"),), cpu="shared")),
    ([{"OFFER": "light"}, {"PROFILE": "T4-4Q", "CPU": "shared"}, {"PROFILE": "rtx6000"}],
     Request(WHO, (Want("A16-4Q"), Want("T4-4Q"), Want("rtx6000")), cpu="shared")),
    ([], None),
])
def test_vectors(gpus: list[dict[str, str]], request_: Request | None) -> None:
    assert asked(*gpus) == request_


def test_flat_attributes_are_one_vector() -> None:
    assert asked(flat={"PROFILE": "A16-4Q", "CARDS": "2"}) == Request(WHO, (Want("A16-4Q", cards=2),))


@pytest.mark.parametrize(("gpus", "flat", "why"), [
    ([{"COUNT": "2"}], {},
     "GPU: COUNT not known; known are OFFER, PROFILE, MECHANISM, VENDOR, MODEL, FB_MIB, CARDS, NUMA, CLOSE, CPU, KEEP"),
    ([{"PROFILE": "a"}], {"CARDS": "2"}, "GPU=[...] and GPU_CARDS at once: ask in one of the two ways"),
    ([{"OFFER": "light", "CARDS": "2"}], {}, "GPU: an OFFER stands alone; leave out CARDS"),
    ([{"OFFER": "gold"}], {}, "GPU: no offer 'gold' on this host"),
    ([{"OFFER": "kept"}], {}, KEPT),
    ([{"PROFILE": "a", "KEEP": "yes"}], {}, KEPT),
    ([{"PROFILE": "a", "CARDS": "0"}], {}, "GPU: CARDS = '0' is not a number above 0"),
    ([{"PROFILE": "a", "CARDS": "²"}], {}, "GPU: CARDS = '²' is not a number above 0"),
    ([{"PROFILE": "a", "CARDS": "-1"}], {}, "GPU: CARDS = '-1' is not a number above 0"),
    ([{"PROFILE": "a", "NUMA": "near"}], {}, "GPU: NUMA = 'near' is not one of required, preferred, none"),
    ([{"PROFILE": "a", "NUMA": "none"}, {"PROFILE": "b", "NUMA": "required"}], {},
     "GPU: NUMA is none in one vector and required in another"),
    ([{"OFFER": "light"}, {"PROFILE": "b", "CPU": "dedicated"}], {},
     "GPU: CPU is shared in one vector and dedicated in another"),
    ([{"NUMA": "required"}], {}, HOW),
])
def test_what_is_refused(gpus: list[dict[str, str]], flat: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError) as refused:
        asked(*gpus, flat=flat)
    assert refused.value.message == why


def test_an_offer_of_others() -> None:
    with pytest.raises(OwnershipError):
        asked({"OFFER": "heavy"})


@pytest.mark.parametrize(("pci", "want"), [
    (Pci("0000:41:00.4", "0302", "u", "nvidia", "1150 (NVIDIA H100L-4-48C)"), Want("1150", address="0000:41:00.4")),
    (Pci("0000:3b:00.4", "0302", "u", "legacy", "nvidia-699"), Want("699", address="0000:3b:00.4")),
    (Pci("0000:3b:00.4", "0302", "u", None, "vfio-pci-699"), Want("699", address="0000:3b:00.4")),
    (Pci("0000:3b:00.0", "0302", None, None, "A16-4Q"), Want("A16-4Q", address="0000:3b:00.0")),
    (Pci("0000:3b:00.0", "0302", None, None, None), Want(address="0000:3b:00.0")),
])
def test_adopted_devices_come_first(pci: Pci, want: Want) -> None:
    assert wanted(ANN, (), ((pci,),)) == Request(WHO, (want,))
    both = wanted(ANN._replace(gpus=({"PROFILE": "T4-4Q"},)), (), ((pci,),))
    assert both == Request(WHO, (want, Want("T4-4Q")))


CARD = (Pci("0000:41:00.4", "0302", None, None, "713"),)


def test_slots_come_after_adopted_devices() -> None:
    both = wanted(ANN._replace(gpus=({"PROFILE": "T4-4Q"},)), (), (CARD,), ("A16-4Q", "A16-4Q"))
    assert both == Request(WHO, (Want("713", address="0000:41:00.4"), Want("A16-4Q"), Want("A16-4Q"), Want("T4-4Q")))


@pytest.mark.parametrize(("cards", "sizes", "wants"), [
    ((CARD,), (), (Want("713", address="0000:41:00.4"),)), ((), ("A16-4Q",), (Want("A16-4Q"),))],
    ids=["device", "slot"])
def test_beside_what_oned_chose_a_vector_may_say_how(
        cards: tuple[tuple[Pci, ...], ...], sizes: tuple[str, ...], wants: tuple[Want, ...]) -> None:
    how = {"NUMA": "required", "CPU": "dedicated"}
    expected = Request(WHO, wants, numa="required", cpu="dedicated")
    assert wanted(ANN._replace(gpus=(how,)), (), cards, sizes) == expected
    assert wanted(ANN._replace(flat=how), (), cards, sizes) == expected


def test_beside_what_oned_chose_a_number_needs_a_size() -> None:
    with pytest.raises(RequestError) as refused:
        wanted(ANN._replace(flat={"CARDS": "2"}), (), (), ("A16-4Q",))
    assert refused.value.message == HOW


# ---- vm.xml ----------------------------------------------------------------------------------------

def test_vm_xml_as_captured() -> None:
    plain = vmxml.read((CAPTURES / "01-plain.vm.xml").read_bytes())
    assert plain == VmXml("one-0", "oneadmin", "oneadmin", (
        {"COUNT": "2", "MODE": "vf", "MODEL": "MI300X", "NUMA": "close"},
        {"MODE": "mig", "MODEL": "H100L", "PROFILE": "1g.12gb"}), {"COUNT": "4"}, ())
    mdev = vmxml.read((CAPTURES / "13-pci-nvidia-mdev.vm.xml").read_bytes())
    assert mdev == VmXml("one-3", "oneadmin", "oneadmin", (), {}, (
        Pci("0000:3b:00.4", "0302", "11111111-e63d-56cf-bcc8-4e6eecccf12e", "legacy", "nvidia-699"),))


def test_only_the_uuids_of_our_devices_go() -> None:
    xml = (CAPTURES / "13-pci-nvidia-mdev.vm.xml").read_bytes()
    assert vmxml.without_uuids(xml, {"0000:3b:00.5"}) == xml
    uuid = b"<UUID><![CDATA[11111111-e63d-56cf-bcc8-4e6eecccf12e]]></UUID>"
    assert xml.count(uuid) == 1
    assert vmxml.without_uuids(xml, {"0000:3b:00.4"}) == xml.replace(uuid, b"")


SMALL = b"<VM><ID>7</ID><UNAME>ann</UNAME><GNAME>vdi</GNAME>%s</VM>"


@pytest.mark.parametrize(("inside", "found"), [
    (b"", ANN._replace(name="one-7")),
    (b"<TEMPLATE/><USER_TEMPLATE><GPU_CARDS/><GPU_PROFILE> T4-4Q </GPU_PROFILE></USER_TEMPLATE>",
     ANN._replace(name="one-7", flat={"PROFILE": "T4-4Q"})),
    (b"<TEMPLATE><GPU><A>1</A></GPU></TEMPLATE><USER_TEMPLATE><GPU><A>2</A></GPU></USER_TEMPLATE>",
     ANN._replace(name="one-7", gpus=({"A": "1"}, {"A": "2"}))),
    (b"<TEMPLATE><PCI><VENDOR>10de</VENDOR></PCI></TEMPLATE>", ANN._replace(name="one-7")),    # not scheduled yet
])
def test_vm_xml(inside: bytes, found: VmXml) -> None:
    assert vmxml.read(SMALL % inside) == found


@pytest.mark.parametrize(("xml", "why"), [
    (b"", "VM XML: not UTF-8 text that begins with an element"),
    (b"<VMS/>", "VM XML: begins with <VMS>"),
    (b"<VM/>", "VM XML: no <ID>"),
    (b"<VM><ID>7</ID><UNAME>a</UNAME></VM>", "VM XML: no <GNAME>"),
    (b"<VM><ID>../7</ID><UNAME>a</UNAME><GNAME>a</GNAME></VM>", "VM XML: ID '../7' is not a number"),
    (SMALL % b"<ID>8</ID>", "VM XML: <ID> stands twice"),
    (SMALL % b"<USER_TEMPLATE/><USER_TEMPLATE/>", "VM XML: <USER_TEMPLATE> stands twice"),
    (SMALL % b"<TEMPLATE><GPU_A>1</GPU_A></TEMPLATE><USER_TEMPLATE><GPU_A>2</GPU_A></USER_TEMPLATE>",
     "VM XML: GPU_A is given twice"),
    (SMALL % b"<TEMPLATE><GPU><A><B/></A></GPU></TEMPLATE>", "VM XML: <A> has elements inside"),
    (b"<!DOCTYPE VM><VM/>", "VM XML: has a DOCTYPE"),
])
def test_vm_xml_that_is_refused(xml: bytes, why: str) -> None:
    with pytest.raises(RequestError) as refused:
        vmxml.read(xml)
    assert refused.value.message == why


DAMAGE = [b"<", b"]]>", b"</PCI>", b"<PCI>", b"", b"\xff"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_vm_xml_is_read_or_refused(data: st.DataObject) -> None:
    xml = bytearray((CAPTURES / "13-pci-nvidia-mdev.vm.xml").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(xml) - 1))
        xml[at:at + data.draw(st.integers(0, 9))] = data.draw(st.sampled_from(DAMAGE))
    try:
        found = vmxml.read(bytes(xml))
    except RequestError:
        return
    assert found.name.removeprefix("one-").isdigit()
    assert vmxml.read(vmxml.without_uuids(bytes(xml), {pci.address for pci in found.pci})).pci == tuple(
        pci._replace(uuid=None) for pci in found.pci)


# ---- the frame -------------------------------------------------------------------------------------

@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_a_frame_comes_back(parts: list[bytes]) -> None:
    assert frame.unpack(frame.pack(*parts)) == tuple(parts)


@pytest.mark.parametrize("data", [b"3\nab", b"3\nabcd", b"1 1\na", b"-1 2\na", b"x\n", b"1 -1 1\nab"])
def test_a_frame_that_is_not_whole(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        frame.unpack(data)
