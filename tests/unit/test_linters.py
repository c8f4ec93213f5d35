"""ruff, mypy and shellcheck, run as tests: what they find breaks the build."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = (".ci", "bin", "docs", "kvm_gpu", "one_gpu_driver", "packaging", "pve_gpu_hook", "tests", "Makefile", "setup.py")
SCRIPTS = ("bin/kvm-gpu", "bin/one-gpu", "bin/pve-gpu", "one_gpu_driver/libexec/one-helper",
           "one_gpu_driver/libexec/one-vmm", "pve_gpu_hook/libexec/pve-gpu-hook")


def shell_scripts():
    files = (file for name in OURS for file in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]))
    return [file for file in files if file.is_file() and file.read_bytes()[:9] == b"#!/bin/sh"]


def passes(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_ruff():
    passes(sys.executable, "-m", "ruff", "check", "--no-cache", *SCRIPTS, ".")


def test_mypy():
    passes(sys.executable, "-m", "mypy")


def test_shellcheck():
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed"
        pytest.skip("shellcheck is not installed")
    scripts = shell_scripts()
    assert ROOT / ".ci/run" in scripts
    passes("shellcheck", *scripts)
