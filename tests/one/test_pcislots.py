"""GPU slots: what oned is told of them, what it gave a VM, whether the host has what they promise."""
from __future__ import annotations

import pytest

from kvm_gpu import cache, claims, profiles
from kvm_gpu.errors import HostError
from kvm_gpu.model import Config, Policy, Request, Taken, Vm, Want
from kvm_gpu.topology import boot_id
from one_gpu_driver import pcislots, probe, slotcheck
from one_gpu_driver.doctor import Finding
from one_gpu_driver.vmxml import Pci
from tests.fakekernel import hosts
from tests.one import grammar
from tests.sites import fake_site

A16_4Q = "97d62cf9"
RTX6000 = "b73ebe17"
LOWER = "lower it in /etc/kvm-gpu/opennebula.toml; kvm-gpu capacity shows what there is of each size"


def slot(number, place="00:00.0"):
    return Pci(f"{number}:{place}", pcislots.CLASS, None, None, None)


@pytest.fixture
def machine(tmp_path):
    """machine("a16-vfio"): that host, with a folder for its files."""
    (tmp_path / "var/lib/kvm-gpu").mkdir(parents=True)
    (tmp_path / "etc/kvm-gpu").mkdir(parents=True)
    return lambda name, config=None: fake_site(hosts.load(name), tmp_path, config)


@pytest.fixture
def wants(tmp_path):
    """wants('"A16-4Q" = 4'): what the administrator writes below [pci_slots]."""
    file = tmp_path / "etc/kvm-gpu/opennebula.toml"
    return lambda *lines: file.write_text("\n".join(["[pci_slots]", *lines, ""]))


# ---- their numbers ---------------------------------------------------------------------------------

def test_a_number_is_the_same_everywhere():
    assert [pcislots.number(size) for size in ("A16-4Q", "a16-4q", "rtx6000")] == [A16_4Q, A16_4Q, RTX6000]


def test_no_two_known_sizes_share_a_number(tmp_path):
    names = {name.lower() for name in profiles.load(str(tmp_path / "none")).names()}
    assert len(names) > 200
    assert len({pcislots.number(name) for name in names}) == len(names)


@pytest.mark.parametrize(("address", "is_one"), [
    (f"{A16_4Q}:00:00.0", True), ("80000000:00:00.0", True), ("7fffffff:00:00.0", False), ("10000:e1:00.0", False),
    ("fff0:25:00.0", False), ("0000:25:00.0", False)])
def test_no_real_device_is_taken_for_a_slot(address, is_one):
    """Domains from 10000 on are those of Intel's VMD."""
    pci = Pci(address, "0302", None, None, None)
    assert pcislots.taken((pci,)) == (pci,) * is_one


# ---- what oned is told -----------------------------------------------------------------------------

def test_a_slot_as_oned_reads_it():
    first, *_, last = grammar.parse(pcislots.lines((("A16-4Q", 34),)))
    fields = {"TYPE": f"fff0:{A16_4Q}:ff00", "VENDOR": "fff0", "VENDOR_NAME": "kvm-gpu", "DEVICE": A16_4Q,
              "DEVICE_NAME": "A16-4Q", "CLASS": "ff00", "CLASS_NAME": "GPU slot", "ADDRESS": f"{A16_4Q}:00:00:0",
              "SHORT_ADDRESS": f"{A16_4Q}:00:00.0", "DOMAIN": A16_4Q, "BUS": "00", "SLOT": "00", "FUNCTION": "0",
              "NUMA_NODE": "-", "IFNAME": "-", "SRIOV": "no"}
    assert first == ("PCI", fields)
    assert last == ("PCI", {**fields, "ADDRESS": f"{A16_4Q}:01:01:0", "SHORT_ADDRESS": f"{A16_4Q}:01:01.0",
                            "BUS": "01", "SLOT": "01"})


def test_every_slot_has_an_address_of_its_own():
    told = grammar.parse(pcislots.lines((("A16-4Q", pcislots.MOST), ("rtx6000", 2), ("T4-4Q", 0))))
    assert len({fields["ADDRESS"] for _, fields in told}) == len(told) == pcislots.MOST + 2


def test_the_probe_tells_them(machine, wants):
    site = machine("a16-vfio")
    before = probe.publish(site)
    wants('"A16-4Q" = 2')
    assert probe.publish(site) == before + pcislots.lines((("A16-4Q", 2),))


def test_a_claim_leaves_them(machine, wants):
    """oned itself counts which are taken."""
    site = machine("a16-vfio")
    wants('"A16-4Q" = 2')
    claims.claim(site, Request(Vm("one-1"), (Want("A16-4Q"),)))
    assert probe.publish(site).endswith(pcislots.lines((("A16-4Q", 2),)))


@pytest.mark.parametrize(("lines", "complaints"), [
    (['"A16-4Q" = 0', 'rtx6000 = 4096'], []),
    (['"A16-4Q" = 4097'], ["2: pci_slots.A16-4Q: 4097 is not between 0 and 4096"]),
    (['"A16-4Q" = -1'], ["2: pci_slots.A16-4Q: -1 is not between 0 and 4096"]),
    (['"A16-4Q" = "4"'], ["2: pci_slots.A16-4Q: expected a number, not '4'"]),
    (['"A16-4Q" = 1', '"a16-4q" = 2'], ["3: pci_slots.a16-4q: oned cannot tell it from A16-4Q"]),
    (["'a\"b' = 1"], ["2: pci_slots.a\"b: not the name of a size"]),
    (["[slots]"], ["2: unknown key 'slots'; did you mean 'pci_slots'?"]),
])
def test_the_file_is_read_strictly(machine, wants, tmp_path, lines, complaints):
    wants(*lines)
    if not complaints:
        assert pcislots.read(str(tmp_path)) == (("A16-4Q", 0), ("rtx6000", 4096))
        return
    with pytest.raises(HostError) as failure:
        pcislots.read(str(tmp_path))
    assert failure.value.message == "\n".join(f"{tmp_path}/etc/kvm-gpu/opennebula.toml:{text}" for text in complaints)


def test_without_the_file_there_are_none(tmp_path):
    assert pcislots.read(str(tmp_path)) == ()


def test_a_host_whose_file_is_wrong_has_nothing_to_give(machine, wants):
    site = machine("a16-vfio")
    probe.publish(site)
    wants('"A16-4Q" = "4"')
    told = grammar.parse(probe.publish(site))
    attributes = dict(told)
    assert attributes["GPU_SELLABLE_A16_4Q"] == "0"
    assert attributes["GPU_TROUBLE"].endswith("opennebula.toml:2: pci_slots.A16-4Q: expected a number, not '4'")
    assert "PCI" not in attributes


# ---- what oned gave a VM ---------------------------------------------------------------------------

def test_the_size_of_a_slot(machine):
    site = machine("mixed")
    assert pcislots.sizes(site, [slot(A16_4Q), slot(RTX6000), slot(A16_4Q, "00:01.0")]) == (
        "A16-4Q", "rtx6000", "A16-4Q")


def test_a_card_that_came_since_the_host_was_read(machine):
    site = machine("a16-vfio")
    host = site.fresh_view().host
    without = host._replace(boards=())
    cache.store(f"{site.sysfs.root}/run/kvm-gpu/host", (boot_id(site.sysfs), site.config.stamp), without)
    assert site.view().host == without
    assert pcislots.sizes(site, [slot(A16_4Q)]) == ("A16-4Q",)


def test_a_size_that_no_card_has(machine):
    with pytest.raises(HostError) as failure:
        pcislots.sizes(machine("a16-vfio"), [slot(A16_4Q), slot(RTX6000)])
    assert failure.value.message == f"no GPU free: no card of this host has the size of GPU slot {RTX6000}"


# ---- whether the host has them ---------------------------------------------------------------------

@pytest.mark.parametrize(("name", "slots", "fit"), [
    ("a16-vfio", {"A16-4Q": 16}, {"A16-4Q": 16}),
    ("a16-vfio", {"A16-4Q": 17, "none": 1}, {"A16-4Q": 16, "none": 0}),
    pytest.param("a16-vfio", {"A16-4Q": 12, "A16-16Q": 1}, {"A16-4Q": 12, "A16-16Q": 1}, id="one size on each card"),
    pytest.param("a16-vfio", {"A16-4Q": 13, "A16-16Q": 1}, {"A16-4Q": 12, "A16-16Q": 1}, id="but not two"),
    pytest.param("mixed", {"flex170": 1, "flex170-vf": 4}, {"flex170": 1, "flex170-vf": 0}, id="the card or its VFs"),
])
def test_how_many_fit_at_once(machine, name, slots, fit):
    assert slotcheck.fitting(tuple(slots.items()), machine(name).fresh_view().host, Taken(), Policy()) == fit


def test_the_doctor_tells_what_does_not_fit(machine, wants):
    site = machine("a16-vfio")
    wants('"A16-4Q" = 16', '"A16-16Q" = 1')
    assert list(slotcheck.findings(site, site.fresh_view())) == [
        Finding("this host", "oned is told of 16 slots A16-4Q; with all slots in use 12 have a GPU", LOWER)]
    wants('"A16-4Q" = 12', '"A16-16Q" = 1')
    assert list(slotcheck.findings(site, site.fresh_view())) == []


def test_a_card_that_gets_no_new_vm_fits_nothing(machine, wants):
    site = machine("a16-vfio", Config(Policy(ours=("0000:25:00.0", "0000:26:00.0"))))
    wants('"A16-4Q" = 8')
    assert list(slotcheck.findings(site, site.fresh_view())) == []
    with site.ledger.note():
        site.ledger.cordon("0000:25:00.0", "leaves")
    assert list(slotcheck.findings(site, site.fresh_view())) == [
        Finding("this host", "oned is told of 8 slots A16-4Q; with all slots in use 4 have a GPU", LOWER)]
