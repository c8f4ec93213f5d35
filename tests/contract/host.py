"""A fake machine, mounted, and the command kvm-gpu run on it as its users run it."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakekernel.fusefront import Mounted

HERE = Path(__file__).resolve().parents[2]
COMMAND = ("/usr/bin/python3", "-IS", str(HERE / "bin/kvm-gpu"))
DOMAIN = (HERE / "kvm_gpu/data/demo/domain.xml").read_bytes()      # what OpenNebula wrote for its VM one-0
LIMIT_S = 60


class Answer(NamedTuple):
    """What a run of the command left: its exit code and all it said."""
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Host:
    """`root` is given to every run; `kernel` is what stands behind it."""

    def __init__(self, kernel: Mounted) -> None:
        self.kernel = kernel
        self.root = kernel.root
        (self.root / "var/lib").mkdir()

    # ---- the command ----

    def start(self, *argv: str, stdin: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """The command, running; this process is the holder of what it claims."""
        return subprocess.Popen([*COMMAND, "--root", str(self.root), *argv], stdin=stdin,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *argv: str, stdin: bytes = b"") -> Answer:
        return answer(self.start(*argv, stdin=subprocess.PIPE), stdin)

    def abandoned(self, *argv: str) -> Answer:
        """The same by a caller that ends afterwards: what is claimed has no living holder."""
        shell = ["sh", "-c", '"$@"; exit $?', "sh", *COMMAND, "--root", str(self.root), *argv]
        return answer(subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def json(self, *argv: str) -> Any:
        """The one object of a run that succeeds and says nothing else."""
        done = self.run("--json", *argv)
        assert (done.code, done.err, done.out.count("\n")) == (0, "", 1), done
        found = done.json
        assert found.pop("format") == "kvm-gpu/1"
        return found

    # ---- what there is ----

    def claims(self) -> list[Any]:
        listed: list[Any] = self.json("list")["claims"]
        return listed

    def slots(self) -> list[tuple[str, str]]:
        """(VM, slot) of all claims."""
        return sorted((claim["vm"], slot["slot"]) for claim in self.claims() for slot in claim["slots"])

    def state(self) -> tuple[dict[str, str], dict[str, bytes]]:
        """All of the kernel, and the ledger to the byte: its -shm is memory, and who only reads makes an empty -wal."""
        folder = self.root / "var/lib/kvm-gpu"
        files = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
        return self.kernel.snapshot(), {name: data for name, data in files.items()
                                        if name != "ledger.db-shm" and (name, data) != ("ledger.db-wal", b"")}

    # ---- what others do ----

    def vm_runs(self, vm: str) -> None:
        """The hypervisor starts the VM on what it holds; cards and plain VFs are bound as libvirt does."""
        [claim] = [claim for claim in self.claims() if claim["vm"] == vm]
        managed = [slot["slot"] for slot in claim["slots"] if slot["mechanism"] in ("whole", "vf")]
        others = [slot["uuid"] or slot["slot"] for slot in claim["slots"] if slot["slot"] not in managed]
        functions = tuple(name for slot in managed for name in self._functions(slot))
        self.kernel.vm_start(vm, tuple(self.kernel.group_of(name) for name in others), managed=functions)

    def _functions(self, slot: str) -> list[str]:
        """All functions of a whole card; the VF itself."""
        folder = self.root / "sys/bus/pci/devices"
        if (folder / slot / "physfn").exists():
            return [slot]
        return sorted(path.name for path in folder.iterdir() if path.name[:-2] == slot[:-2])

    def write(self, path: str, text: str) -> None:
        """A file of the administrator's."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def answer(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Answer:
    out, err = process.communicate(stdin, timeout=LIMIT_S)
    return Answer(process.returncode, out.decode(), err.decode())
