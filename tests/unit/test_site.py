"""Whether a VM runs, by what libvirt and Proxmox leave in /run, some of it long after the VM."""
from __future__ import annotations

from pathlib import Path

import pytest

from kvm_gpu.ledger import Ledger
from kvm_gpu.model import Config
from kvm_gpu.site import Site
from kvm_gpu.sysfs import Sysfs

STATUS = {"run/libvirt/qemu/104.xml": "<domstatus/>"}
PID_FILE = {"run/qemu-server/104.pid": "4711\n"}


def qemu(vm: str) -> dict[str, str]:
    """Process 4711 is the QEMU of this VM, as Proxmox starts it."""
    words = ["/usr/bin/kvm", "-id", vm, "-pidfile", f"/var/run/qemu-server/{vm}.pid", "-daemonize", ""]
    return {"proc/4711/cmdline": "\0".join(words)}


@pytest.mark.parametrize(("files", "runs"), [
    ({}, False),
    (STATUS, True),
    ({"run/libvirt/qemu/1104.xml": "<domstatus/>"}, False),
    (PID_FILE | qemu("104"), True),
    (PID_FILE, False),
    (PID_FILE | {"proc/4711/cmdline": ""}, False),
    (PID_FILE | {"proc/4711/cmdline": "/usr/sbin/cron\0-f\0"}, False),
    (PID_FILE | qemu("1104"), False),
    ({"run/qemu-server/104.pid": ""} | qemu("104"), False),
], ids=["nothing", "libvirt", "another VM of libvirt", "Proxmox", "QEMU was killed", "QEMU is a zombie",
        "its pid is another program's by now", "its pid is another VM's by now", "pid file without a pid"])
def test_running(tmp_path: Path, files: dict[str, str], runs: bool) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert Site(Sysfs(str(tmp_path)), Ledger(str(tmp_path / "ledger.db")), Config()).running("104") == runs
