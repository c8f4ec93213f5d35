"""pve-gpu template: configurations that a node would take, and VMs made of them."""
from __future__ import annotations

import pytest

PLAIN = """\
name: desk
ostype: l26
machine: q35
cpu: host
sockets: 1
cores: 4
memory: 8192
balloon: 0
"""
DEVICE = "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713,pcie=1\n"
NUMA = "numa: 1\nnuma0: cpus=0-3,hostnodes=0,memory=8192,policy=bind\n"


@pytest.mark.parametrize(("argv", "text"), [
    (("--profile", "A16-4Q"), PLAIN + DEVICE),
    (("--profile", "A16-4Q", "--cards", "2"), PLAIN + DEVICE + DEVICE.replace("hostpci0", "hostpci1")),
    (("--offer", "vdi", "--numa"), PLAIN + DEVICE + NUMA + "tags: gpu-offer-vdi\n"),
    (("--profile", "A16-4Q", "--hugepages", "1024"), PLAIN + DEVICE + NUMA + "hugepages: 1024\n"),
    (("--profile", "A16-4Q", "--ostype", "win11", "--cores", "8", "--memory-mib", "16384"),
     PLAIN.replace("l26", "win11").replace("cores: 4", "cores: 8").replace("8192", "16384") + DEVICE),
])
def test_render(lab, pve_gpu, argv, text):
    lab.offers()
    assert pve_gpu("template", "render", "--name", "desk", *argv) == (0, text, "")
    assert lab.pve.calls == []


def test_a_whole_card_has_no_mdev_type(lab, pve_gpu, monkeypatch):
    monkeypatch.setenv("KVM_GPU_ROOT", str(lab.node("pve2")))
    assert pve_gpu("template", "render", "--name", "desk", "--profile", "rtx6000").out == (
        PLAIN + "hostpci0: mapping=gpu-rtx6000,pcie=1\n")


def test_a_name_with_two_lines(lab, pve_gpu):
    assert pve_gpu("template", "render", "--name", "a\nargs: -x", "--profile", "A16-4Q") == (
        2, "", "pve-gpu: VM 'a\\nargs: -x': vm.id: expected 1 to 200 printable characters without '/'\n")


def test_create(lab, pve_gpu, monkeypatch):
    said = lab.pvesh(monkeypatch)
    argv = ("--name", "desk", "--profile", "A16-4Q", "--hugepages", "2", "--yes")
    shown = "VM 120 on pve1\n" + "".join(f"    + {line}\n" for line in (PLAIN + DEVICE + NUMA).splitlines())
    assert pve_gpu("template", "create", "120", *argv) == (0, shown + "    + hugepages: 2\n", "")
    node, config = lab.pve.vms[120]
    assert (node, "".join(f"{key}: {value}\n" for key, value in config.items())) == ("pve1", PLAIN + DEVICE + NUMA)
    assert said.read_text() == "set|/nodes/pve1/qemu/120/config|--hugepages|2|\n"


def test_create_beside_a_vm_of_that_id(lab, pve_gpu):
    lab.pve.vms[120] = ("pve1", {"name": "other"})
    code, _, err = pve_gpu("template", "create", "120", "--name", "desk", "--profile", "A16-4Q", "--yes")
    assert (code, "unable to create VM 120 - VM 120 already exists on node 'pve1'" in err) == (4, True)
    assert lab.pve.vms[120] == ("pve1", {"name": "other"})
