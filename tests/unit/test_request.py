"""request.py and requestfile.py: what a request may say, from whomever it comes."""
from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu import request, requestfile
from kvm_gpu.errors import OwnershipError, RequestError
from kvm_gpu.model import GuestNode, Offer, Request, Vm, Want

VM = Vm("one-42", "ann", ("staff",))
WANT = Want(profile="A16-4Q")
NODE = GuestNode(0, (0, 1), 8192)
PLAIN = Request(VM, (WANT,))
OFFER = Offer("vdi", Want(profile="A16-2Q"), "required", keep=True, groups=("staff",))


def refusal(wrong: Request) -> str:
    with pytest.raises(RequestError) as error:
        request.check(wrong)
    return error.value.message


@pytest.mark.parametrize("good", [
    PLAIN,
    Request(Vm("104"), (Want(mechanism="mig", cards=16), Want(vendor="8086")), (), "required", "none", "dedicated"),
    Request(VM, (Want(fb_mib=1, address="0000:41:00.4"),), (
        GuestNode(0, (0, 2), 64 << 20, 1048576, ((0, (8, 9)),), (1,)), GuestNode(7, (), 0))),
    Request(Vm("\u00fcber vm.1", "a b", ("g",) * 4096), (Want(profile="RTX Pro 6000 Blackwell DC-3Q"),) * 16),
])
def test_good_requests_stay(good: Request) -> None:
    assert request.check(good) == good


def test_canonical_forms() -> None:
    asked = PLAIN._replace(wants=(Want(vendor="AMD", address="D6:00.0"), Want(vendor="NVIDIA"), Want(vendor="8086")))
    assert request.check(asked).wants == (Want(vendor="1002", address="0000:d6:00.0"), Want(vendor="10de"),
                                          Want(vendor="8086"))


@pytest.mark.parametrize(("text", "address"), [
    ("d6:00.0", "0000:d6:00.0"), ("0001:D6:1f.7", "0001:d6:1f.7"), ("00000000:E8:00.0", "0000:e8:00.0"),
    ("10000:00:02.0", "10000:00:02.0"), ("0000:41:00", None), ("0000:41:00.8", None), ("0000:41:20.0", None),
    ("000:41:00.0", None), ("0:0000:41:00.0", None), ("41:0.0", None), ("0000:41:00.0 ", None), ("0000:4x:00.0", None),
    ("0000:+1:00.0", None), ("41.00.0", None), ("../../41:00.0", None), ("", None),
])
def test_canonical_address(text: str, address: str | None) -> None:
    assert request.canonical_address(text) == address


@pytest.mark.parametrize("identity", ["", ".", "..", "a/b", "a\nb", "a\x00b", "x" * 201, "a\u202eb", "\ud800"])
def test_vm_id_refused(identity: str) -> None:
    shown = request.shown(identity)
    assert refusal(PLAIN._replace(vm=Vm(identity))) == (
        f"VM {shown}: vm.id: expected 1 to 200 printable characters without '/'")


@pytest.mark.parametrize(("want", "expected"), [
    (Want(), "wants[0]: asks for nothing: give a profile, mechanism, vendor, model, fb_mib or address"),
    (Want(cards=2), "wants[0]: asks for nothing: give a profile, mechanism, vendor, model, fb_mib or address"),
    (Want(profile=""), "wants[0].profile: '' is not 1 to 200 printable characters"),
    (Want(model="a\x1b[2J"), "wants[0].model: 'a\\x1b[2J' is not 1 to 200 printable characters"),
    (Want(mechanism="gpu"), "wants[0].mechanism: 'gpu' is not one of whole, vf, mdev, nvidia_vfio, mig"),
    (Want(vendor="10d"), "wants[0].vendor: '10d' is neither an id of four hex digits nor one of nvidia, amd, intel"),
    (Want(fb_mib=0), "wants[0].fb_mib: 0 is not between 1 and 16777216"),
    (Want(profile="x", cards=0), "wants[0].cards: 0 is not between 1 and 16"),
    (Want(profile="x", cards=17), "wants[0].cards: 17 is not between 1 and 16"),
    (Want(address="/etc"), "wants[0].address: '/etc' is not like 0000:41:00.0"),
    (Want(address="41:00.0", cards=2), "wants[0].cards: 2: an address is one card"),
])
def test_want_refused(want: Want, expected: str) -> None:
    assert refusal(PLAIN._replace(wants=(want,))) == f"VM 'one-42': {expected}"


@pytest.mark.parametrize(("node", "expected"), [
    (NODE._replace(id=-1), "id: -1 is not between 0 and 127"),
    (NODE._replace(vcpus=(0, 4096)), "vcpus: expected different numbers between 0 and 4095"),
    (NODE._replace(vcpus=(1, 1)), "vcpus: expected different numbers between 0 and 4095"),
    (NODE._replace(mem_mib=(64 << 20) + 1), "mem_mib: 67108865 is not between 0 and 67108864"),
    (NODE._replace(page_kib=4),
     "page_kib: 4 is not one of 64, 1024, 2048, 16384, 32768, 524288, 1048576, 2097152, 16777216"),
    (NODE._replace(pinned=((2, (0,)),)), "pinned: vCPU 2: expected a vCPU of the node, with CPUs between 0 and 65535"),
    (NODE._replace(pinned=((0, ()),)), "pinned: vCPU 0: expected a vCPU of the node, with CPUs between 0 and 65535"),
    (NODE._replace(bound=(-1,)), "bound: expected host nodes between 0 and 1023"),
])
def test_guest_node_refused(node: GuestNode, expected: str) -> None:
    assert refusal(PLAIN._replace(guest=(node,))) == f"VM 'one-42': guest[0].{expected}"


@pytest.mark.parametrize(("wrong", "expected"), [
    (PLAIN._replace(wants=()), "number of wants: 0 is not between 1 and 16"),
    (PLAIN._replace(wants=(WANT,) * 17), "number of wants: 17 is not between 1 and 16"),
    (PLAIN._replace(guest=(NODE, NODE._replace(id=1))), "guest[1].vcpus: a vCPU of another node"),
    (PLAIN._replace(guest=(NODE, NODE._replace(vcpus=(3,)))), "guest: two nodes with one id"),
    (PLAIN._replace(vm=VM._replace(user="a\tb")), "vm.user: 'a\\tb' is not 1 to 200 printable characters"),
    (PLAIN._replace(vm=VM._replace(groups=("",))),
     "vm.groups: expected at most 4096 names of 1 to 200 printable characters"),
    (PLAIN._replace(numa="yes", close="no", cpu="all"),     # type: ignore[arg-type]
     "numa: 'yes' is not one of required, preferred, none; close: 'no' is not one of required, preferred, none; "
     "cpu: 'all' is not one of dedicated, shared, none"),
])
def test_request_refused(wrong: Request, expected: str) -> None:
    assert refusal(wrong) == f"VM 'one-42': {expected}"


def test_from_offer() -> None:
    assert request.from_offer(OFFER, VM) == Request(VM, (Want(profile="A16-2Q"),), numa="required", keep=True)


def test_offer_for_others() -> None:
    with pytest.raises(OwnershipError) as error:
        request.from_offer(OFFER, Vm("one-7", "bob", ("labs", "x")))
    assert (error.value.message, error.value.hint, error.value.exit_code) == (
        "VM one-7: offer vdi is not enabled for user bob, groups 'labs, x'",
        "add the user or a group to enabled_for of [offer.vdi] in offers.toml", 5)


# ---- files -----------------------------------------------------------------------------------------

FULL = Request(VM, (Want(profile="A16-4Q", cards=2), Want(address="0000:41:00.4")),
               (GuestNode(0, (0, 1), 8192, 1048576, ((0, (8,)), (1, (9, 10))), (0,)),),
               "required", "none", "shared", True)
AS_TOML = b"""
numa = "required"
close = "none"
cpu = "shared"
keep = true
wants = [{ profile = "A16-4Q", cards = 2 }, { address = "41:00.4" }]
[vm]
id = "one-42"
user = "ann"
groups = ["staff"]
[[guest]]
id = 0
vcpus = [0, 1]
mem_mib = 8192
page_kib = 1048576
pinned = [[0, [8]], [1, [9, 10]]]
bound = [0]
"""


def as_json(asked: Request) -> bytes:
    row = asked._asdict()
    row["vm"] = asked.vm._asdict()
    row["wants"] = [want._asdict() for want in asked.wants]
    row["guest"] = [node._asdict() for node in asked.guest]
    return json.dumps(row).encode()


def file_refusal(text: bytes, offers: tuple[Offer, ...] = ()) -> str:
    with pytest.raises(RequestError) as error:
        requestfile.parse(text, "r", offers)
    return error.value.message


def test_toml_and_json_say_the_same() -> None:
    assert requestfile.parse(AS_TOML, "r") == FULL
    assert requestfile.parse(as_json(FULL), "r") == FULL
    assert requestfile.parse(b'{"vm": {"id": "104"}, "wants": [{"model": "t4"}]}', "r") == Request(
        Vm("104"), (Want(model="t4"),))


def test_offer_in_a_file() -> None:
    text = b'offer = "vdi"\nvm = { id = "one-42", user = "ann", groups = ["staff"] }\n'
    assert requestfile.parse(text, "r", (OFFER,)) == request.from_offer(OFFER, VM)
    guest = b'guest = [{ id = 0, vcpus = [0, 1], mem_mib = 8192 }]\n'
    assert requestfile.parse(text + guest, "r", (OFFER,)).guest == (NODE,)


def test_wrong_offer_in_a_file() -> None:
    text = b'offer = "vdi"\nvm = { id = "one-42", user = "ann", groups = ["staff"] }\n'
    near = "r: offer: no offer is called 'vid'; did you mean 'vdi'?"
    assert file_refusal(text.replace(b"vdi", b"vid"), (OFFER,)) == near
    assert file_refusal(text, ()) == "r: offer: no offer is called 'vdi'"
    both = text + b'numa = "none"\nkeep = false\n'
    assert file_refusal(both, (OFFER,)) == "r: offer: stands alone: leave out numa, keep"


def test_offer_in_a_file_for_others() -> None:
    with pytest.raises(OwnershipError):
        requestfile.parse(b'{"vm": {"id": "one-1"}, "offer": "vdi"}', "r", (OFFER,))


@pytest.mark.parametrize(("row", "expected"), [
    ({"wants": [{"cards": "2"}]}, "wants[0].cards: expected a number, not '2'"),
    ({"wants": [{"cards": 2.0}]}, "wants[0].cards: expected a number, not 2.0"),
    ({"wants": [{"profile": "x", "crads": 2}]}, "wants[0]: unknown key 'crads'; did you mean 'cards'?"),
    ({"wants": {"profile": "x"}}, "wants: expected a list, not {'profile': 'x'}"),
    ({"wants": ["x"]}, "wants: expected a list, each element a table, not 'x'"),
    ({"wants": [None]}, "wants: expected a list, each element a table, not None"),
    ({"want": []}, "unknown key 'want'; did you mean 'wants'?"),
    ({"keep": 1}, "keep: expected true or false, not 1"),
    ({"numa": "must"}, "numa: 'must' is not one of required, preferred, none"),
    ({"vm": {"user": "ann"}}, "vm.id: expected the VM's id"),
    ({"vm": {"id": 104}}, "vm.id: expected text, not 104\nr: vm.id: expected the VM's id"),
    ({"vm": {"id": "x", "groups": [1]}}, "vm.groups: expected a list, each element text, not 1"),
    ({"guest": [{"vcpus": [0], "mem_mib": 1}]}, "guest[0].id: expected a number"),
    ({"guest": [{"id": 0, "mem_mib": 1, "vcpus": [True]}]},
     "guest[0].vcpus: expected a list, each element a number, not True"),
    ({"guest": [{"id": 0, "mem_mib": 1, "pinned": [[0, 1]]}]},
     "guest[0].pinned: expected a list of [vCPU, [host CPUs]]"),
])
def test_wrong_types_refused(row: dict[str, object], expected: str) -> None:
    good = {"vm": {"id": "one-42"}, "wants": [{"profile": "x"}]}
    assert file_refusal(json.dumps({**good, **row}).encode()) == f"r: {expected}"


def test_sizes_are_checked_in_files_too() -> None:
    assert file_refusal(b'{"vm": {"id": "a"}, "wants": [{"profile": "x", "cards": 99}]}') == (
        "VM 'a': wants[0].cards: 99 is not between 1 and 16")


@pytest.mark.parametrize(("text", "expected"), [
    (b"{" + b" " * (1 << 20), "larger than 1048576 bytes"),
    (b'{"vm": {"id": "a", "id": "b"}}', "a key stands twice in one table"),
    (b'{"keep": NaN}', "NaN is not JSON"),
    (b"[1]", "vm.id: expected the VM's id\nr: unknown key '1'; known are"),
    (b"[1, 2]", "Expected ']' at the end of a table declaration (at line 1, column 3)"),
    (b'{"a":' * 100000, "nested too deeply"),
    (b"a = " + b"[" * 100000, "nested more than 16 levels"),
    (b"a" + b".a" * 400000 + b" = 1", "nested more than 16 levels"),
    (b'"!"' + b'."!"' * 200000 + b" = 1", "nested more than 16 levels"),
    (b"[a" + b".a" * 400000 + b"]", "nested more than 16 levels"),
    (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
])
def test_hostile_files_refused_at_once(text: bytes, expected: str) -> None:
    before = time.process_time()
    message = file_refusal(text)
    assert message.startswith(f"r: {expected}")
    assert time.process_time() - before < 3


KEYS = st.sampled_from(["vm", "wants", "guest", "id", "cards", "profile", "vcpus", "pinned", "offer", "numa", "keep"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats())
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
                     max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), TREES.map(lambda tree: json.dumps(tree).encode())))
def test_any_file_is_a_request_or_refused(text: bytes) -> None:
    """Nothing else is raised, and what was read passes the check again unchanged."""
    try:
        parsed = requestfile.parse(text, "r")
    except RequestError:
        return
    assert request.check(parsed) == parsed


def test_check_imports_little() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import kvm_gpu.request; print(*sys.modules)"
    root = str(Path(request.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-ISc", code, root], check=True, capture_output=True, text=True)
    heavy = {"re", "json", "enum", "typing", "functools", "tomllib", "difflib"}
    assert not heavy.intersection(done.stdout.split())
