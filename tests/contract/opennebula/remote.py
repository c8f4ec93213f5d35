"""A KVM host of OpenNebula: one-vmm run as the wrappers run it, with stand-ins for the stock scripts and for sudo."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.contract.host import Answer, Host, answer

HERE = Path(__file__).resolve().parents[3]
VMM = HERE / "one_gpu_driver/libexec/one-vmm"
HELPER = HERE / "one_gpu_driver/libexec/one-helper"
ACTIONS = HERE / "tests/data/opennebula-actions"
DOMAINS = HERE / "tests/data/opennebula"

# Writes down how it was called, then does what the file beside its records says.
STOCK = """\
#!/bin/sh
printf '%s\\n' "$0" "$@" > {records}/argv
cat > {records}/stdin
echo $$ > {records}/pid
. {records}/then
"""
SUDO = f"""\
#!/bin/sh
[ "$1 $2" = "-n /usr/libexec/kvm-gpu/one-helper" ] || exit 1
shift 2
exec {HELPER} "$@"
"""


class Capture(NamedTuple):
    """What one_vmm_exec called, and with what on stdin; of a deploy also vm.xml as it lies beside the deployment
    file."""
    action: str
    argv: list[str]
    stdin: bytes
    vm_xml: bytes = b""

    def asking(self, template: str) -> Capture:
        """The same of a VM whose owner wrote this into its template."""
        begin, end = b"<USER_TEMPLATE>", b"<USER_TEMPLATE/>"
        element = b"<USER_TEMPLATE>%s</USER_TEMPLATE>" % template.encode()
        vm_xml = self.vm_xml.replace(end, element) if end in self.vm_xml else (
            self.vm_xml.partition(begin)[0] + element + self.vm_xml.partition(b"</USER_TEMPLATE>")[2])
        assert element in vm_xml
        return self._replace(vm_xml=vm_xml)

    def at(self, address: str) -> Capture:
        """The same where oned chose the device at this address."""
        domain, bus, device, function = re.split("[:.]", address)
        source = f" domain='0x{domain}' bus='0x{bus}' slot='0x{device}' function='0x{function}'/>"
        stdin = re.sub(rb"(<source>\s*<address) +domain=.*/>", rb"\1" + source.encode(), self.stdin)
        vm_xml = self.vm_xml
        for name, value in {"DOMAIN": domain, "BUS": bus, "SLOT": device, "FUNCTION": function,
                            "ADDRESS": address.replace(".", ":"), "SHORT_ADDRESS": address[5:]}.items():
            element = f"<{name}><![CDATA[{value}]]></{name}>".encode()
            vm_xml, found = re.subn(f"<{name}>.*?</{name}>".encode(), element, vm_xml)
            assert found == 1
        return self._replace(stdin=stdin, vm_xml=vm_xml)


def captured(name: str) -> Capture:
    script, *argv = (ACTIONS / name / "argv").read_text().splitlines()
    if (ACTIONS / name / "stdin").exists():
        stdin = ACTIONS / name / "stdin"
        vm_xml = ACTIONS / name / "vm.xml"
    else:
        stdin = DOMAINS / f"{name.replace('-deploy', '')}.xml"
        vm_xml = stdin.with_suffix(".vm.xml")
    return Capture(script.rpartition("/")[2], argv, stdin.read_bytes(), vm_xml.read_bytes() if vm_xml.exists() else b"")


class Remote:
    """`host` is the machine; `records` what the stock script saw of its last call."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.records = folder / "records"
        self.stock = folder / "vmm/kvm"
        self.bin = folder / "bin"
        self.datastores = folder / "datastores"
        for path in (self.records, self.stock, self.bin):
            path.mkdir(parents=True)
        self._script(self.bin / "sudo", SUDO)
        self.environ = {**os.environ, "KVM_GPU_ROOT": str(host.root), "PATH": f"{self.bin}:{os.environ['PATH']}"}
        self.stock_does("exit 0")

    def stock_does(self, shell: str) -> None:
        (self.records / "then").write_text(shell + "\n")

    def replace_sudo(self, shell: str) -> None:
        self._script(self.bin / "sudo", f"#!/bin/sh\n{shell}\n")

    def folder(self, capture: Capture) -> Path:
        """Of the VM of a deploy, where vm.xml and the deployment file are."""
        return Path(self._argv(capture)[0]).parent

    def start(self, capture: Capture) -> subprocess.Popen[bytes]:
        for name in ("argv", "stdin", "pid"):
            (self.records / name).unlink(missing_ok=True)
        script = self.stock / capture.action
        self._script(script, STOCK.format(records=shlex.quote(str(self.records))))
        argv = self._argv(capture)
        if capture.action == "deploy":
            self.folder(capture).mkdir(parents=True, exist_ok=True)
            (self.folder(capture) / "vm.xml").write_bytes(capture.vm_xml)
        with (self.records / "given").open("w+b") as stdin:
            stdin.write(capture.stdin)
            stdin.seek(0)
            return subprocess.Popen([VMM, capture.action, script, *argv], stdin=stdin, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, env=self.environ)

    def run(self, capture: Capture) -> Answer:
        return answer(self.start(capture))

    def stock_saw(self, capture: Capture) -> bytes:
        """What was on the stock script's stdin; its arguments were those of the capture."""
        assert (self.records / "argv").read_text().splitlines() == [
            str(self.stock / capture.action), *self._argv(capture)]
        return (self.records / "stdin").read_bytes()

    def stock_ran(self) -> bool:
        return (self.records / "argv").exists()

    def vm_xml(self, capture: Capture) -> bytes:
        return (self.folder(capture) / "vm.xml").read_bytes()

    def mine(self) -> list[str]:
        """VMs that oneadmin's side takes for ours."""
        return sorted(path.name for path in (self.host.root / "run/kvm-gpu-one").glob("*"))

    def _argv(self, capture: Capture) -> list[str]:
        return [re.sub("^/var/lib/one/+datastores", str(self.datastores), word) for word in capture.argv]

    def _script(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)


def states(host: Host) -> list[tuple[str, str, list[str]]]:
    """(VM, state, slots) of all claims."""
    return [(claim["vm"], claim["state"], [slot["slot"] for slot in claim["slots"]]) for claim in host.claims()]
