"""CPU time, opened files and syncs of a whole VM start, against a bare interpreter. Run by `make bench`.

A start is `kvm-gpu inject` of a real OpenNebula domain for one VF with dedicated CPUs, on a host of 16 cards x 64 VFs
with 100 claims in the ledger. Ratios are taken pair by pair in one run: machines are noisy, and differ.
"""
from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from kvm_gpu import claims
from kvm_gpu.model import GuestNode, Request, Vm, Want
from kvm_gpu.site import open_site
from tests.fakekernel import hosts, materialise

HERE = Path(__file__).resolve().parents[2]
COMMAND = str(HERE / "bin" / "kvm-gpu")
DOMAIN = HERE / "kvm_gpu" / "data" / "demo" / "domain.xml"     # as OpenNebula 7.5 wrote it
BARE = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]
HELD = 100
RUNS = 40
MOST_TIMES_BARE = 3.0
MOST_OPENED = 150


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        times = sorted(pair(folder) for _ in range(RUNS))
        opened, commits = counts(folder)
    ratio = statistics.median(start / bare for start, bare in times)
    start, bare = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
    print(f"host: 16 cards x 64 VFs, {HELD} claims; median of {RUNS} pairs, user + system CPU of the whole process")
    print(f"start {start:.1f} ms, bare interpreter {bare:.1f} ms, ratio {ratio:.2f} (at most {MOST_TIMES_BARE})")
    print(f"files opened {opened} (at most {MOST_OPENED}), durable commits {commits} (exactly 1)")
    return 0 if ratio <= MOST_TIMES_BARE and opened <= MOST_OPENED and commits == 1 else 1


def prepare(folder: str) -> None:
    """The machine as plain files, 100 VMs on it, and the caches warm as on the second start after a boot."""
    materialise(hosts.load("big16x64"), folder)
    for name in ("run", "var/lib"):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
    site = open_site(folder)
    for number in range(HELD):
        guest = (GuestNode(0, (0, 1), 4096),)
        claims.claim(site, Request(Vm(f"held-{number}"), (Want(mechanism="vf"),), guest, cpu="dedicated"))


def pair(folder: str) -> tuple[float, float]:
    """CPU seconds of one start, and of one bare interpreter right after it."""
    start = cpu([COMMAND, *arguments(folder)])
    subprocess.run([COMMAND, "--root", folder, "release", "--vm", "one-0"], check=True, stdout=subprocess.DEVNULL)
    return start, cpu(BARE)


def arguments(folder: str) -> list[str]:
    return ["--root", folder, "inject", "--vm", "one-0", "--mechanism", "vf", "--cpu", "dedicated"]


def cpu(argv: list[str]) -> float:
    with DOMAIN.open("rb") as xml, open(os.devnull, "wb") as null:
        child = subprocess.Popen(argv, stdin=xml, stdout=null)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(argv)}: exit {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def counts(folder: str) -> tuple[int, int]:
    """(files opened, durable commits) of one start, as strace sees them. A commit is a sync of the ledger's log; SQLite
    also syncs the log's folder once in each process, which finds nothing to write there."""
    log = Path(folder, "strace")
    cpu(["strace", "-f", "-y", "-e", "trace=open,openat,fsync,fdatasync,sync_file_range", "-o", str(log),
         COMMAND, *arguments(folder)])
    lines = log.read_text().splitlines()
    opened = [line for line in lines if "open" in line and "ENOENT" not in line and " = " in line]
    return len(opened), sum("sync(" in line and "ledger.db-wal>" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
