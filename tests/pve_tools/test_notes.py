"""pve-gpu notes: what a VM holds, in the GUI, beside what the admin wrote."""
from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu.claims import claim, release
from kvm_gpu.model import GuestNode, Request, Vm, Want
from kvm_gpu.site import open_site
from pve_gpu_hook.notes import renewed

HELD = re.compile(r"- GPU: rtx6000 on 0000:[3b5eafd8]{2}:00.0, NUMA node [01], since \d{4}-\d\d-\d\d \d\d:\d\d "
                  r"\(written by pve-gpu\)")
LINE = "- GPU: rtx6000 on 0000:3b:00.0 (written by pve-gpu)"


@pytest.fixture
def site(make_lab):
    """pve1 with whole cards: nothing of the kernel changes at a start."""
    lab = make_lab(pve1="rtx6000x4")
    lab.pve.vms = {104: ("pve1", {"description": "Ask Ann.\n", "tags": "office"}), 105: ("pve1", {})}
    return lab, open_site(str(lab.root))


def runs(site, vm, cards=1):
    """The VM has started; the claim's id."""
    guest = (GuestNode(0, (0, 1), 1024),)
    made = claim(site, Request(Vm(vm), (Want("rtx6000", cards=cards),), guest, cpu="shared", numa="required"))
    with site.ledger.note():
        site.ledger.set_state(made.claim, "active")
    return made.claim


def test_what_a_vm_holds(site, pve_gpu):
    lab, host = site
    runs(host, "104", cards=2)
    assert pve_gpu("notes").code == 0
    config = lab.pve.vms[104][1]
    lines = config["description"].splitlines()
    assert (lines[:2], lines[4]) == (["Ask Ann.", ""], "- GPU: CPUs 0-7,16-23 (written by pve-gpu)")
    assert [bool(HELD.fullmatch(line)) for line in lines[2:]] == [True, True, False]
    assert (config["tags"], lab.pve.vms[105][1]) == ("office;gpu-holds-rtx6000", {})


def test_afterwards_all_is_as_before(site, pve_gpu):
    lab, host = site
    held = [runs(host, "104"), runs(host, "105")]
    pve_gpu("notes")
    assert lab.pve.vms[105][1]["tags"] == "gpu-holds-rtx6000"
    for vm, id in zip(("104", "105"), held, strict=True):
        release(host, vm, id)
    assert pve_gpu("notes").code == 0
    assert lab.pve.vms == {104: ("pve1", {"description": "Ask Ann.\n", "tags": "office"}), 105: ("pve1", {})}


def test_nothing_new_costs_nothing(site, pve_gpu):
    lab, host = site
    runs(host, "104")
    pve_gpu("notes")
    lab.pve.calls.clear()
    assert pve_gpu("notes") == (0, "", "")
    assert lab.pve.calls == []


def test_a_locked_vm_is_for_the_next_time(site, pve_gpu):
    lab, host = site
    runs(host, "104")
    lab.pve.locked = {104}
    code, _, err = pve_gpu("notes")
    assert (code, "VM is locked (backup)" in err, lab.pve.vms[104][1]["tags"]) == (4, True, "office")
    lab.pve.locked = set()
    assert pve_gpu("notes").code == 0
    assert lab.pve.vms[104][1]["tags"] == "office;gpu-holds-rtx6000"


def test_a_vm_that_still_starts_is_not_told(site, pve_gpu):
    lab, host = site
    claim(host, Request(Vm("104"), (Want("rtx6000"),)))
    assert pve_gpu("notes") == (0, "", "")
    assert lab.pve.vms[104][1]["tags"] == "office"


def test_a_vm_of_another_node_is_left_alone(site, pve_gpu):
    lab, _ = site
    told = {"description": LINE + "\n", "tags": "gpu-holds-rtx6000"}
    lab.pve.vms[106] = ("pve2", dict(told))
    runs(open_site(str(lab.root)), "104")
    pve_gpu("notes")
    assert lab.pve.vms[106] == ("pve2", told)


@pytest.mark.parametrize(("notes", "lines", "after"), [
    ("", (), None),
    ("", (LINE,), LINE),
    ("Ask Ann.\n", (LINE,), f"Ask Ann.\n\n{LINE}"),
    (f"Ask Ann.\n\n{LINE}\n", (LINE,), f"Ask Ann.\n\n{LINE}\n"),
    (f"Ask Ann.\n\n{LINE}\n", (), "Ask Ann."),
    (f"Ask Ann.\n\n{LINE}\nAnd Bob.\n", (LINE,), f"Ask Ann.\n\nAnd Bob.\n\n{LINE}"),
    (f"{LINE}\n", (), None),
    ("- GPU: mine\n\n", (), "- GPU: mine\n\n"),
])
def test_notes(notes, lines, after):
    assert renewed(notes, lines) == after


OTHERS = st.sampled_from(["", "Ask Ann.", "- GPU: mine", "mine (written by pve-gpu)", "  x", "# A"])


@settings(max_examples=200, deadline=None)
@given(st.lists(OTHERS, max_size=6), st.integers(1, 3))
def test_what_the_admin_wrote_comes_back(words, number):
    before = "\n".join(words)
    lines = tuple(f"- GPU: {at} (written by pve-gpu)" for at in range(number))
    told = renewed(before, lines)
    assert told.endswith("\n".join(lines))
    assert renewed(told, lines) == told
    assert (renewed(told, ()) or "") == before.rstrip("\n")
