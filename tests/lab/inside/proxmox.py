"""The lab as a node of Proxmox VE: its files, the hookscript, and what qm start and qm stop do between its phases.

Source: vm_start_nolock and vm_stop_cleanup in PVE::QemuServer 9.2, enter_systemd_scope in PVE::Systemd. Proxmox VE asks
systemd over D-Bus; systemd-run, as root, asks it the same over its private socket.
"""
from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.lab.inside import guests, kernel
from tests.lab.inside.ours import Answer

HOOK = "/usr/libexec/kvm-gpu/pve-gpu-hook"
NAME = "lab"
ETC = Path("/etc/pve")
RUN = Path("/run/qemu-server")
RESERVATIONS = RUN / "pci-id-reservations"
ENVIRON = {"HOME": "/root", "LANG": "C.UTF-8", "LC_ALL": "C", "PATH": "/sbin:/bin:/usr/sbin:/usr/bin"}
# Without After and Before: the units that Proxmox VE names there are loaded on a node and not here, and to load one has
# systemd look for new drop-in folders. A scope would be bound without the hook's reload.
PROPERTIES = ("Slice=qemu.slice", "KillMode=process", "SendSIGKILL=no", "TimeoutStopSec=infinity", "CPUWeight=100")
# The guest's memory is in huge pages, all taken at once: numa_maps shows on which node.
KVM = ("qemu-system-x86_64", "-machine", "q35,accel=kvm", "-cpu", "host", "-smp", "2", "-nodefaults", "-display",
       "none", "-daemonize", "-m", "64", "-mem-path", "/dev/hugepages", "-mem-prealloc")


class Vm(NamedTuple):
    id: str

    @property
    def scope(self) -> Path:
        return Path(f"/sys/fs/cgroup/qemu.slice/{self.id}.scope")

    @property
    def pid_file(self) -> Path:
        return RUN / f"{self.id}.pid"

    @property
    def mdev(self) -> str:
        """UUID of the one for hostpci0."""
        return f"00000000-0000-0000-0000-{int(self.id):012}"

    @property
    def reserved(self) -> str | None:
        """The function that the hook steered Proxmox VE to."""
        return next((address for address, vm, _ in _reservations() if vm == self.id), None)


def install(mappings: dict[str, list[str]]) -> None:
    """A node with these PCI mappings."""
    for folder in (ETC / f"nodes/{NAME}/qemu-server", ETC / "mapping", RUN):
        folder.mkdir(parents=True, exist_ok=True)
    (ETC / "local").symlink_to(f"nodes/{NAME}")
    (ETC / "qemu-server").symlink_to(f"nodes/{NAME}/qemu-server")
    sections = [f"{name}\n\tmdev 1\n" + "".join(f"\tmap id=1b36:0010,node={NAME},path={path}\n" for path in paths)
                for name, paths in mappings.items()]
    (ETC / "mapping/pci.cfg").write_text("\n".join(sections))


def hook(vm: Vm, phase: str) -> Answer:
    done = subprocess.run([HOOK, vm.id, phase], capture_output=True, env=ENVIRON, check=False)
    return Answer(done.returncode, done.stdout, done.stderr.decode())


@contextmanager
def started(vm: Vm, *conf: str) -> Iterator[int]:
    """Pid of the QEMU of a VM with these lines in its configuration, as it is before post-start. It is killed at the
    end, and qm cleanup follows."""
    (ETC / f"qemu-server/{vm.id}.conf").write_text("".join(f"{line}\n" for line in ("cores: 2", "memory: 64", *conf)))
    before = hook(vm, "pre-start")
    assert (before.code, before.err) == (0, ""), before
    _enter_scope(vm)
    pid = int(vm.pid_file.read_text())
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        guests.wait_for(lambda: not vm.scope.exists())
        _clean_up(vm)
        after = hook(vm, "post-stop")
        assert (after.code, after.err) == (0, ""), after


def last_reload() -> str:
    """When systemd was last told to read its units anew."""
    done = subprocess.run(["systemctl", "show", "--value", "-p", "UnitsLoadTimestampMonotonic"], capture_output=True,
                          check=True, text=True)
    return done.stdout.strip()


# ---- the task worker ---------------------------------------------------------------------------------

def _enter_scope(vm: Vm) -> None:
    """QEMU has its memory, and its monitor answers, when this returns."""
    properties = [f"--property={one}" for one in PROPERTIES]
    subprocess.run([
        "systemd-run", "--quiet", "--scope", f"--unit={vm.id}", *properties, *KVM,
        "-name", f"vm{vm.id},debug-threads=on", "-bios", guests.rom(), "-pidfile", vm.pid_file,
        "-chardev", f"socket,id=qmp,path={RUN}/{vm.id}.qmp,server=on,wait=off", "-mon", "chardev=qmp,mode=control",
        *_device(vm)], check=True, stdin=subprocess.DEVNULL)


def _device(vm: Vm) -> list[str]:
    if vm.mdev in kernel.mdevs():
        return ["-device", f"vfio-pci,sysfsdev={kernel.MDEVS / vm.mdev}"]
    return ["-device", f"vfio-pci,host={vm.reserved}"] if vm.reserved else []


def _clean_up(vm: Vm) -> None:
    vm.pid_file.unlink()
    if vm.mdev in kernel.mdevs():
        kernel.write(kernel.MDEVS / vm.mdev / "remove", "1")
    if vm.reserved:
        kernel.write(kernel.DEVICES / vm.reserved / "nvidia/current_vgpu_type", "0")
    left = [line for line in _reservations() if line[1] != vm.id]
    RESERVATIONS.write_text("".join(f"{' '.join(line)}\n" for line in left))


def _reservations() -> list[list[str]]:
    """Address, VMID and until when, of each."""
    return [line.split() for line in RESERVATIONS.read_text().splitlines()] if RESERVATIONS.exists() else []
