"""Actions on a VM that has a GPU, and on one that has not: cancel, shutdown, save, migrate and the rest."""
from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.host import answer
from tests.contract.opennebula.remote import Capture, Remote, captured, states

GPU = captured("01-deploy-plain").asking("<GPU><PROFILE><![CDATA[A16-4Q]]></PROFILE></GPU>")
PCI = captured("12-deploy-pci-nvidia-vfio").at("0000:25:00.4")
PCI = PCI._replace(vm_xml=PCI.vm_xml.replace(b"1150 (NVIDIA H100L-4-48C)", b"713 (NVIDIA A16-4Q)"))
TYPE = "/sys/bus/pci/devices/0000:25:00.4/nvidia/current_vgpu_type"
CANCEL = captured("07-cancel-poweroff-hard")
STOPS = [CANCEL, captured("10-cancel-undeploy-hard"),
         # the captures of other VMs, as of this one
         captured("17-shutdown-terminate")._replace(argv=CANCEL.argv),
         captured("22-cancel-migrate-poff-hard")._replace(argv=CANCEL.argv)]
SAVES = [captured("04-save-suspend"), captured("09-save-stop")]
MIGRATE = captured("21-migrate-live")
SAME_HOST = MIGRATE._replace(argv=[MIGRATE.argv[0], "localhost", *MIGRATE.argv[2:]])
HAS = "A16-4Q at 0000:25:00.4"
HELD = [("one-0", "active", ["0000:25:00.4"])]
NOT_ALLOWED = 5


@pytest.fixture
def running(remote: Remote) -> Remote:
    """VM one-0 runs with a GPU."""
    assert remote.run(GPU) == (0, "", "")
    remote.host.vm_runs("one-0")
    assert remote.host.json("reconcile") == {"done": ["VM one-0: runs on its device"]}
    return remote


class Held:
    """The stock script at work: it waits until `go` is called."""

    def __init__(self, remote: Remote, end: str) -> None:
        self.pipe = remote.records / "pipe"
        os.mkfifo(self.pipe)
        remote.stock_does(f"read word < {self.pipe}\n{end}")
        self.records = remote.records

    def wait(self) -> None:
        """Until it has begun."""
        deadline = time.monotonic() + 20
        while not (self.records / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def go(self) -> None:
        self.pipe.write_text("go\n")


# ---- cancel, shutdown ------------------------------------------------------------------------------

@pytest.mark.parametrize("capture", STOPS, ids=lambda capture: capture.action)
def test_a_stop(running: Remote, capture: Capture) -> None:
    """While the stock script is at it the claim is `releasing` and nobody else ends it; then it ends."""
    stock = Held(running, "echo destroyed")
    process = running.start(capture)
    stock.wait()
    assert states(running.host) == [("one-0", "releasing", ["0000:25:00.4"])]
    running.host.kernel.vm_stop("one-0")
    assert running.host.json("reconcile") == {"done": []}
    assert running.host.kernel.read(TYPE) == b"713\n"
    stock.go()
    assert answer(process) == (0, "destroyed\n", "INFO: VM one-0: released\n")
    assert running.stock_saw(capture) == capture.stdin
    assert (states(running.host), running.mine(), running.host.kernel.read(TYPE)) == ([], [], b"0\n")


def test_a_stop_that_fails(running: Remote) -> None:
    """The VM runs on, with what it has."""
    running.stock_does("echo 'Could not destroy one-0' >&2; exit 1")
    assert running.run(CANCEL) == (1, "", "Could not destroy one-0\n")
    assert (states(running.host), running.mine()) == (HELD, ["one-0"])


def test_a_stop_whose_device_is_slow_to_close(running: Remote) -> None:
    """The stock script succeeds while QEMU still has the device: reconcile ends it later."""
    done = running.run(CANCEL)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("INFO: VM one-0: releasing, still in use: 0000:25:00.4: a VM has it open")
    assert states(running.host) == [("one-0", "releasing", ["0000:25:00.4"])]
    running.host.kernel.vm_stop("one-0")
    assert running.host.json("reconcile") == {"done": ["VM one-0: released"]}
    assert (states(running.host), running.host.kernel.read(TYPE)) == ([], b"0\n")


def test_a_stop_in_which_we_are_killed(running: Remote) -> None:
    stock = Held(running, "exit 0")
    process = running.start(CANCEL)
    stock.wait()
    process.kill()
    process.wait()
    running.host.kernel.vm_stop("one-0")
    stock.go()
    assert running.host.json("reconcile") == {"done": ["VM one-0: released"]}
    assert (states(running.host), running.host.kernel.read(TYPE)) == ([], b"0\n")


def test_a_stop_while_the_lock_is_held(running: Remote) -> None:
    """The VM is stopped all the same; its claim is left to reconcile."""
    ledger = sqlite3.connect(running.host.root / "var/lib/kvm-gpu/ledger.db", isolation_level=None)
    ledger.execute("begin immediate")
    running.stock_does("echo destroyed")
    done = running.run(CANCEL)
    ledger.execute("rollback")
    ledger.close()
    assert (done.code, done.out) == (0, "destroyed\n")
    ledger_file = running.host.root / "var/lib/kvm-gpu/ledger.db"
    assert done.err.startswith(f"WARN: {ledger_file}: locked by process {os.getpid()} (")
    assert states(running.host) == HELD
    running.host.kernel.vm_stop("one-0")
    assert running.host.json("reconcile") == {"done": ["VM one-0: released"]}


def test_a_vm_that_powered_itself_off(running: Remote) -> None:
    """oned calls nothing; the timer's reconcile frees. A later call finds nothing to do, and the mark goes."""
    running.host.kernel.vm_stop("one-0")
    assert running.host.json("reconcile") == {"done": ["VM one-0: released"]}
    assert (states(running.host), running.mine()) == ([], ["one-0"])
    assert running.run(CANCEL) == (0, "", "")
    assert (running.stock_saw(CANCEL), running.mine()) == (CANCEL.stdin, [])


def test_a_vm_that_powered_itself_off_is_not_in_the_way(running: Remote) -> None:
    """Before a refusal the ledger is reconciled."""
    for vm in range(1, 4):
        assert running.host.run("claim", "--vm", f"one-{vm}", "--profile", "A16-16Q").code == 0
    running.host.kernel.vm_stop("one-0")
    capture = PCI.asking("")
    assert running.run(capture) == (0, "", "")
    assert ("one-2", "starting", ["0000:25:00.4"]) in states(running.host)


def test_an_adopted_device_is_released_too(remote: Remote) -> None:
    """oned keeps the device for the VM; the host is free to give it to the same VM again."""
    assert remote.run(PCI) == (0, "", "")
    remote.host.vm_runs("one-2")
    remote.host.kernel.vm_stop("one-2")
    assert remote.run(captured("22-cancel-migrate-poff-hard")) == (0, "", "INFO: VM one-2: released\n")
    assert (states(remote.host), remote.host.kernel.read(TYPE)) == ([], b"0\n")


# ---- what a VM with a GPU cannot -------------------------------------------------------------------

@pytest.mark.parametrize("capture", SAVES, ids=["suspend", "stop"])
def test_a_vm_with_a_gpu_is_not_saved(running: Remote, capture: Capture) -> None:
    """Also where its owner has taken the GPU out of the template since: that is not asked."""
    assert running.run(capture) == (
        NOT_ALLOWED, "", f"one-0 cannot be suspended, stopped or moved by saving it, with {HAS}\n"
                         "INFO: power it off, undeploy it, or move it with migrate --poff\n")
    assert (running.stock_ran(), states(running.host)) == (False, HELD)


def test_a_vm_with_a_gpu_is_not_migrated_live(running: Remote) -> None:
    """The stock script would delete its snapshots first."""
    assert running.run(MIGRATE) == (
        NOT_ALLOWED, "", f"one-0 cannot be migrated live with {HAS} passed through\n"
                         "INFO: move it with migrate --poff: it is powered off, moved and started again\n")
    assert (running.stock_ran(), states(running.host)) == (False, HELD)


def test_its_disks_are_migrated_on_the_same_host(running: Remote) -> None:
    assert running.run(SAME_HOST) == (0, "", "")
    assert (running.stock_saw(SAME_HOST), states(running.host)) == (MIGRATE.stdin, HELD)


# ---- the rest is the stock script's ----------------------------------------------------------------

@pytest.mark.parametrize("name", ["02-reboot", "03-reset", "05-restore-resume", "06-resize"])
def test_other_actions_pass(running: Remote, name: str) -> None:
    capture = captured(name)
    running.stock_does("echo done; echo said >&2; exit 3")
    process = running.start(capture)
    assert answer(process) == (3, "done\n", "said\n")
    assert running.stock_saw(capture) == capture.stdin
    assert int((running.records / "pid").read_text()) == process.pid
    assert states(running.host) == HELD


@pytest.mark.parametrize("capture", [*STOPS, *SAVES, MIGRATE], ids=lambda capture: capture.action)
def test_a_vm_without_gpu_passes(remote: Remote, capture: Capture) -> None:
    """In the same process, without the helper."""
    remote.replace_sudo("exit 1")
    remote.stock_does("echo done; exit 3")
    process = remote.start(capture)
    assert answer(process) == (3, "done\n", "")
    assert remote.stock_saw(capture) == capture.stdin
    assert int((remote.records / "pid").read_text()) == process.pid


# ---- the probes ------------------------------------------------------------------------------------

@pytest.fixture
def monitor(remote: Remote, tmp_path: Path) -> Iterator[Path]:
    """OpenNebula's monitor on the host: it notes each request to run the probes now."""
    script, notes = tmp_path / "monitord-client.sh", tmp_path / "notes"
    script.write_text(f"trap 'echo now >> {notes}' USR1\necho ready > {notes}\nwhile :; do sleep 0.05; done\n")
    with subprocess.Popen(["sh", script]) as process:
        pid_file = remote.host.root / "var/tmp/one_db/.monitor_client.pid"
        pid_file.parent.mkdir(parents=True)
        pid_file.write_text(str(process.pid))
        while not notes.exists():
            time.sleep(0.02)
        yield notes
        process.kill()


def wait_for_text(file: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while file.read_text() != text:
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.02)


def test_the_probes_run_after_each_change(remote: Remote, monitor: Path) -> None:
    assert remote.run(GPU).code == 0
    wait_for_text(monitor, "ready\nnow\n")
    assert remote.run(captured("02-reboot")).code == 0
    assert remote.run(CANCEL).code == 0
    wait_for_text(monitor, "ready\nnow\nnow\n")


def test_a_pid_that_is_another_process_by_now_gets_no_signal(remote: Remote) -> None:
    """SIGUSR1 ends most processes."""
    with subprocess.Popen(["sleep", "60"]) as process:
        pid_file = remote.host.root / "var/tmp/one_db/.monitor_client.pid"
        pid_file.parent.mkdir(parents=True)
        pid_file.write_text(str(process.pid))
        assert remote.run(GPU).code == 0
        time.sleep(0.1)
        assert process.poll() is None
        process.kill()
