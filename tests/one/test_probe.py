"""What a host tells oned: the fake machines' capacity as attributes."""
from __future__ import annotations

from time import monotonic, sleep

import pytest

from kvm_gpu import claims
from kvm_gpu.capacity import Row
from kvm_gpu.model import Config, Policy, Request, Vm, Want
from one_gpu_driver import probe
from tests.fakekernel import hosts
from tests.one import grammar
from tests.sites import fake_site


def row(board, profile, total, taken, free, sellable, node=0, mechanism="mdev"):
    return Row(board, "t4", mechanism, node, profile, total, taken, free, sellable, 0, 0, 0, 0, None, None)


def told(text):
    """Attributes by name, the pools by profile."""
    found = grammar.parse(text)
    pools = {value["PROFILE"]: value for name, value in found if name == "GPU_POOL"}
    return {name: value for name, value in found if name != "GPU_POOL"}, pools


@pytest.fixture
def site(tmp_path):
    (tmp_path / "var/lib/kvm-gpu").mkdir(parents=True)
    return fake_site(hosts.load("a16-vfio"), tmp_path)


def test_a_size_is_added_up_over_boards_and_not_over_mechanisms():
    rows = [row("0000:3b:00.0", "T4-4Q", 4, 1, 3, 3), row("0000:3b:00.0", "T4-4Q", 4, 0, 0, 0, mechanism="nvidia_vfio"),
            row("0000:af:00.0", "T4-4Q", 4, 0, 4, 2, node=1), row("0000:af:00.0", "T4-16Q", 1, 0, 1, 1, node=None)]
    assert probe.pools(rows) == (probe.Pool("T4-16Q", "t4", 1, 0, 1, 1, ()),
                                 probe.Pool("T4-4Q", "t4", 8, 1, 7, 5, (0, 1)))


def test_the_attributes():
    pool = probe.Pool("T4-4Q", "t4", 8, 1, 7, 5, (0, 1))
    assert probe.attributes([pool], ("0000:3b:00.0", "0000:af:00.0"), "") == (
        'GPU_BOARDS="0000:3b:00.0 0000:af:00.0"\nGPU_TAKEN="1"\nGPU_TROUBLE=""\n'
        'GPU_TOTAL_T4_4Q="8"\nGPU_FREE_T4_4Q="7"\nGPU_SELLABLE_T4_4Q="5"\n'
        'GPU_POOL=[PROFILE="T4-4Q",MODEL="t4",TOTAL="8",TAKEN="1",FREE="7",SELLABLE="5",NODES="0 1"]\n')


def test_what_would_end_a_value_is_replaced():
    text = probe.attributes([probe.Pool('a"]\nX="1')], (), 'he said "no"\nand left')
    assert told(text) == (
        {"GPU_BOARDS": "", "GPU_TAKEN": "0", "GPU_TROUBLE": "he said 'no' and left", "GPU_TOTAL_A___X__1": "0",
         "GPU_FREE_A___X__1": "0", "GPU_SELLABLE_A___X__1": "0"},
        {"a'] X='1": {"PROFILE": "a'] X='1", "MODEL": "", "TOTAL": "0", "TAKEN": "0", "FREE": "0", "SELLABLE": "0",
                      "NODES": ""}})


def test_a_claim_shows(site):
    before = told(probe.publish(site))[1]["A16-4Q"]
    claims.claim(site, Request(Vm("one-1"), (Want(profile="A16-4Q"),)))
    flat, pools = told(probe.publish(site))
    assert before == {"PROFILE": "A16-4Q", "MODEL": "a16", "TOTAL": "16", "TAKEN": "0", "FREE": "16",
                      "SELLABLE": "16", "NODES": "0"}
    assert pools["A16-4Q"] == {**before, "TAKEN": "1", "FREE": "15", "SELLABLE": "15"}
    assert pools["A16-16Q"] == {**before, "PROFILE": "A16-16Q", "TOTAL": "4", "FREE": "3", "SELLABLE": "3"}
    assert (flat["GPU_TAKEN"], flat["GPU_SELLABLE_A16_4Q"], flat["GPU_TROUBLE"]) == ("1", "15", "")


def test_the_consoles_card_is_not_told(tmp_path):
    (tmp_path / "var/lib/kvm-gpu").mkdir(parents=True)
    assert probe.publish(fake_site(hosts.load("rtx6000x4"), tmp_path)) == (
        'GPU_BOARDS="0000:3b:00.0 0000:5e:00.0 0000:af:00.0 0000:d8:00.0"\nGPU_TAKEN="0"\nGPU_TROUBLE=""\n'
        'GPU_TOTAL_RTX6000="4"\nGPU_FREE_RTX6000="4"\nGPU_SELLABLE_RTX6000="4"\n'
        'GPU_POOL=[PROFILE="rtx6000",MODEL="rtx6000",TOTAL="4",TAKEN="0",FREE="4",SELLABLE="4",NODES="0 1"]\n')


def test_a_size_that_is_gone_is_told_as_zero(site, tmp_path):
    before = told(probe.publish(site))
    assert before[0]["GPU_TOTAL_A16_4Q"] == "16"
    other = fake_site(hosts.load("flex170"), tmp_path)
    flat, pools = told(probe.publish(other))
    assert flat.keys() > before[0].keys()
    assert (flat["GPU_TOTAL_A16_4Q"], flat["GPU_SELLABLE_A16_4Q"]) == ("0", "0")
    assert pools["A16-4Q"] == {"PROFILE": "A16-4Q", "MODEL": "", "TOTAL": "0", "TAKEN": "0", "FREE": "0",
                               "SELLABLE": "0", "NODES": ""}


def test_a_wrong_configuration_has_nothing_to_give_and_says_why(site, tmp_path):
    probe.publish(site)
    (tmp_path / "etc/kvm-gpu").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/kvm-gpu/config.toml").write_text("polcy = 'pack'\n")
    flat, _ = told(probe.publish(site))
    assert flat["GPU_SELLABLE_A16_4Q"] == "0"
    assert flat["GPU_TROUBLE"].endswith("config.toml:1: unknown key 'polcy'; did you mean 'policy'?")


def test_a_host_that_hangs_is_given_up(site, monkeypatch):
    probe.publish(site)
    monkeypatch.setattr(claims, "capacity", lambda _: sleep(60))
    begun = monotonic()
    flat, _ = told(probe.publish(site, 0.2))
    assert monotonic() - begun < 10
    assert flat["GPU_SELLABLE_A16_4Q"] == "0"
    assert flat["GPU_TROUBLE"] == "reading the GPUs takes more than 0.2 s, or died"


def test_a_host_with_nothing_to_give(tmp_path):
    (tmp_path / "var/lib/kvm-gpu").mkdir(parents=True)
    site = fake_site(hosts.load("a16-vfio"), tmp_path, Config(Policy(ours=("1002:*",))))
    assert probe.publish(site) == 'GPU_BOARDS=""\nGPU_TAKEN="0"\nGPU_TROUBLE=""\n'
