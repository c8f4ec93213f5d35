"""Processes: who is who after a pid was used again, and what a name may look like."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvm_gpu.holder import alive, boottime, command_of, holder_of, lock_holder

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def process():
    with subprocess.Popen(SLEEP) as child:
        yield child
        child.kill()


def test_a_running_process_is_its_own_holder(process: subprocess.Popen[bytes]) -> None:
    holder = holder_of(process.pid)
    assert holder is not None
    assert holder[0] == process.pid
    assert alive(holder)


def test_another_start_time_is_another_process(process: subprocess.Popen[bytes]) -> None:
    pid, start = holder_of(process.pid) or (0, 0)
    assert not alive((pid, start - 1))


def test_a_killed_process_that_nobody_waited_for_is_dead(process: subprocess.Popen[bytes]) -> None:
    holder = holder_of(process.pid)
    assert holder is not None
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}/stat").exists()
    assert (holder_of(process.pid), alive(holder)) == (None, False)


def test_no_such_process() -> None:
    assert (holder_of(2**22 + 1), command_of(2**22 + 1)) == (None, "")


def test_a_name_with_spaces_and_parentheses(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "60"]) as child:
        process = Path(f"/proc/{child.pid}")
        while (process / "comm").read_text() != "a) S 1 (b\n" or not (process / "cmdline").read_text():
            time.sleep(0.01)
        starttime = int(Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        assert holder_of(child.pid) == (child.pid, starttime)
        assert command_of(child.pid) == f"{odd} 60"
        child.kill()


def test_nobody_locks_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert lock_holder(str(tmp_path / "file"), 0) is None
    assert lock_holder(str(tmp_path / "none"), 0) is None


def test_boottime_is_the_kernels_uptime() -> None:
    assert abs(boottime() - float(Path("/proc/uptime").read_text().split()[0])) < 2
