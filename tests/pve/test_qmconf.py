"""A VM's configuration: files, property strings, the guest's nodes."""
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu.model import GuestNode
from pve_gpu_hook import guest, qmconf

FILE = """\
#Notes%3A
#hostpci1%3A mapping=a

agent: 1
hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713
name:web
tags:   gpu;office
memory:
nonsense
hostpci0: mapping=gpu-a16-8q

[PENDING]
hostpci2: mapping=b
[snap]
hostpci3: mapping=c
"""


def test_the_part_above_the_first_section() -> None:
    assert qmconf.parse(FILE) == {
        "agent": "1", "hostpci0": "mapping=gpu-a16-8q", "name": "web", "tags": "gpu;office"}


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_any_text_is_read(text: str) -> None:
    found = qmconf.parse(text)
    assert all(value and value == value.strip() for value in found.values())
    assert qmconf.parse("".join(f"{key}:{value}\n" for key, value in found.items()
                                if not key.startswith(("#", "[")))).keys() <= found.keys()


@pytest.mark.parametrize(("text", "found"), [
    ("0000:41:00.0,pcie=1", {"host": "0000:41:00.0", "pcie": "1"}),
    ("mapping=a,mdev=b=c", {"mapping": "a", "mdev": "b=c"}),
    ("", {}), (",,", {}), (" a = 1 , b ", {"a": "1", "host": "b"}),
])
def test_property_strings(text: str, found: dict[str, str]) -> None:
    assert qmconf.properties(text, "host") == found


def test_files(tmp_path: Path) -> None:
    for folder in ("qemu-server", "nodes/pve2/qemu-server"):
        (tmp_path / "etc/pve" / folder).mkdir(parents=True)
    (tmp_path / "etc/pve/qemu-server/1.conf").write_bytes(b"name: a\xff\n")
    (tmp_path / "etc/pve/nodes/pve2/qemu-server/1.conf").write_text("name: b\n")
    root = str(tmp_path)
    assert (qmconf.read(root, "1", ""), qmconf.read(root, "1", "pve2"), qmconf.read(root, "2", "")) == (
        {"name": "a\ufffd"}, {"name": "b"}, None)


def node(number: int, vcpus: tuple[int, ...], memory_mib: int, bound: tuple[int, ...] | None = None,
         cpus: tuple[int, ...] = ()) -> GuestNode:
    return GuestNode(number, vcpus, memory_mib, None, tuple((vcpu, cpus) for vcpu in vcpus) if cpus else None, bound)


@pytest.mark.parametrize(("conf", "nodes"), [
    ({}, (node(0, (0,), 512),)),
    ({"cores": "2", "sockets": "2", "memory": "4096", "vcpus": "1"}, (node(0, (0, 1, 2, 3), 4096),)),
    ({"memory": "current=1024"}, (node(0, (0,), 1024),)),
    ({"cores": "2", "sockets": "2", "memory": "4096", "numa": "1"}, (node(0, (0, 1), 2048), node(1, (2, 3), 2048))),
    ({"sockets": "2", "memory": "4096", "numa": "1", "hugepages": "2"},
     (node(0, (0,), 2048, (0,)), node(1, (1,), 2048, (1,)))),
    ({"cores": "4", "numa": "1", "numa0": "cpus=0-1;3,memory=1024,hostnodes=1,policy=bind", "numa2": "2,memory=512.0"},
     (node(0, (0, 1, 3), 1024, (1,)), node(2, (2,), 512))),
    ({"cores": "4", "numa0": "cpus=0-1,memory=1024"}, (node(0, (0, 1, 2, 3), 512),)),
    ({"cores": "2", "affinity": "4-5,8"}, (node(0, (0, 1), 512, cpus=(4, 5, 8)),)),
    ({"cores": "x", "memory": "-1", "sockets": "\u0662"}, (node(0, (0,), 512),)),
])
def test_guests(conf: dict[str, str], nodes: tuple[GuestNode, ...]) -> None:
    assert guest.nodes(conf) == nodes


@pytest.mark.parametrize("conf", [
    {"affinity": "a"}, {"numa": "1", "numa0": "cpus=3-1"}, {"numa": "1", "numa1": "0,memory=x"}])
def test_wrong_guests(conf: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"range|invalid literal|could not convert"):
        guest.nodes(conf)
