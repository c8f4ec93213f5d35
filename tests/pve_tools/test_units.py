"""The units that belong to Proxmox VE."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "packaging/systemd"


def test_systemd_takes_them(tmp_path):
    """It wants the commands and the other units to be there."""
    program = shutil.which("systemd-analyze")
    if program is None:
        assert os.environ.get("CI") != "true", "systemd-analyze is not installed"
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS.glob("*"):
        text = unit.read_text().replace("/usr/bin/kvm-gpu", "/bin/true").replace("/usr/bin/pve-gpu", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.glob("pve-gpu-*"))
    assert [unit.name for unit in units] == ["pve-gpu-mappings.service", "pve-gpu-notes.service"]
    done = subprocess.run([program, "verify", "--man=no", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_are_those_of_pve_gpu(make_lab, pve_gpu):
    make_lab(pve1="rtx6000x4")
    lines = [line for name in ("mappings", "notes")
             for line in (UNITS / f"pve-gpu-{name}.service").read_text().splitlines() if line.startswith("ExecStart=")]
    commands = [line.split()[1:] for line in lines]
    assert [pve_gpu(*command).code for command in commands] == [0, 0]
