"""Runs commands in the lab: one for each of its boots, with a hard reset in between."""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from tests.lab import machine
from tests.lab.kept import Kept, tool

TIME_IS_UP = 124
LAB_FAILED = 125
DISK_MIB = 32


def run(kept: Kept, checkout: Path, commands: list[list[str]], timeout_s: float, console: Path | None = None) -> int:
    """The exit status of the last command. All but the last must end by resetting the machine; the disk below
    /var/lib/kvm-gpu is what they leave to the next. stdout and stderr of the commands are ours.
    124: time is up; 125: the lab broke, and its console is on stderr."""
    with tempfile.TemporaryDirectory(prefix="kvm-gpu-lab.") as name:
        folder = Path(name)
        control, disk = folder / "control", folder / "disk"
        control.mkdir()
        subprocess.run(["make", "-s", "-C", checkout, "install", f"DESTDIR={control}/package"], check=True)
        (control / "env").write_text(f"LAB_DIR={shlex.quote(str(checkout))}\nLAB_MODULES={kept.modules}\n")
        _make_disk(disk)
        deadline = time.monotonic() + timeout_s
        for boot, command in enumerate(commands, 1):
            (control / "command").write_text(f"export LAB_BOOT={boot}\nexec {shlex.join(command)}\n")
            (control / "exit").unlink(missing_ok=True)
            lab = Boot(_qemu(kept, control, disk), console or folder / "console")
            if not lab.ends(deadline - time.monotonic()):
                print(f"lab: not done after {timeout_s:g} s", file=sys.stderr)
                return TIME_IS_UP
            done = (control / "exit").exists()
            if done != (boot == len(commands)):
                return int((control / "exit").read_text()) if done else lab.broke()
        return int((control / "exit").read_text())


def _qemu(kept: Kept, control: Path, disk: Path) -> list[str]:
    return [machine.QEMU, "-kernel", str(kept.kernel), "-initrd", str(kept.initramfs), "-append", machine.KERNEL,
            *machine.arguments(), *machine.disk(disk), *machine.share("root", Path("/"), readonly=True),
            *machine.share("control", control), *machine.share("capabilities", kept.capabilities)]


def _make_disk(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(DISK_MIB << 20)
    subprocess.run([tool("mkfs.ext4") or "mkfs.ext4", "-q", path], check=True)


class Boot:
    """One run of the machine, from power on to power off or reset."""

    def __init__(self, qemu: list[str], console: Path) -> None:
        self.console = console
        self.complaints = console.with_name(console.name + ".qemu")
        pipes = {"out": (os.pipe(), sys.stdout.buffer), "err": (os.pipe(), sys.stderr.buffer)}
        ends = [pipe[1] for pipe, _ in pipes.values()]
        for name, (pipe, _) in pipes.items():
            qemu = qemu + machine.stream(name, pipe[1])
        with open(self.complaints, "wb") as complaints:
            self.process = subprocess.Popen([*qemu, "-serial", f"file:{console}"], stdin=subprocess.DEVNULL,
                                            stderr=complaints, pass_fds=ends)
        for end in ends:
            os.close(end)
        self.pumps = [threading.Thread(target=_pump, args=(pipe[0], stream)) for pipe, stream in pipes.values()]
        for pump in self.pumps:
            pump.start()

    def ends(self, timeout_s: float) -> bool:
        """Whether it ended by itself in time. In any case it is over."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.process.kill()
            self.process.wait()
            for pump in self.pumps:
                pump.join()
        return True

    def broke(self) -> int:
        print("lab: it went down before its command ended. QEMU and the console said:", self.complaints.read_text(),
              self.console.read_text(errors="replace")[-4000:], sep="\n", file=sys.stderr)
        return LAB_FAILED


def _pump(descriptor: int, stream: BinaryIO) -> None:
    while data := os.read(descriptor, 65536):
        stream.write(data)
        stream.flush()
    os.close(descriptor)
