"""deploy: what the stock script gets, what the ledger has afterwards, for every way to ask."""
from __future__ import annotations

import re
from collections.abc import Callable
from signal import SIGPIPE, SIGXFSZ

import pytest

from kvm_gpu import domain
from tests.contract.host import answer
from tests.contract.opennebula.remote import Remote, captured, states

Up = Callable[[str], Remote]

PLAIN = captured("01-deploy-plain").asking("")
NO_GPU = PLAIN._replace(vm_xml=PLAIN.vm_xml.replace(b"GPU_HINT", b"HINT"))
UUID = "53064096-270b-46a9-aaf7-47d82d0e71c2"
ASKING = "<GPU><PROFILE><![CDATA[A16-4Q]]></PROFILE></GPU>"
TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"


def taken(xml: bytes) -> tuple[list[str], list[str]]:
    """Sources of all hostdevs, in order: PCI functions and mdevs."""
    text = xml.decode()
    hostdev = r"<source>\s*<address +domain='0x(.*?)' bus='0x(.*?)' slot='0x(.*?)' function='0x(.*?)'/>"
    functions = re.findall(hostdev, text)
    return ["{}:{}:{}.{}".format(*parts) for parts in functions], re.findall(r"<address +uuid='(.*?)'/>", text)


def buses(xml: bytes) -> list[str]:
    """Guest buses of all hostdevs, in order."""
    return re.findall(r"</source>(?:\s*<alias [^>]*>)?\s*<address type='pci' [^>]*?bus='(.*?)'", xml.decode())


def pci_devices(xml: bytes) -> str:
    found: list[str] = re.findall("<one:pci_devices>(.*)</one:pci_devices>", xml.decode())
    assert len(found) == 1
    return found[0]


def test_a_vm_without_gpu_is_started_by_the_stock_script_in_our_place(remote: Remote) -> None:
    remote.stock_does(f"echo {UUID}; echo 'XPath set is empty' >&2; exit 7")
    (remote.bin / "sudo").unlink()
    process = remote.start(NO_GPU)
    assert answer(process) == (7, UUID + "\n", "XPath set is empty\n")
    assert remote.stock_saw(NO_GPU) == PLAIN.stdin
    assert int((remote.records / "pid").read_text()) == process.pid
    assert (states(remote.host), remote.mine()) == ([], [])


@pytest.mark.parametrize("template", [ASKING, "<GPU_PROFILE><![CDATA[A16-4Q]]></GPU_PROFILE>"], ids=["vector", "flat"])
def test_a_profile(remote: Remote, template: str) -> None:
    capture = PLAIN.asking(template)
    remote.stock_does(f"echo {UUID}")
    assert remote.run(capture) == (0, UUID + "\n", "")
    seen = remote.stock_saw(capture)
    assert taken(seen) == (["0000:25:00.4"], [])
    assert domain.remove(seen).replace(b"10de:25b6:0302", b"") == PLAIN.stdin
    assert pci_devices(seen) == "10de:25b6:0302"
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    assert [claim["owner"] for claim in remote.host.claims()] == ["oneadmin"]
    assert remote.host.kernel.read(TYPE) == b"713\n"
    assert remote.vm_xml(capture) == capture.vm_xml
    assert remote.mine() == ["one-0"]


def test_the_list_of_pci_devices_stays_text(remote: Remote) -> None:
    listed = b"<one:pci_devices>%s</one:pci_devices>"
    capture = PLAIN.asking(ASKING)
    hostile = capture.stdin.replace(listed % b"", listed % b"<![CDATA[</one:vm>&]]>")
    assert remote.run(capture._replace(stdin=hostile)) == (0, "", "")
    assert pci_devices(remote.stock_saw(capture)) == "&lt;/one:vm&gt;&amp;,10de:25b6:0302"


def test_two_vectors_are_two_devices(remote: Remote) -> None:
    capture = PLAIN.asking(ASKING + "<GPU><PROFILE>A16-8Q</PROFILE><NUMA>required</NUMA></GPU>")
    assert remote.run(capture) == (0, "", "")
    [claim] = remote.host.claims()
    assert [(slot["board"], slot["profile"]) for slot in claim["slots"]] == [
        ("0000:25:00.0", "A16-4Q"), ("0000:26:00.0", "A16-8Q")]
    assert pci_devices(remote.stock_saw(capture)) == "10de:25b6:0302,10de:25b6:0302"


def test_an_offer(remote: Remote) -> None:
    remote.host.write("/etc/kvm-gpu/offers.toml",
                      '[offer.vdi]\nprofile = "A16-4Q"\ncpu = "shared"\nenabled_for = {groups = ["oneadmin"]}\n')
    capture = PLAIN.asking("<GPU_OFFER>vdi</GPU_OFFER>")
    assert remote.run(capture) == (0, "", "")
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    assert remote.stock_saw(capture).count(b"\t\t<vcpupin ") == 2


def test_vcpus_that_are_plugged_in_later_are_pinned_now(remote: Remote) -> None:
    """libvirt keeps the pin of a vCPU that is offline, so `resize` needs nothing of us."""
    capture = PLAIN.asking("<GPU><PROFILE>A16-4Q</PROFILE><CPU>shared</CPU></GPU>")
    more = capture._replace(stdin=capture.stdin.replace(b"<vcpu><![CDATA[2]]>", b"<vcpu current='2'><![CDATA[4]]>"))
    assert remote.run(more) == (0, "", "")
    pins = re.findall(rb"\n\t\t<vcpupin vcpu='(\d)' cpuset='0-7,16-23'/>", remote.stock_saw(more))
    assert pins == [b"0", b"1", b"2", b"3"]


def test_nvidia_vfio_that_oned_chose(remote: Remote) -> None:
    """Its own choice of the device, our record; the stock script has no UUID left by which to write a type."""
    capture = captured("12-deploy-pci-nvidia-vfio").at("0000:25:00.6")
    capture = capture._replace(vm_xml=capture.vm_xml.replace(b"1150 (NVIDIA H100L-4-48C)", b"713 (NVIDIA A16-4Q)"))
    assert remote.run(capture) == (0, "", "")
    assert states(remote.host) == [("one-2", "starting", ["0000:25:00.6"])]
    seen = remote.stock_saw(capture)
    assert (taken(seen), buses(seen)) == ((["0000:25:00.6"], []), ["0x01"])
    assert pci_devices(seen) == "10de:2331:0302"
    gone = b"<UUID><![CDATA[e4042b96-e63d-56cf-bcc8-4e6eecccf12e]]></UUID>"
    assert gone in capture.vm_xml
    assert remote.vm_xml(capture) == capture.vm_xml.replace(gone, b"")
    assert remote.host.kernel.read(TYPE.replace("00.4", "00.6")) == b"713\n"


def test_an_mdev_that_oned_chose(up: Up) -> None:
    """oned derives the UUID from the address, so it repeats on other hosts; ours takes its place."""
    remote = up("a40-mdev")
    capture = captured("13-deploy-pci-nvidia-mdev").at("0000:67:00.4")
    capture = capture._replace(vm_xml=capture.vm_xml.replace(b"nvidia-699", b"nvidia-560"))
    assert remote.run(capture) == (0, "", "")
    [claim] = remote.host.claims()
    [slot] = claim["slots"]
    assert (slot["slot"], slot["profile"]) == ("0000:67:00.4", "A40-4Q")
    seen = remote.stock_saw(capture)
    assert (taken(seen), buses(seen)) == (([], [slot["uuid"]]), ["0x01"])
    assert remote.host.kernel.list("/sys/bus/mdev/devices") == (slot["uuid"],)
    assert b"11111111-e63d-56cf-bcc8-4e6eecccf12e" not in remote.vm_xml(capture)


def test_a_whole_card_that_oned_chose_function_by_function(up: Up) -> None:
    """oned pinned the VM and bound its memory to the other node: that stays. Its hostdevs sit on a bus that the
    domain does not declare: ours do not."""
    remote = up("rtx6000x4")
    capture = captured("18-deploy-numa-core").at("0000:3b:00.0")
    [card] = re.findall(b"<PCI>.*</PCI>", capture.vm_xml)
    sound = card.replace(b"<FUNCTION><![CDATA[0]]>", b"<FUNCTION><![CDATA[1]]>")
    [hostdev] = re.findall(rb"(?s)\t\t<hostdev.*</hostdev>\n", capture.stdin)
    second = hostdev.replace(b"function='0x0'/>", b"function='0x1'/>", 1)
    both = capture._replace(vm_xml=capture.vm_xml.replace(card, card + sound),
                            stdin=capture.stdin.replace(hostdev, hostdev + second))
    done = remote.run(both)
    assert (done.code, done.out) == (0, "")
    assert states(remote.host) == [("one-4", "starting", ["0000:3b:00.0"])]
    seen = remote.stock_saw(both)
    assert taken(seen) == ([f"0000:3b:00.{function}" for function in range(4)], [])
    assert buses(capture.stdin) == ["13"]
    assert buses(seen) == ["0x0b"] * 4
    assert seen.count(b"<memnode cellid='0' mode='strict' nodeset='0'/>") == 1
    assert seen.count(b"<vcpupin vcpu='0' cpuset='0'/>") == 1


def test_a_vf_beside_a_profile(up: Up) -> None:
    """One VM with a device that oned chose and one that we choose; oned has listed its own already."""
    remote = up("mi300x-gim")
    capture = captured("11-deploy-pci-amd-vf").at("0000:05:02.0").asking("<GPU><MECHANISM>vf</MECHANISM></GPU>")
    assert remote.run(capture) == (0, "", "WARN: memory on node0, GPU on node1\nWARN: across nodes\n")
    assert states(remote.host) == [("one-1", "starting", ["0000:05:02.0", "0000:85:02.0"])]
    seen = remote.stock_saw(capture)
    assert taken(seen) == (["0000:05:02.0", "0000:85:02.0"], [])
    assert pci_devices(seen) == "1002:74b9:0380,1002:74b5:1200"


def test_a_pci_device_that_is_not_ours_passes(remote: Remote) -> None:
    capture = captured("11-deploy-pci-amd-vf").asking("")
    assert remote.run(capture) == (0, "", "")
    assert remote.stock_saw(capture) == capture.stdin
    assert remote.vm_xml(capture) == capture.vm_xml
    assert (states(remote.host), remote.mine()) == ([], [])


def test_the_second_start_and_the_start_after_a_cold_migration(remote: Remote) -> None:
    again = captured("23-deploy-after-cold-migrate").asking(ASKING)
    again = again._replace(vm_xml=re.sub(b"<PCI>.*</PCI>", b"", again.vm_xml), stdin=re.sub(
        rb"\t\t<hostdev.*</hostdev>\n", b"", again.stdin, flags=re.DOTALL))
    for _ in range(2):      # the first one's domain never came to be
        assert remote.run(again) == (0, "", "")
        assert states(remote.host) == [("one-2", "starting", ["0000:25:00.4"])]
    remote.host.vm_runs("one-2")
    done = remote.run(again)
    assert (done.code, done.out) == (5, "")
    assert done.err.startswith("VM one-2: runs, with claim ")


def test_signals_are_for_the_stock_script_as_sshd_gave_them(remote: Remote) -> None:
    """Python ignores SIGPIPE and SIGXFSZ, which a shell script's pipes and limits want."""
    remote.stock_does("grep SigIgn /proc/$$/status")
    for capture in (NO_GPU, PLAIN.asking(ASKING), captured("07-cancel-poweroff-hard")):
        done = remote.run(capture)
        assert done.code == 0
        ignored = int(done.out.split()[1], 16)
        assert [number for number in (SIGPIPE, SIGXFSZ) if ignored & 1 << (number - 1)] == []
