"""The command kvm-gpu in the lab, with the paths that it has on every host."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from kvm_gpu.site import Site, open_site

CHECKOUT = Path(__file__).resolve().parents[3]
COMMAND = ("/usr/bin/python3", "-IS", str(CHECKOUT / "bin/kvm-gpu"))
INTERRUPTED = ("/usr/bin/python3", "-IS", str(CHECKOUT / "tests/contract/interrupted.py"))
LIMIT_S = 60
# What a card is, is configuration: NVMe disks, which alone have SR-IOV in QEMU, and QEMU's display.
CONFIG = 'devices = ["1b36:0010:0108", "1234:1111"]\n'
TYPES = {"LAB": {"vendor": "0x1b36", "device": "0x0010", "types": [
    {"id": 901, "name": "LAB-1Q", "framebuffer_mb": 1024, "max_instance": 4},
    {"id": 902, "name": "LAB-2Q", "framebuffer_mb": 2048, "max_instance": 2},
    {"id": 904, "name": "LAB-4Q", "framebuffer_mb": 4096, "max_instance": 1}]}}


class Answer(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def configure() -> None:
    folder = Path("/etc/kvm-gpu")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "vgpu-types.json").write_text(json.dumps(TYPES))


def begin(*argv: str, stdin: bytes = b"", command: tuple[str, ...] = COMMAND) -> subprocess.Popen[bytes]:
    """The command, running; this process answers for what it claims."""
    process = subprocess.Popen([*command, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    return process


def end(process: subprocess.Popen[bytes]) -> Answer:
    process.stdin = None
    out, err = process.communicate(timeout=LIMIT_S)
    return Answer(process.returncode, out, err.decode())


def run(*argv: str, stdin: bytes = b"", command: tuple[str, ...] = COMMAND) -> Answer:
    return end(begin(*argv, stdin=stdin, command=command))


def orphaned(*argv: str, stdin: bytes = b"", command: tuple[str, ...] = COMMAND) -> Answer:
    """The same by a caller that ends afterwards."""
    return run(*argv, stdin=stdin, command=("sh", "-c", '"$@"; exit $?', "sh", *command))


def killed(at: int, *argv: str) -> Answer:
    """The same, killed at its step number `at`."""
    return orphaned(*argv, command=(*INTERRUPTED, "KILL", str(at)))


def reconcile() -> list[str]:
    done = run("--json", "reconcile")
    assert (done.code, done.err) == (0, ""), done
    sentences: list[str] = done.json["done"]
    return sentences


def inject(vm: str, xml: bytes, *wish: str) -> bytes:
    """The finished domain XML of a VM that gets what it wishes."""
    done = run("inject", "--vm", vm, *wish, stdin=xml)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def site() -> Site:
    return open_site()


def claims() -> list[tuple[str, str]]:
    """(VM, state) of each claim in the ledger."""
    return sorted((claim.vm, claim.state) for claim in site().ledger.claims())


def slots(vm: str) -> list[str]:
    ledger = site().ledger
    held = ledger.claim_of(vm)
    return [] if held is None else [device.hold.slot for device in ledger.devices(held.id)]
