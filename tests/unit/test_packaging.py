"""Files that other programs read, checked by these programs."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def passes(program: str, *arguments: str | Path) -> None:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", f"{program} is not installed"
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([found, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sudoers() -> None:
    passes("visudo", "-c", "-s", "-f", PACKAGING / "sudoers/kvm-gpu-opennebula")


def test_sudoers_has_one_entry() -> None:
    lines = (PACKAGING / "sudoers/kvm-gpu-opennebula").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        "oneadmin ALL=(root) NOPASSWD: /usr/libexec/kvm-gpu/one-helper"]


def test_units(tmp_path: Path) -> None:
    """systemd wants the command to be there."""
    for unit in (PACKAGING / "systemd").glob("*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/kvm-gpu", "/bin/true"))
    units = sorted(tmp_path.glob("kvm-gpu-reconcile.*"))
    assert [unit.name for unit in units] == ["kvm-gpu-reconcile.service", "kvm-gpu-reconcile.timer"]
    passes("systemd-analyze", "verify", "--man=no", *units)


def test_what_is_installed_works_where_it_lies(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "install", f"DESTDIR={tmp_path}"], cwd=ROOT, check=True, capture_output=True)
    for name in ("var/lib", "run"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    listed = subprocess.run([tmp_path / "usr/bin/kvm-gpu", "--root", tmp_path, "list"], capture_output=True, text=True)
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "No claims.\n", "")
    probed = subprocess.run([tmp_path / "usr/libexec/kvm-gpu/one-helper", "probe"], capture_output=True, text=True,
                            env={"KVM_GPU_ROOT": str(tmp_path)})
    assert (probed.returncode, probed.stdout.splitlines()[0], probed.stderr) == (0, 'GPU_BOARDS=""', "")
    assert (tmp_path / "etc/sudoers.d/kvm-gpu-opennebula").stat().st_mode & 0o777 == 0o440
    assert list(tmp_path.glob("usr/lib/python3/dist-packages/kvm_gpu/__pycache__/claims.*.pyc"))
