"""A GPU slot that oned gave a VM: the host chooses a GPU of its size in its place."""
from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from one_gpu_driver.pcislots import number
from tests.contract.opennebula.remote import HELPER, HERE, Capture, Remote, captured, states
from tests.contract.opennebula.test_deploy import buses, pci_devices, taken

Up = Callable[[str], Remote]

SLOT = captured("24-deploy-gpu-slot")
TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"
WRONG, REFUSED, HOST_ERROR = 2, 3, 4


def of_size(size: str) -> Capture:
    return SLOT.at(f"{number(size)}:00:00.0")


def twice(capture: Capture) -> Capture:
    """With a second slot of the same size, on the next guest bus."""
    [pci] = re.findall(b"<PCI>.*</PCI>", capture.vm_xml)
    [hostdev] = re.findall(rb"(?s)\t\t<hostdev.*</hostdev>\n", capture.stdin)
    other = pci.replace(b"<SLOT><![CDATA[00]]>", b"<SLOT><![CDATA[01]]>")
    beside = hostdev.replace(b"slot='0x00' function", b"slot='0x01' function", 1).replace(b"bus='0x01'", b"bus='0x02'")
    listed = b"<one:pci_devices>"
    return capture._replace(
        vm_xml=capture.vm_xml.replace(pci, pci + other),
        stdin=capture.stdin.replace(hostdev, hostdev + beside).replace(listed, listed + b"fff0:97d62cf9:ff00,"))


def test_a_slot(remote: Remote) -> None:
    """The GPU has the guest address that oned knows, and the list of PCI devices says what it is."""
    assert (buses(SLOT.stdin), pci_devices(SLOT.stdin)) == (["0x01"], "fff0:97d62cf9:ff00")
    assert remote.run(SLOT) == (0, "", "")
    assert states(remote.host) == [("one-56", "starting", ["0000:25:00.4"])]
    assert remote.host.kernel.read(TYPE) == b"713\n"
    seen = remote.stock_saw(SLOT)
    assert (taken(seen), buses(seen), pci_devices(seen)) == ((["0000:25:00.4"], []), ["0x01"], "10de:25b6:0302")
    assert number("A16-4Q").encode() not in seen
    assert remote.vm_xml(SLOT) == SLOT.vm_xml
    assert remote.mine() == ["one-56"]


def test_two_slots(remote: Remote) -> None:
    """Two cards, as for two vectors of GPU."""
    both = twice(SLOT)
    assert remote.run(both) == (0, "", "")
    assert states(remote.host) == [("one-56", "starting", ["0000:25:00.4", "0000:26:00.4"])]
    seen = remote.stock_saw(both)
    assert (taken(seen), buses(seen)) == ((["0000:25:00.4", "0000:26:00.4"], []), ["0x01", "0x02"])
    assert pci_devices(seen) == "10de:25b6:0302,10de:25b6:0302"


def test_a_slot_of_a_whole_card(up: Up) -> None:
    remote = up("rtx6000x4")
    capture = of_size("rtx6000")
    assert remote.run(capture) == (0, "", "")
    seen = remote.stock_saw(capture)
    assert taken(seen) == ([f"0000:3b:00.{function}" for function in range(4)], [])
    assert buses(seen) == ["0x01"] * 4


def test_a_slot_that_becomes_an_mdev(up: Up) -> None:
    remote = up("a40-mdev")
    capture = of_size("A40-4Q")
    assert remote.run(capture) == (0, "", "")
    [claim] = remote.host.claims()
    [slot] = claim["slots"]
    seen = remote.stock_saw(capture)
    assert (slot["profile"], taken(seen), buses(seen)) == ("A40-4Q", ([], [slot["uuid"]]), ["0x01"])


def test_how_is_said_beside_it(remote: Remote) -> None:
    capture = SLOT.asking("<GPU_CPU>shared</GPU_CPU><GPU_NUMA>required</GPU_NUMA>")
    assert remote.run(capture) == (0, "", "")
    assert states(remote.host) == [("one-56", "starting", ["0000:25:00.4"])]
    assert remote.stock_saw(capture).count(b"<vcpupin vcpu=") == 2


def test_a_slot_beside_a_profile(remote: Remote) -> None:
    capture = SLOT.asking("<GPU><PROFILE>A16-8Q</PROFILE></GPU>")
    assert remote.run(capture) == (0, "", "")
    [claim] = remote.host.claims()
    assert [slot["profile"] for slot in claim["slots"]] == ["A16-4Q", "A16-8Q"]


def test_a_slot_behind_which_is_no_gpu(remote: Remote) -> None:
    """Others took what oned believes to be free."""
    for vm in range(4):
        assert remote.host.run("claim", "--vm", f"other-{vm}", "--profile", "A16-16Q").code == 0
    done = remote.run(SLOT)
    assert (done.code, done.out, done.err.splitlines()[0][:39]) == (
        REFUSED, "", "no GPU free for 1 x A16-4Q on this host")
    assert (remote.stock_ran(), remote.mine(), len(states(remote.host))) == (False, [], 4)


def test_a_slot_of_a_size_that_no_card_has(remote: Remote) -> None:
    assert remote.run(of_size("rtx6000")) == (
        HOST_ERROR, "", "no GPU free: no card of this host has the size of GPU slot b73ebe17\n"
                        "INFO: compare [pci_slots] in /etc/kvm-gpu/opennebula.toml with kvm-gpu capacity\n")
    assert (remote.stock_ran(), remote.mine(), states(remote.host)) == (False, [], [])


def test_a_hostdev_that_oned_did_not_write(remote: Remote) -> None:
    """An owner's raw XML makes no slot."""
    without = re.sub(b"<PCI>.*</PCI>", b"", SLOT.vm_xml)
    assert without != SLOT.vm_xml
    assert remote.run(SLOT._replace(vm_xml=without)) == (WRONG, "", "domain XML: PCI domain: '97d62cf9'\n")
    assert (remote.stock_ran(), states(remote.host)) == (False, [])


def test_what_oned_lists_of_it(remote: Remote) -> None:
    """The probe as it runs on the host."""
    remote.host.write("/etc/kvm-gpu/opennebula.toml", '[pci_slots]\n"A16-4Q" = 2\n')
    done = subprocess.run([HELPER, "probe"], capture_output=True, text=True, check=True, env=remote.environ)
    assert re.findall('PCI=.*DEVICE_NAME="(.*?)".*,ADDRESS="(.*?)"', done.stdout) == [
        ("A16-4Q", "97d62cf9:00:00:0"), ("A16-4Q", "97d62cf9:00:01:0")]
    assert 'GPU_TROUBLE=""\n' in done.stdout


def test_more_than_there_are(remote: Remote) -> None:
    remote.host.write("/etc/kvm-gpu/opennebula.toml", '[pci_slots]\n"A16-4Q" = 17\n')
    remote.host.write("/var/tmp/one/etc/im/kvm-probes.d/pci.conf", ":filter: '0:0'\n")
    done = subprocess.run([HERE / "bin/one-gpu", "doctor", "--root", remote.host.root], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (HOST_ERROR, "")
    assert done.stdout.endswith(
        "this host: oned is told of 17 slots A16-4Q; with all slots in use 16 have a GPU\n"
        "    lower it in /etc/kvm-gpu/opennebula.toml; kvm-gpu capacity shows what there is of each size\n")
