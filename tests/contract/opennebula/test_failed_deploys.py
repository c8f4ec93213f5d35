"""A deploy that fails: what oned is told, and that nothing is left behind."""
from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.contract.host import answer
from tests.contract.opennebula.remote import HELPER, Capture, Remote, captured, states

Up = Callable[[str], Remote]

PLAIN = captured("01-deploy-plain").asking("")
GPU = PLAIN.asking("<GPU><PROFILE><![CDATA[A16-4Q]]></PROFILE></GPU>")
TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"
HOST_ERROR = 4
NOT_ALLOWED = 5
BUSY = 75

# what stock deploy says where libvirt refuses, captured
REFUSED_BY_LIBVIRT = """\
XPath set is empty
error: Failed to create domain from /var/lib/one/datastores/0/2/deployment.0
error: unsupported configuration: host doesn't support passthrough of host PCI devices
Could not create domain from /var/lib/one/datastores/0/2/deployment.0
"""


def shown_to_user(err: str) -> str:
    """ERROR of the VM as oned makes it of a failed script's stderr, without the date."""
    levels = ("ERROR:", "INFO:", "WARN:", "DEBUG:")
    told = "".join(line for line in err.splitlines() if not line.startswith(levels))
    return ("DEPLOY: " + told)[:100]


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def events(remote: Remote) -> list[str]:
    return [event["event"] for event in remote.host.json("events")["events"]]


# ---- the stock script ------------------------------------------------------------------------------

def test_the_stock_script_fails(remote: Remote) -> None:
    before = remote.host.kernel.snapshot()
    remote.stock_does(f"cat >&2 <<'END'\n{REFUSED_BY_LIBVIRT}END\nexit 255")
    assert remote.run(GPU) == (255, "", REFUSED_BY_LIBVIRT + "INFO: VM one-0: released\n")
    assert remote.stock_saw(GPU) != GPU.stdin
    assert (states(remote.host), remote.mine(), remote.host.kernel.snapshot()) == ([], [], before)
    assert events(remote) == ["claimed", "released"]


def test_the_stock_script_fails_though_the_domain_runs(remote: Remote) -> None:
    """Its last steps come after the start: then the VM keeps what it has."""
    status = remote.host.root / "run/libvirt/qemu/one-0.xml"
    remote.stock_does(f"echo '<domstatus/>' > {status}; exit 1")
    assert remote.run(GPU) == (1, "", "INFO: VM one-0: runs all the same\n")
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    assert remote.mine() == ["one-0"]


def test_the_stock_script_is_killed(remote: Remote) -> None:
    """Its virsh may have reached libvirt: reconcile finds out."""
    remote.stock_does("kill -9 $$")
    assert remote.run(GPU) == (
        137, "", "the stock deploy was ended by signal 9; its GPU is free again once no VM has it\n")
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    assert remote.host.json("reconcile") == {"done": ["VM one-0: released"]}
    assert (states(remote.host), remote.host.kernel.read(TYPE)) == ([], b"0\n")


def test_the_stock_script_hangs_and_is_killed(remote: Remote) -> None:
    """As long as it lives its claim stands, though we are dead: it is the holder."""
    remote.stock_does("exec sleep 60")
    process = remote.start(GPU)
    wait_for(lambda: (remote.records / "pid").exists() and (remote.records / "pid").read_text())
    stock = int((remote.records / "pid").read_text())
    process.kill()
    process.wait()
    assert remote.host.json("reconcile") == {"done": []}
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    os.kill(stock, signal.SIGKILL)
    wait_for(lambda: remote.host.json("reconcile") == {"done": ["VM one-0: released"]})
    assert states(remote.host) == []


def test_the_stock_script_is_missing(remote: Remote) -> None:
    process = remote.start(GPU)
    (remote.stock / "deploy").unlink()
    done = answer(process)
    assert (done.code, done.out) == (127, "")
    assert done.err == f"{remote.stock}/deploy: No such file or directory\nINFO: VM one-0: released\n"
    assert states(remote.host) == []


def test_we_are_killed_before_the_stock_script_starts(remote: Remote) -> None:
    """What would have become it ends with us."""
    done = remote.records / "claimed"
    remote.replace_sudo(f'shift 2; {HELPER} "$@"; touch {done}; exec sleep 60')
    process = remote.start(GPU)
    wait_for(done.exists)
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]
    process.kill()
    process.wait()
    wait_for(lambda: remote.host.json("reconcile") == {"done": ["VM one-0: released"]})
    assert not remote.stock_ran()


def test_a_retry_after_a_failure(remote: Remote) -> None:
    remote.stock_does("exit 255")
    assert remote.run(GPU).code == 255
    remote.stock_does("echo uuid")
    assert remote.run(GPU) == (0, "uuid\n", "")
    assert states(remote.host) == [("one-0", "starting", ["0000:25:00.4"])]


# ---- our claim -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("template", "code", "shown"), [
    ("<GPU><PROFILE>A16-8Q</PROFILE><CARDS>9</CARDS></GPU>", 3, "no GPU free for 9 x A16-8Q on this host: "),
    ("<GPU><PROFILE>A61-4Q</PROFILE></GPU>", 2, "VM one-0: A61-4Q is no profile of this host"),
    ("<GPU><COUNT>2</COUNT><MODE>vf</MODE></GPU>", 2, "GPU: COUNT, MODE not known; known are OFFER, PROFILE, "),
    ("<GPU_OFFER>gold</GPU_OFFER>", NOT_ALLOWED, "VM one-0: offer gold is not enabled for user oneadmin, "),
    ("<GPU_OFFER>silver</GPU_OFFER>", 2, "GPU: no offer 'silver' on this host"),
], ids=["full", "unknown profile", "unknown keys", "offer of others", "unknown offer"])
def test_a_refusal(remote: Remote, template: str, code: int, shown: str) -> None:
    """Nothing is started, nothing changes; the user reads why, and the log the rest."""
    remote.host.write("/etc/kvm-gpu/offers.toml",
                      '[offer.gold]\nprofile = "A16-4Q"\nenabled_for = {users = ["ann"], groups = ["gold"]}\n')
    before = remote.host.state()
    done = remote.run(PLAIN.asking(template))
    assert (done.code, done.out) == (code, "")
    assert shown_to_user(done.err).startswith(f"DEPLOY: {shown}")
    first, *rest = done.err.splitlines()
    assert [line for line in rest if not line.startswith("INFO: ")] == []
    assert (remote.stock_ran(), remote.mine(), remote.host.state()) == (False, [], before)


def test_a_full_host_says_why_and_names_no_other_vm(remote: Remote) -> None:
    for vm in range(4):
        assert remote.host.run("claim", "--vm", f"one-{vm + 1}", "--profile", "A16-16Q").code == 0
    done = remote.run(PLAIN.asking("<GPU><PROFILE>A16-16Q</PROFILE></GPU>"))
    assert done.err.splitlines()[1:6] == [
        *(f"INFO: GPU 0000:{25 + board}:00.0: fully used" for board in range(4)), "INFO: host: none free"]


def test_the_lock_is_held(remote: Remote) -> None:
    assert remote.host.run("claim", "--vm", "one-9", "--profile", "A16-4Q").code == 0
    ledger = sqlite3.connect(remote.host.root / "var/lib/kvm-gpu/ledger.db", isolation_level=None)
    ledger.execute("begin immediate")
    done = remote.run(GPU)
    ledger.execute("rollback")
    ledger.close()
    assert (done.code, done.out, remote.stock_ran()) == (BUSY, "", False)
    assert done.err.startswith(f"{remote.host.root}/var/lib/kvm-gpu/ledger.db: locked by process {os.getpid()} (")
    assert states(remote.host) == [("one-9", "starting", ["0000:25:00.4"])]


def test_the_helper_may_not_run(remote: Remote) -> None:
    remote.replace_sudo("echo 'sudo: a password is required' >&2; exit 1")
    done = remote.run(GPU)
    assert done == (1, "", "the GPU driver may not run its helper on this host\nINFO: sudo: a password is required\n")
    assert (remote.stock_ran(), states(remote.host)) == (False, [])


@pytest.mark.parametrize(("cards", "code", "told"), [
    ("1", 0, []), ("0", 2, ["GPU: CARDS = '0' is not a number above 0"])], ids=["given", "refused"])
def test_sudo_complains_and_runs_the_helper(remote: Remote, cards: str, code: int, told: list[str]) -> None:
    """As on a host whose own name does not resolve: that is no reason for the user."""
    remote.replace_sudo(f"echo 'sudo: unable to resolve host node7' >&2; shift 2; exec {HELPER} \"$@\"")
    done = remote.run(PLAIN.asking(f"<GPU><PROFILE>A16-4Q</PROFILE><CARDS>{cards}</CARDS></GPU>"))
    assert (done.code, done.out) == (code, "")
    assert done.err.splitlines() == ["WARN: sudo: unable to resolve host node7", *told]


def test_vm_xml_cannot_be_written(remote: Remote) -> None:
    """Else the stock script would write types behind us."""
    capture = captured("12-deploy-pci-nvidia-vfio").at("0000:25:00.4")
    capture = capture._replace(vm_xml=capture.vm_xml.replace(b"1150 (NVIDIA H100L-4-48C)", b"713"))
    remote.folder(capture).mkdir(parents=True)
    (remote.folder(capture) / "vm.xml.new").mkdir()
    assert remote.run(capture) == (1, "", "vm.xml cannot be written beside the deployment file: Is a directory\n"
                                          "INFO: VM one-2: released\n")
    assert (remote.stock_ran(), states(remote.host)) == (False, [])


# ---- hostile ---------------------------------------------------------------------------------------

BY_HAND = b"""\t<devices>
\t\t<hostdev mode='subsystem' type='pci' managed='yes'>
\t\t\t<source><address domain='0x0000' bus='0x25' slot='0x00' function='0x5'/></source>
\t\t</hostdev>
\t</devices>
</domain>"""


HIDDEN = BY_HAND.replace(b"hostdev mode='subsystem' type='pci'", b"interface type='&#104;ostdev'").replace(
    b"<address ", b"<address type='pci' ").replace(b"</hostdev>", b"</interface>")


@pytest.mark.parametrize("capture", [PLAIN, GPU], ids=["alone", "beside a request"])
@pytest.mark.parametrize("raw", [BY_HAND, HIDDEN], ids=["hostdev", "interface"])
def test_a_hostdev_written_by_hand(remote: Remote, capture: Capture, raw: bytes) -> None:
    before = remote.host.kernel.snapshot()
    done = remote.run(capture._replace(stdin=capture.stdin.replace(b"</domain>", raw)))
    assert (done.code, done.out, remote.stock_ran()) == (NOT_ALLOWED, "", False)
    assert done.err.startswith("VM one-0: its XML takes 0000:25:00.5 by itself, which is ours to give\n")
    assert (states(remote.host), remote.host.kernel.snapshot()) == ([], before)


@pytest.mark.parametrize("capture", [PLAIN, GPU], ids=["alone", "beside a request"])
def test_a_hostdev_that_says_it_is_ours(remote: Remote, capture: Capture) -> None:
    """What carries our alias counts as an earlier injection, and goes."""
    planted = BY_HAND.replace(b"</hostdev>", b"<alias name='ua-kvm-gpu-1-0-0'/></hostdev>")
    assert remote.run(capture._replace(stdin=capture.stdin.replace(b"</domain>", planted))) == (0, "", "")
    assert b"function='0x5'" in planted
    assert b"function='0x5'" not in remote.stock_saw(capture)


def test_a_device_as_an_argument_for_qemu(remote: Remote) -> None:
    """RAW is restricted, but a value that ends its CDATA gets into the domain too; and where /dev/vfio is open to
    oneadmin QEMU would take it."""
    argument = "vfio-pci,host=0000:25:00.5"
    raw = f"<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='{argument}'/></qemu:commandline></domain>"
    done = remote.run(PLAIN._replace(stdin=PLAIN.stdin.replace(b"</domain>", raw.encode())))
    assert done == (NOT_ALLOWED, "", f"VM one-0: takes a device by the QEMU argument '{argument}'\n"
                                     "INFO: ask for a profile\n")
    assert not remote.stock_ran()


def test_the_mdev_of_another_vm_written_by_hand(up: Up) -> None:
    remote = up("a40-mdev")
    assert remote.host.run("claim", "--vm", "one-9", "--profile", "A40-4Q").code == 0
    [claim] = remote.host.claims()
    source = f"<source><address uuid='{claim['slots'][0]['uuid']}'/></source>"
    raw = f"<devices><hostdev mode='subsystem' type='mdev' model='vfio-pci'>{source}</hostdev></devices></domain>"
    done = remote.run(PLAIN._replace(stdin=PLAIN.stdin.replace(b"</domain>", raw.encode())))
    assert (done.code, done.out, remote.stock_ran()) == (NOT_ALLOWED, "", False)
    assert [state[0] for state in states(remote.host)] == ["one-9"]


def test_another_vms_device_as_pci(remote: Remote) -> None:
    assert remote.host.run("claim", "--vm", "one-9", "--profile", "A16-4Q").code == 0
    capture = captured("12-deploy-pci-nvidia-vfio").at("0000:25:00.4")
    done = remote.run(capture._replace(vm_xml=capture.vm_xml.replace(b"1150 (NVIDIA H100L-4-48C)", b"713")))
    assert (done.code, done.out, remote.stock_ran()) == (3, "", False)
    assert done.err.startswith("no GPU free for 1 x 713 0000:25:00.4 on this host: ")
    assert states(remote.host) == [("one-9", "starting", ["0000:25:00.4"])]


@pytest.mark.parametrize(("value", "why"), [
    ("]]></X><GPU><PROFILE>A16-4Q</PROFILE></GPU></USER_TEMPLATE><UNAME>ann</UNAME><USER_TEMPLATE><X><![CDATA[",
     "VM XML: <UNAME> stands twice"),
    ("]]></X></USER_TEMPLATE><TEMPLATE><PCI><BUS>25</BUS></PCI></TEMPLATE><USER_TEMPLATE><X><![CDATA[",
     "VM XML: <TEMPLATE> stands twice"),
    ("]]></X><GPU><PROFILE>a</PROFILE><PROFILE>b</PROFILE></GPU><X><![CDATA[", "VM XML: PROFILE is given twice"),
    ("]]></X><GPU>A16-4Q</GPU><X><![CDATA[", "GPU = 'A16-4Q': write GPU = [ PROFILE = \"...\" ]"),
])
def test_a_value_that_ends_its_cdata(remote: Remote, value: str, why: str) -> None:
    """oned does not escape what stands in a template's values."""
    done = remote.run(PLAIN.asking(f"<X><![CDATA[{value}]]></X>"))
    assert (done.code, done.out, done.err) == (2, "", why + "\n")
    assert (remote.stock_ran(), states(remote.host)) == (False, [])


def test_planted_metadata_opens_nothing(remote: Remote) -> None:
    """A claim that its owner wrote into the domain ends with the injection of the real one."""
    claim = b"<kvm-gpu:claim xmlns:kvm-gpu='urn:kvm-gpu:domain:1' id='0123456789abcdef'/>"
    planted = GPU.stdin.replace(b"</domain>", b"<metadata>%s</metadata></domain>" % claim)
    assert remote.run(GPU._replace(stdin=planted)) == (0, "", "")
    [held] = remote.host.claims()
    seen = remote.stock_saw(GPU)
    assert seen.count(b"<kvm-gpu:claim ") == 1
    assert f"id='{held['claim']}'".encode() in seen


@pytest.mark.parametrize(("verb", "stdin", "why"), [
    ("save", b"9\n../../etc", "one-helper: '../../etc' is not a plain word"),
    ("stop", b"5\none", "one-helper: stdin is a frame that is not whole"),
    ("", b"", "one-helper : the verbs are probe, deploy, failed, stop, stopped, still-runs, save, migrate"),
    ("shell", b"", "one-helper shell: the verbs are probe, deploy, failed, stop, stopped, still-runs, save, migrate"),
])
def test_the_helper_takes_words_only(remote: Remote, verb: str, stdin: bytes, why: str) -> None:
    done = subprocess.run([HELPER, verb], input=stdin, capture_output=True, check=False,
                          env={**os.environ, "KVM_GPU_ROOT": str(remote.host.root)})
    assert (done.returncode, done.stdout, done.stderr.decode().removeprefix("WARN: ")) == (2, b"", why + "\n")


def test_a_bug_is_told_as_one(remote: Remote) -> None:
    """The user reads that, and the log has the traceback."""
    done = subprocess.run([HELPER, "deploy"], input=b"1\na", capture_output=True, check=False,
                          env={**os.environ, "KVM_GPU_ROOT": str(remote.host.root)})
    assert (done.returncode, done.stdout) == (1, b"")
    first, *rest = done.stderr.decode().splitlines()
    assert first == "the GPU driver has a bug (ValueError); the VM's log has more"
    assert {line.partition(" ")[0] for line in rest} == {"ERROR:"}
