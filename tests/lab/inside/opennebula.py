"""The lab as a KVM host of OpenNebula: oneadmin, who may run our helper as root, and the driver folder beside the stock
one, with stand-ins for two of its scripts.

The stand-ins do to libvirt what the stock scripts do. Source: OpenNebula 7.0, src/vmm_mad/remotes/kvm/deploy, cancel.
"""
from __future__ import annotations

import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from one_gpu_driver import shims
from tests.lab.inside import guests, ours

DATA = ours.CHECKOUT / "tests/data/opennebula"
MARKS = Path("/run/kvm-gpu-one")
ONEADMIN = "oneadmin"
HOME = Path("/tmp/one")
STOCK, DRIVER = HOME / "vmm/kvm", HOME / "vmm/kvm-gpu"
UUID = "53064096-270b-46a9-aaf7-47d82d0e{:04}"
STAND_INS = {
    "deploy": """\
mkdir -p "$(dirname "$1")"
cat >"$1"
virsh --connect qemu:///system create $OPTIONS "$1" >/dev/null || {
    echo "Could not create domain from $1" >&2
    exit 255
}
echo "$(virsh --connect qemu:///system domuuid "one-$3")"
""",
    "cancel": """\
virsh --connect qemu:///system --readonly dominfo "$1" >/dev/null 2>&1 || exit 0
virsh --connect qemu:///system destroy "$1"
! virsh --connect qemu:///system --readonly dominfo "$1" >/dev/null 2>&1 || {
    echo "Could not destroy $1" >&2
    exit 1
}
"""}
HUGE_PAGES = """
	<memoryBacking>
		<hugepages>
			<page size='2048'/>
		</hugepages>
	</memoryBacking>"""


class Vm(NamedTuple):
    """`gpu` is the GPU vector of its template."""
    number: int
    gpu: dict[str, str]
    mib: int = 64
    turns_off: bool = False

    @property
    def name(self) -> str:
        return f"one-{self.number}"

    @property
    def uuid(self) -> str:
        return UUID.format(self.number)

    @property
    def display_port(self) -> int:
        return 5900 + self.number

    @property
    def deployment_file(self) -> Path:
        return HOME / f"datastores/0/{self.number}/deployment.0"

    def domain(self) -> bytes:
        """As oned wrote it for a VM of two vCPUs, but without disks, in huge pages, and with the guest's firmware."""
        text = re.sub(r"\t\t<disk .*?</disk>\n", "", (DATA / "01-plain.xml").read_text(), flags=re.DOTALL)
        loader = f"<loader readonly='yes' type='rom'>{guests.rom(self.turns_off)}</loader>"
        changes = {"<name>one-0</name>": f"<name>{self.name}</name>", UUID.format("71c2"): self.uuid,
                   "<memory>131072</memory>": f"<memory>{self.mib << 10}</memory>{HUGE_PAGES}",
                   "</type>\n": f"</type>\n\t\t{loader}\n", "port='5900'": f"port='{self.display_port}'"}
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text.encode()

    def vm_xml(self) -> str:
        fields = "".join(f"<{name}><![CDATA[{value}]]></{name}>" for name, value in self.gpu.items())
        text = (DATA / "01-plain.vm.xml").read_text().replace("<ID>0</ID>", f"<ID>{self.number}</ID>", 1)
        before, _, after = text.partition("<USER_TEMPLATE>")
        return f"{before}<USER_TEMPLATE><GPU>{fields}</GPU></USER_TEMPLATE>" + after.partition("</USER_TEMPLATE>")[2]


# ---- the host ----------------------------------------------------------------------------------------

def install() -> None:
    """What `onehost sync` brings after `one-gpu install`, and what OpenNebula's own package does. sudo wants to resolve
    the host's name."""
    Path("/etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 lab\n")
    _make_oneadmin()
    _write_scripts(STOCK, {name: f"#!/bin/bash\n{text}" for name, text in STAND_INS.items()})
    _write_scripts(DRIVER, shims.scripts(STOCK))
    shutil.chown(HOME, ONEADMIN)


def _make_oneadmin() -> None:
    try:
        pwd.getpwnam(ONEADMIN)
    except KeyError:
        subprocess.run(["useradd", "--system", "--user-group", "--no-create-home", ONEADMIN], check=True)


def _write_scripts(folder: Path, scripts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


# ---- what oned does to it ----------------------------------------------------------------------------

def begin_deploy(vm: Vm, options: str = "") -> subprocess.Popen[bytes]:
    """The driver's deploy, running; `options` are those of the stand-in's `virsh create`."""
    folder = vm.deployment_file.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vm.xml").write_text(vm.vm_xml())
    for path in (folder, folder / "vm.xml"):
        shutil.chown(path, ONEADMIN)
    return _begin("deploy", [str(vm.deployment_file), "lab", str(vm.number), "lab"], vm.domain(), options)


def deploy(vm: Vm, options: str = "") -> ours.Answer:
    return ours.end(begin_deploy(vm, options))


def cancel(vm: Vm) -> ours.Answer:
    return ours.end(_begin("cancel", [vm.uuid, "lab", str(vm.number), "lab"], b"<VMM_DRIVER_ACTION_DATA/>"))


def is_marked(vm: Vm) -> bool:
    """Whether oneadmin's side takes it for one with a device of ours."""
    return (MARKS / vm.name).exists()


def _begin(action: str, argv: list[str], stdin: bytes, options: str = "") -> subprocess.Popen[bytes]:
    """oneadmin runs it, as over ssh."""
    process = subprocess.Popen(
        [str(DRIVER / action), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
        user=ONEADMIN, group=ONEADMIN, extra_groups=["libvirt"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OPTIONS": options})
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    return process
