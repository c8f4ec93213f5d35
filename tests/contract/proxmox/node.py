"""A node of Proxmox VE: its files, the hookscript run as its task worker runs it, and what the worker does with PCI
devices between the hook's phases, as PVE::QemuServer and PVE::QemuServer::PCI do it.
"""
from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.contract.host import Answer, Host, answer

HERE = Path(__file__).resolve().parents[3]
HOOK = HERE / "pve_gpu_hook/libexec/pve-gpu-hook"
NAME = "pve1"
DEVICES = "sys/bus/pci/devices"
BOOK = "run/qemu-server/pci-id-reservations"
SYSTEMCTL = """\
#!/bin/sh
echo "$@" >> {records}
exit {code}
"""


class Given(NamedTuple):
    """What one hostpciN got: functions, or the mdev."""
    functions: tuple[str, ...]
    mdev: str | None = None


class StartFailed(Exception):
    """As Proxmox VE says it."""


class Node:
    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.kernel = host.kernel
        self.root = host.root
        self.reloads = folder / "systemctl"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for path in (f"etc/pve/nodes/{NAME}/qemu-server", "etc/pve/nodes/pve2/qemu-server", "etc/pve/mapping",
                     "run/qemu-server", "run/systemd/system"):
            (self.root / path).mkdir(parents=True)
        (self.root / "etc/pve/local").symlink_to(f"nodes/{NAME}")
        (self.root / "etc/pve/qemu-server").symlink_to(f"nodes/{NAME}/qemu-server")
        self.systemctl_ends(0)

    # ---- files ----

    def vm(self, vm: int, text: str, node: str = NAME) -> None:
        """A VM with this configuration."""
        (self.root / f"etc/pve/nodes/{node}/qemu-server/{vm}.conf").write_text(text)

    def mapping(self, name: str, *paths: str, others: str = "") -> None:
        """A section as PVE::SectionConfig writes it, with what PVE::Mapping::PCI compares with sysfs.
        `others`: lines of other nodes."""
        maps = "".join(f"\tmap {self._identity(path)},node={NAME},path={path}\n" for path in paths)
        mdev = "\tmdev 1\n" if any(self._is_mediated(path) for path in paths) else ""
        with (self.root / "etc/pve/mapping/pci.cfg").open("a") as file:
            file.write(f"{name}\n{others}\tdescription GPUs: for all\n{maps}{mdev}\n")

    def _identity(self, path: str) -> str:
        """Of the first device; a mapping of none is one of a device that has gone."""
        first = path.partition(";")[0]
        folder = self.root / DEVICES / (first if "." in first else first + ".0")
        if not folder.exists():
            return "id=8086:1521,iommugroup=99"
        vendor, device, sub_vendor, sub_device = ((folder / name).read_text().strip().removeprefix("0x") for name in (
            "vendor", "device", "subsystem_vendor", "subsystem_device"))
        group = (folder / "iommu_group").resolve().name
        return f"id={vendor}:{device},iommugroup={group},subsystem-id={sub_vendor}:{sub_device}"

    def _is_mediated(self, path: str) -> bool:
        folder = self.root / DEVICES / path
        return (folder / "mdev_supported_types").exists() or (folder / "nvidia").exists()

    def reserve(self, *lines: str) -> None:
        (self.root / BOOK).write_text("".join(f"{line}\n" for line in lines))

    def book(self) -> list[str]:
        """Lines of the reservations, seconds and pids left out."""
        text = (self.root / BOOK).read_text() if (self.root / BOOK).exists() else ""
        return [re.sub(r"(time|pid):\d+$", r"\1", line) for line in text.splitlines()]

    def dropin(self, vm: int) -> dict[str, str]:
        """Settings of the VM's next scope."""
        path = self.root / f"run/systemd/system/{vm}.scope.d/50-kvm-gpu.conf"
        lines = path.read_text().splitlines() if path.exists() else []
        return {key: value for key, _, value in (line.partition("=") for line in lines if "=" in line)}

    def systemctl_ends(self, code: int) -> None:
        script = self.bin / "systemctl"
        script.write_text(SYSTEMCTL.format(records=self.reloads, code=code))
        script.chmod(0o755)

    def reloaded(self) -> list[str]:
        return self.reloads.read_text().splitlines() if self.reloads.exists() else []

    # ---- the hook ----

    def begin(self, vm: int, phase: str, source: str = "", worker: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """The hook, running; this process is the task worker, or `worker` is."""
        for file in (self.root / "run/libvirt/qemu").glob("*"):
            file.unlink()       # there is no libvirt on this node
        environ = {"HOME": "/root", "LANG": "C.UTF-8", "LC_ALL": "C", "LVM_SUPPRESS_FD_WARNINGS": "1",
                   "PATH": f"{self.bin}:/sbin:/bin:/usr/sbin:/usr/bin", "PVE_MIGRATED_FROM": source,
                   "KVM_GPU_ROOT": str(self.root)}
        return subprocess.Popen([*worker, str(HOOK), str(vm), phase], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environ, cwd="/")

    def hook(self, vm: int, phase: str, source: str = "") -> Answer:
        return answer(self.begin(vm, phase, source))

    def hook_of_a_worker_that_dies(self, vm: int, phase: str) -> Answer:
        return answer(self.begin(vm, phase, worker=("sh", "-c", '"$@"; exit $?', "sh")))

    # ---- the worker ----

    def start(self, vm: int) -> tuple[list[Given], str]:
        """qm start: what QEMU got, and the task log."""
        before = self.hook(vm, "pre-start")
        if before.code:
            raise StartFailed(f"hookscript error for {vm} on pre-start: {before.err}")
        given = self.choose(vm)
        self.run(vm, given)
        after = self.hook(vm, "post-start")
        return given, before.out + before.err + after.out + after.err

    def choose(self, vm: int) -> list[Given]:
        """choose_hostpci_devices and prepare_pci_device. Raises StartFailed."""
        used: set[str] = set()
        given = [self._choose(vm, number, value, used) for number, value in self._hostpci(vm)]
        self._note(vm, f"time:{int(time.time()) + 125}", [name for one in given if not one.mdev
                                                          for name in one.functions])
        return given

    def run(self, vm: int, given: list[Given]) -> int:
        """QEMU runs on these devices; its pid."""
        vendors = [one.functions[0] for one in given if not one.mdev and self._is_vendors(one.functions[0])]
        groups = [self.kernel.group_of(name) for name in (*vendors, *(one.mdev for one in given if one.mdev))]
        bound = {name for one in given if not one.mdev for name in one.functions if name not in vendors}
        self.kernel.vm_start(str(vm), tuple(groups), managed=tuple(sorted(self._group_mates(bound))))
        pid = int((self.root / f"run/libvirt/qemu/{vm}.pid").read_text())
        self.kernel.place(f"/proc/{pid}/cmdline", f"/usr/bin/kvm\0-id\0{vm}\0-pidfile\0/var/run/qemu-server/{vm}.pid\0")
        (self.root / f"run/qemu-server/{vm}.pid").write_text(f"{pid}\n")
        self._note(vm, f"pid:{pid}", [name for one in given if not one.mdev for name in one.functions])
        return pid

    def stop(self, vm: int) -> str:
        """qm stop, and qm cleanup where QEMU ended by itself; what the hook said."""
        before = self.hook(vm, "pre-stop")
        self.kernel.vm_stop(str(vm))
        self.cleanup(vm)
        after = self.hook(vm, "post-stop")
        return before.out + before.err + after.out + after.err

    def cleanup(self, vm: int) -> None:
        """vm_stop_cleanup, cleanup_pci_devices: also what a failed start does."""
        (self.root / f"run/qemu-server/{vm}.pid").unlink(missing_ok=True)
        for name in [name for name, line in self._lines().items() if line[0] == str(vm)]:
            if self._is_vendors(name):
                self.kernel.write(f"/{DEVICES}/{name}/nvidia/current_vgpu_type", "0")
        for number, _ in self._hostpci(vm):
            mdev = self.root / f"sys/bus/mdev/devices/{_uuid(vm, number)}"
            if mdev.exists():
                (mdev / "remove").write_text("1")
        self._note(vm, "", [])

    # ---- parts ----

    def _hostpci(self, vm: int) -> Iterator[tuple[int, dict[str, str]]]:
        text = (self.root / f"etc/pve/qemu-server/{vm}.conf").read_text().partition("\n[")[0]
        for number, value in re.findall(r"(?m)^hostpci(\d+): (.*)$", text):
            parts = [part if "=" in part else f"host={part}" for part in value.split(",")]
            yield int(number), dict(part.split("=", 1) for part in parts)

    def _alternatives(self, value: dict[str, str]) -> list[tuple[str, ...]]:
        paths = [value["host"]] if "host" in value else self._mapped(value["mapping"])
        return [tuple(name for path in paths for name in self._functions(path)) for paths in
                (path.split(";") for path in paths)]

    def _mapped(self, name: str) -> list[str]:
        section = (self.root / "etc/pve/mapping/pci.cfg").read_text().partition(f"{name}\n")[2].partition("\n\n")[0]
        return [path for node, path in re.findall(r"map .*node=(.*?),path=(.*)", section) if node == NAME]

    def _functions(self, path: str) -> list[str]:
        name = path if path.startswith("0000:") else "0000:" + path
        found = sorted(entry.name for entry in (self.root / DEVICES).iterdir()
                       if entry.name == name or ("." not in name and entry.name[:-2] == name))
        if not found:
            raise StartFailed(f"no PCI device found for '{path}'")
        return found

    def _choose(self, vm: int, number: int, value: dict[str, str], used: set[str]) -> Given:
        alternatives = self._alternatives(value)
        mdev = value.get("mdev")
        vendor = mdev and self._is_vendors(alternatives[0][0])
        if mdev and not vendor:
            return self._mediated(vm, number, mdev, [one[0] for one in alternatives])
        for functions in alternatives:
            free = all(self._is_free(vm, name) for name in functions)
            if (free or len(alternatives) == 1) and used.isdisjoint(functions):
                if vendor and mdev and not self._set_type(functions[0], mdev.rpartition("-")[2]):
                    continue
                used.update(functions)
                self._note(vm, f"time:{int(time.time()) + 15}", list(functions))
                return Given(functions)
        raise StartFailed(f"could not find a free device for 'hostpci{number}'")

    def _mediated(self, vm: int, number: int, kind: str, parents: list[str]) -> Given:
        uuid = _uuid(vm, number)
        for parent in parents:
            folder = self.root / DEVICES / parent
            types = folder / "mdev_supported_types" / kind
            if not types.exists():
                continue
            if not (folder / uuid).exists():
                try:
                    if int((types / "available_instances").read_text()) < 1:
                        continue
                    (types / "create").write_text(uuid)
                except OSError:
                    continue
            return Given((parent,), uuid)
        raise StartFailed("could not create mediated device")

    def _set_type(self, name: str, number: str) -> bool:
        path = self.root / DEVICES / name / "nvidia/current_vgpu_type"
        if path.read_text().strip() == number:
            return True
        try:
            if path.read_text().strip() != "0":
                path.write_text("0")
            path.write_text(number)
        except OSError:
            return False
        return True

    def _group_mates(self, names: set[str]) -> set[str]:
        """pci_dev_group_bind_to_vfio takes all of a group."""
        groups = {(self.root / DEVICES / name / "iommu_group").resolve() for name in names}
        return {path.name for group in groups for path in (group / "devices").iterdir()}

    def _is_vendors(self, name: str) -> bool:
        return (self.root / DEVICES / name / "nvidia/creatable_vgpu_types").exists()

    def _is_free(self, vm: int, name: str) -> bool:
        other, until = self._lines().get(name, (str(vm), ""))
        kind, _, number = until.partition(":")
        if other == str(vm):
            return True
        if kind == "time":
            return int(number) <= time.time()
        pid = self.root / f"run/qemu-server/{other}.pid"
        return not pid.exists() or pid.read_text().strip() != number

    def _lines(self) -> dict[str, tuple[str, str]]:
        text = (self.root / BOOK).read_text() if (self.root / BOOK).exists() else ""
        return {name: (vm, until) for name, vm, until in (line.split() for line in text.splitlines())}

    def _note(self, vm: int, until: str, names: list[str]) -> None:
        """Reserve, or for no names take back what the VM had."""
        lines = {name: line for name, line in self._lines().items() if names or line[0] != str(vm)}
        lines.update((name, (str(vm), until)) for name in names)
        self.reserve(*(f"{name} {owner} {end}" for name, (owner, end) in sorted(lines.items())))


def states(node: Node) -> list[tuple[str, str, list[str]]]:
    """(VM, state, slots) of all claims."""
    return [(claim["vm"], claim["state"], [slot["slot"] for slot in claim["slots"]]) for claim in node.host.claims()]


def _uuid(vm: int, number: int) -> str:
    return f"{number:08}-0000-0000-0000-{vm:012}"
