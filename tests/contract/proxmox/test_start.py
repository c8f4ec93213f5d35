"""qm start and qm stop, with the hook: exact effect of each phase, for every kind of device."""
from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.contract.proxmox.node import HOOK, Given, Node, states

Up = Callable[[str], Node]

VFS = [f"0000:{bus:02x}:{device:02x}.{function}" for bus in range(0x25, 0x29) for device, function in
       [divmod(number, 8) for number in range(4, 20)]]
TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"
PLAIN = "cores: 2\nmemory: 4096\nhookscript: local:snippets/pve-gpu-hook\n"


@pytest.fixture
def node(up: Up) -> Node:
    node = up("a16-vfio")
    node.mapping("gpu-a16-4q", *VFS)
    node.mapping("gpu-a16-8q", *VFS)
    node.mapping("nic", "0000:01:00.0")
    return node


def test_a_vgpu_from_start_to_stop(node: Node) -> None:
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713,pcie=1\nmachine: q35\n")
    before = node.kernel.snapshot()
    assert node.hook(104, "pre-start") == (
        0, "GPU: hostpci0 (gpu-a16-4q): A16-4Q at 0000:25:00.4, NUMA node 0\nGPU: memory on node 0\n", "")
    assert states(node) == [("104", "starting", ["0000:25:00.4"])]
    assert node.kernel.read(TYPE) == b"713\n"
    assert node.book() == ["0000:25:00.4 104 time", *(f"{vf} 999999999 time" for vf in VFS[1:])]
    assert (node.dropin(104), node.reloaded()) == ({"AllowedMemoryNodes": "0"}, ["daemon-reload"])
    given = node.choose(104)
    assert given == [Given(("0000:25:00.4",))]
    node.run(104, given)
    node.kernel.place("/sys/fs/cgroup/qemu.slice/104.scope/cpuset.mems", "0")
    assert node.hook(104, "post-start") == (0, "GPU: QEMU has 0000:25:00.4\n", "")
    assert states(node) == [("104", "active", ["0000:25:00.4"])]
    assert node.book() == ["0000:25:00.4 104 pid"]
    node.kernel.place("/sys/fs/cgroup/qemu.slice/104.scope/cpuset.mems", "0")
    assert node.stop(104) == "GPU: VM 104: released\n"
    assert (states(node), node.book(), node.dropin(104)) == ([], [], {})
    after = node.kernel.snapshot()
    assert {path: text for path, text in after.items() if "qemu.slice" not in path} == before


NOTES = "#hostpci1%3A mapping=gpu-a16-4q\n#gpu-offer-none %E2%9C%93 $(reboot)\n"
SECTIONS = ("[PENDING]\nhostpci0: mapping=gpu-a16-8q,mdev=nvidia-714\n\n[before-update]\n#a snapshot\n"
            "hostpci1: mapping=gpu-a16-4q,mdev=nvidia-713\nsnaptime: 1\n\n[special:cloudinit]\nname: x\n")


@pytest.mark.parametrize("conf", [
    NOTES + PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n" + SECTIONS,
    PLAIN + "hostpci0: mdev=nvidia-713,rombar=0,mapping=gpu-a16-4q,x-vga=1\nmachine: pc-i440fx-9.2+pve1\nnuma: 0\n",
    PLAIN + "machine: pc-q35-10.0\nbios: ovmf\nhostpci0: mapping=gpu-a16-4q,mdev=nvidia-713,pcie=1\n"
            "tags: gpu;gpu-x;..\nname: gpu-offer-x\ndescription: hostpci3%3A x\nhostpci3: mapping=nic\n",
    PLAIN + "hostpci15: mapping=gpu-a16-4q,mdev=nvidia-713\nhostpci16: mapping=gpu-a16-4q,mdev=nvidia-713\n",
], ids=["notes and sections", "i440fx", "q35, a NIC beside", "the last hostpci"])
def test_configurations_that_ask_for_one_vgpu(node: Node, conf: str) -> None:
    node.vm(104, conf)
    done = node.hook(104, "pre-start")
    assert (done.code, done.err) == (0, "")
    assert states(node) == [("104", "starting", ["0000:25:00.4"])]


@pytest.mark.parametrize("conf", [
    PLAIN + "hostpci0: mapping=nic\n", PLAIN + "hostpci0: mapping=gone,mdev=nvidia-713\n", PLAIN,
    PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\ntemplate: 1\n", PLAIN + "[PENDING]\nhostpci0: 25:00.4\n",
    PLAIN + "hostpci0: what/is;this\n", PLAIN + "hostpci0:\n#hostpci0: 0000:25:00.4\n",
], ids=["a NIC", "no such mapping", "nothing", "a template", "pending", "no address", "a note"])
def test_what_is_not_ours_passes(node: Node, conf: str) -> None:
    node.vm(104, conf)
    before = node.kernel.snapshot()
    for phase in ("pre-start", "post-start", "pre-stop", "post-stop"):
        assert node.hook(104, phase) == (0, "", "")
    assert (states(node), node.book(), node.reloaded(), node.kernel.snapshot()) == ([], [], [], before)


def test_a_vm_without_devices_needs_no_configuration_of_ours(node: Node) -> None:
    """Nor a ledger: what is broken there is not its concern."""
    node.host.write("/etc/kvm-gpu/config.toml", "nonsense")
    node.vm(104, PLAIN)
    for phase in ("pre-start", "post-start", "pre-stop", "post-stop"):
        assert node.hook(104, phase) == (0, "", "")
    assert not (node.root / "var/lib/kvm-gpu").exists()


def test_two_devices_are_decided_together(up: Up) -> None:
    """Proxmox VE alone would take the first two of the mapping, on two nodes if they are."""
    node = up("rtx6000x4")
    node.mapping("gpu-rtx6000", "0000:5e:00", "0000:af:00", "0000:d8:00", "0000:3b:00")
    node.vm(103, PLAIN + "hostpci0: mapping=gpu-rtx6000\n")
    node.start(103)
    node.vm(104, PLAIN + "machine: q35\nhostpci0: mapping=gpu-rtx6000,pcie=1\nhostpci1: mapping=gpu-rtx6000\n")
    given, _ = node.start(104)
    assert given == [Given(tuple(f"0000:{bus}:00.{function}" for function in range(4))) for bus in ("af", "d8")]
    assert states(node) == [("103", "active", ["0000:3b:00.0"]), ("104", "active", ["0000:af:00.0", "0000:d8:00.0"])]
    assert node.dropin(104) == {"AllowedMemoryNodes": "1"}
    assert node.book() == [f"0000:{bus}:00.{function} {vm} pid" for vm, bus in ((103, "3b"), (104, "af"), (104, "d8"))
                           for function in range(4)]
    node.stop(104)
    assert states(node) == [("103", "active", ["0000:3b:00.0"])]


def test_an_mdev_gets_the_uuid_of_proxmox(up: Up) -> None:
    """A VF that calls the type otherwise cannot serve it: 67:01.1 has vfio-pci-560."""
    node = up("a40-mdev")
    vfs = ["0000:67:01.1", *(f"0000:{bus}:00.{function}" for bus in ("67", "e5") for function in (4, 5))]
    node.mapping("gpu-a40-4q", *vfs)
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-a40-4q,mdev=nvidia-560\nhostpci2: mapping=gpu-a40-4q,mdev=nvidia-560\n"
                         "numa: 1\nnuma0: cpus=0-1,memory=4096,hostnodes=1,policy=bind\n")
    given, log = node.start(104)
    uuids = [f"{number:08}-0000-0000-0000-000000000104" for number in (0, 2)]
    assert given == [Given(("0000:67:00.4",), uuids[0]), Given(("0000:e5:00.4",), uuids[1])]
    assert node.kernel.list("/sys/bus/mdev/devices") == tuple(uuids)
    assert [slot["uuid"] for claim in node.host.claims() for slot in claim["slots"]] == uuids
    assert node.book() == []
    node.stop(104)
    assert (states(node), node.kernel.list("/sys/bus/mdev/devices")) == ([], ())


def test_two_on_the_only_gpu(node: Node) -> None:
    """Two GPUs are preferred, but one is what there is."""
    node.mapping("one", "0000:25:00.4", "0000:25:00.5", "0000:25:00.6")
    node.vm(104, PLAIN + "hostpci0: mapping=one,mdev=nvidia-713\nhostpci1: mapping=one,mdev=nvidia-713\n")
    given, _ = node.start(104)
    assert given == [Given(("0000:25:00.4",)), Given(("0000:25:00.5",))]


def test_an_mdev_goes_where_the_guest_is(up: Up) -> None:
    node = up("a40-mdev")
    node.mapping("gpu-a40-4q", "0000:67:00.4", "0000:67:00.6", "0000:e5:00.4")
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-a40-4q,mdev=nvidia-560\naffinity: 8-11\n")
    given, _ = node.start(104)
    assert given == [Given(("0000:e5:00.4",), "00000000-0000-0000-0000-000000000104")]
    assert node.dropin(104) == {"AllowedMemoryNodes": "1"}


def test_a_plain_vf(up: Up) -> None:
    node = up("flex170")
    node.mapping("gpu-flex170-vf", *(f"0000:{bus}:00.{function}" for bus in ("4d", "cd") for function in (1, 2)))
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-flex170-vf\naffinity: 8\n")
    given, _ = node.start(104)
    assert given == [Given(("0000:cd:00.1",))]
    assert states(node) == [("104", "active", ["0000:cd:00.1"])]


@pytest.mark.parametrize("hosts", [
    "machine: q35\nhostpci0: 3b:00,pcie=1\n", "hostpci0: host=0000:3b:00.0\nhostpci1: 0000:3b:00.1\n"])
def test_a_device_named_by_its_address(up: Up, hosts: str) -> None:
    node = up("rtx6000x4")
    node.vm(104, PLAIN + hosts)
    node.start(104)
    assert states(node) == [("104", "active", ["0000:3b:00.0"])]
    node.vm(105, PLAIN + "hostpci0: 3b:00.1\n")
    assert node.hook(105, "pre-start") == (
        3, "", "GPU: VM 105: hostpci0 (3b:00.1): none is free\n"
               "GPU:   0000:3b:00.1: reserved by Proxmox VE for VM 104\nGPU: Hint: stop one of these VMs\n")


def test_vgpus_of_two_sizes_keep_their_places(node: Node) -> None:
    """hostpci0 takes the first of its mapping that is reserved for the VM: that must not be the other's."""
    node.vm(103, PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n")
    node.start(103)
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-a16-8q,mdev=nvidia-714\nhostpci1: mapping=gpu-a16-4q,mdev=nvidia-713\n")
    given, _ = node.start(104)
    assert given == [Given(("0000:26:00.4",)), Given(("0000:27:00.4",))]
    assert [(slot["slot"], slot["profile"]) for claim in node.host.claims() for slot in claim["slots"]] == [
        ("0000:25:00.4", "A16-4Q"), ("0000:26:00.4", "A16-8Q"), ("0000:27:00.4", "A16-4Q")]


def test_a_migration_reads_the_source_nodes_file(node: Node) -> None:
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n", node="pve2")
    assert node.hook(104, "pre-start") == (0, "", "")
    assert states(node) == []
    assert node.hook(104, "pre-start", source="pve2").code == 0
    assert states(node) == [("104", "starting", ["0000:25:00.4"])]


def test_mappings_of_other_nodes_and_of_several_functions(up: Up) -> None:
    node = up("rtx6000x4")
    node.mapping("gpu-rtx6000", "0000:5e:00",
                 others="\tmap id=10de:1e30,iommugroup=1,node=pve2,path=0000:3b:00\n")
    node.vm(104, PLAIN + "hostpci0: mapping=gpu-rtx6000\nhostpci1: af:00.0;af:00.1\n")
    given, _ = node.start(104)
    assert given == [Given(tuple(f"0000:5e:00.{function}" for function in range(4))),
                     Given(("0000:af:00.0", "0000:af:00.1"))]
    node.mapping("two", "0000:3b:00;0000:d8:00")
    node.vm(105, PLAIN + "hostpci0: mapping=two\n")
    assert node.hook(105, "pre-start") == (
        2, "", "GPU: hostpci0 (two): 0000:3b:00.0 and 0000:d8:00.0 at once are two GPUs\n"
               "GPU: Hint: make a mapping entry for each\n")


@pytest.mark.parametrize("argv", [("1", "pre-start", "x"), ("../1", "pre-start"), ("", "pre-start"), ()])
def test_a_wrong_call(node: Node, argv: tuple[str, ...]) -> None:
    done = subprocess.run([HOOK, *argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        2, "", "GPU: usage: pve-gpu-hook VMID pre-start|post-start|pre-stop|post-stop\n")
