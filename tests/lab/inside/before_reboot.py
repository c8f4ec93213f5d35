"""The lab's first boot: leaves claims in the ledger and what is not ours in the kernel, and pulls the plug."""
from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.inside import kernel, ours

LEFT = Path("/var/lib/kvm-gpu/left-by-the-first-boot.json")


def main() -> None:
    ours.configure()
    for card in kernel.CARDS:
        kernel.make_vfs(card, 2)
    claims = {
        "keeps": ("--mechanism", "mdev", "--profile", "LAB-2Q", "--keep"),
        "mdev": ("--mechanism", "mdev", "--profile", "LAB-2Q"),
        "vgpu": ("--mechanism", "nvidia_vfio", "--profile", "LAB-1Q"),
        "card": ("--mechanism", "whole", "--model", "lab"),
    }
    left = {}
    for vm, wish in claims.items():
        done = ours.run("--json", "claim", "--vm", vm, *wish)
        assert done.code == 0, done
        left[vm] = done.json["slots"][0]
    ours.run("release", "--vm", "keeps")
    assert ours.claims() == [("card", "starting"), ("keeps", "kept"), ("mdev", "starting"), ("vgpu", "starting")]
    LEFT.write_text(json.dumps(left))
    subprocess.run(["sync", "-f", LEFT], check=True)
    sys.stdout.flush()
    kernel.write("/proc/sysrq-trigger", "b")
    signal.pause()


if __name__ == "__main__":
    main()
