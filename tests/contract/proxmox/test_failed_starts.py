"""pre-start that fails: the start ends with our reason, and nothing has changed."""
from __future__ import annotations

from collections.abc import Callable
from errno import EIO

import pytest

from tests.contract.host import answer
from tests.contract.proxmox.node import Node, states

Up = Callable[[str], Node]

VFS = [f"0000:25:00.{function}" for function in range(4, 8)]
PLAIN = "cores: 2\nmemory: 4096\n"
CONF = PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n"
OFFERS = """\
[offer.near]
profile = "A16-4Q"
numa = "required"
cpu = "dedicated"

[offer.sold]
profile = "A16-4Q"
enabled_for = {groups = ["design"]}

[offer.kept]
profile = "A16-4Q"
keep = true
"""


@pytest.fixture
def node(up: Up) -> Node:
    node = up("a16-vfio")
    node.mapping("gpu-a16-4q", *VFS)
    node.host.write("/etc/kvm-gpu/offers.toml", OFFERS)
    return node


def fails(node: Node, conf: str, code: int, *lines: str) -> None:
    """The start fails with these lines, and all is as it was."""
    node.vm(104, conf)
    before = node.kernel.snapshot()
    done = node.hook(104, "pre-start")
    assert (done.code, done.out, done.err.splitlines()) == (code, "", [f"GPU: {line}" for line in lines])
    assert (states(node), node.book(), node.dropin(104), node.kernel.snapshot()) == ([], [], {}, before)
    assert not (node.root / "run/kvm-gpu-pve/104").exists()


def test_systemd_does_not_reload(node: Node) -> None:
    node.systemctl_ends(1)
    fails(node, CONF, 4, "systemctl daemon-reload: exit code 1", "Hint: journalctl -b _PID=1")
    node.systemctl_ends(0)
    assert node.hook(104, "pre-start").code == 0
    assert node.reloaded() == ["daemon-reload", "daemon-reload"]


def test_the_lease_cannot_be_written(node: Node) -> None:
    (node.root / "run/kvm-gpu-pve").write_text("")
    fails(node, CONF, 4, f"{node.root}/run/kvm-gpu-pve/104: Not a directory")


def test_the_driver_refuses(node: Node) -> None:
    path = f"/sys/bus/pci/devices/{VFS[0]}/nvidia/current_vgpu_type"
    node.kernel.fail(path, EIO)
    fails(node, CONF, 4, f"{path}: writing '713': EIO", "Hint: the driver could not do it: see the kernel's log, and "
          "whether the type fits beside what the board holds")


def test_a_vf_without_a_type(node: Node) -> None:
    fails(node, PLAIN + "hostpci0: mapping=gpu-a16-4q\n", 2,
          "hostpci0 (gpu-a16-4q): its devices are cut into vGPUs, and no MDev Type is chosen",
          "Hint: choose one under Hardware > PCI Device")


def test_a_type_that_nobody_knows(node: Node) -> None:
    fails(node, PLAIN + "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-99999\n", 2,
          "VM 104: 99999 is no profile of this host or of any GPU we know",
          "Hint: this host has A16-16A, A16-16C, A16-16Q, A16-1A, A16-1B, A16-1Q, A16-2A, A16-2B, A16-2Q, A16-4A, "
          "A16-4C, A16-4Q, A16-8A, A16-8C, A16-8Q")


def test_no_parent_has_the_type(up: Up) -> None:
    node = up("a40-mdev")
    node.mapping("gpu-a40-4q", "0000:67:01.1")    # which calls it vfio-pci-560
    fails(node, PLAIN + "hostpci0: mapping=gpu-a40-4q,mdev=nvidia-560\n", 2,
          "hostpci0 (gpu-a40-4q): no device of it has the type 'nvidia-560'")


def test_more_than_there_is(node: Node) -> None:
    node.mapping("gpu-a16-16q", *VFS)
    fails(node, PLAIN + "".join(f"hostpci{number}: mapping=gpu-a16-16q,mdev=nvidia-715\n" for number in range(2)), 3,
          "VM 104: 1 x A16-16Q, 1 x A16-16Q: refused on this host", "  0000:25:00.0: free, on node0",
          "  host: needs 2, 1 free on this host", "Hint: `kvm-gpu capacity` shows what this host has")


@pytest.mark.parametrize(("tags", "code", "lines"), [
    ("gpu-offer-gone", 2, ["VM 104: no offer 'gone' on this host", "Hint: offers: kept, near, sold"]),
    ("gpu-offer-near;gpu-offer-sold", 2, ["VM 104: several tags gpu-offer-NAME: 'near', 'sold'", "Hint: leave one"]),
    ("gpu-offer-kept", 2, ["VM 104: offer kept keeps its device for a VM that is off, which is not for Proxmox VE: it "
                           "does not tell us when such a VM ends"]),
    ("gpu-offer-sold", 5, ["VM 104: offer sold is not enabled for user None, groups none",
                           "Hint: add the user or a group to enabled_for of [offer.sold] in offers.toml"]),
    ("gpu-offer-\x1b[31m'$(reboot)", 2, ["VM 104: no offer \"\\x1b[31m'$(reboot)\" on this host",
                                         "Hint: offers: kept, near, sold"]),
])
def test_tags(node: Node, tags: str, code: int, lines: list[str]) -> None:
    node.host.write("/etc/pve/user.cfg",
                    "user:ann@pve:1:0:::::\npool:design:x:105,1040:local:\npool:design/vdi::103::\n")
    fails(node, CONF + f"tags: {tags}\n", code, *lines)


def test_an_offer_for_a_pool(node: Node) -> None:
    node.host.write("/etc/pve/user.cfg", "pool:design:what we: draw:104::\npool:design:they draw:104,105:local:\n")
    node.vm(104, CONF + "tags: linux;Gpu-offer-sold,gpu-offer-sold\n")
    assert node.hook(104, "pre-start").code == 0
    assert states(node) == [("104", "starting", [VFS[0]])]


def test_cpus_of_its_own(node: Node) -> None:
    node.vm(104, CONF + "tags: gpu-offer-near\n")
    done = node.hook(104, "pre-start")
    assert (done.code, done.err) == (0, "")
    assert node.dropin(104) == {"AllowedCPUs": "0,16", "AllowedMemoryNodes": "0"}
    node.vm(105, CONF + "tags: gpu-offer-near\naffinity: 8-9\n")
    done = node.hook(105, "pre-start")
    assert (done.code, done.out) == (3, "")
    assert "the platform put guest node 0 on node1" in done.err


@pytest.mark.parametrize(("conf", "dropin"), [
    ("numa: 1\nsockets: 2\ncores: 2\nmemory: 8192\n", {"AllowedMemoryNodes": "0-1"}),
    ("numa: 1\nnuma0: cpus=0-1,memory=4096,hostnodes=1,policy=bind\n", {}),
    ("numa: 1\nhugepages: 2\n", {}),
    ("memory: current=4096\nballoon: 0\n", {"AllowedMemoryNodes": "0"}),
    ("memory: 900000\n", {}),
])
def test_the_guests_nodes(node: Node, conf: str, dropin: dict[str, str]) -> None:
    node.vm(104, "hostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n" + conf)
    done = node.hook(104, "pre-start")
    assert (done.code, done.err) == (0, "")
    assert node.dropin(104) == dropin


@pytest.mark.parametrize("conf", [
    "affinity: junk\n", "numa: 1\nnuma0: cpus=0-1,memory=x\n", "numa: 1\nnuma0: cpus=9-1\n"])
def test_what_proxmox_would_refuse_itself(node: Node, conf: str) -> None:
    node.vm(104, CONF + conf)
    done = node.hook(104, "pre-start")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("GPU: VM 104: its configuration: ")


def test_no_ledger_can_be_had(node: Node) -> None:
    (node.root / "var/lib/kvm-gpu/ledger.db").mkdir(parents=True)
    node.vm(104, CONF)
    done = node.hook(104, "pre-start")
    assert (done.code, done.out) == (4, "")
    assert "ledger.db" in done.err


def test_nobody_reads_what_is_said(node: Node) -> None:
    """The task's log may be gone: the start goes on, or ends, as it would."""
    node.vm(104, CONF)
    begun = node.begin(104, "pre-start", worker=("sh", "-c", '"$@" >/dev/full 2>/dev/full; exit $?', "sh"))
    assert answer(begun).code == 0
    assert states(node) == [("104", "starting", [VFS[0]])]
    node.vm(105, PLAIN + "hostpci0: mapping=gpu-a16-4q\n")
    begun = node.begin(105, "pre-start", worker=("sh", "-c", '"$@" >/dev/full 2>/dev/full; exit $?', "sh"))
    assert answer(begun).code == 2
