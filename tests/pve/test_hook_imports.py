"""What the hook may import: next to nothing for a VM without devices, nothing heavy before QEMU runs."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"re", "json", "argparse", "tomllib", "subprocess", "enum", "typing", "functools", "dataclasses", "pathlib",
         "logging", "inspect", "contextlib", "string", "rich", "proxmoxer", "jinja2"}


def imported_by(code: str) -> set[str]:
    script = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); {code};"
              "print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(("phase", "modules"), [
    ("pre-start", {"files", "lease", "qmconf", "scope"}), ("post-start", {"files", "lease"}), ("pre-stop", set()),
    ("post-stop", {"files", "lease"}),
])
def test_every_vm_of_the_node_pays_for_this(phase: str, modules: set[str]) -> None:
    found = imported_by(f"from pve_gpu_hook import hook; hook.run(['999999999', '{phase}'])")
    core = {"kvm_gpu", "kvm_gpu.errors", "kvm_gpu.cpulist"} if modules else set()
    assert found - {"__future__", "operator", "_operator", "kvm_gpu.light"} == {
        "pve_gpu_hook", "pve_gpu_hook.hook", *(f"pve_gpu_hook.{name}" for name in modules), *core}


@pytest.mark.parametrize("module", ["hook", "start", "running", "wanted", "reservation", "lease", "pools"])
def test_a_start_imports_nothing_heavy(module: str) -> None:
    late = {"json"} if module == "running" else set()
    brought = {"re", "enum", "functools"} if late else {"functools"}        # by json; by _sqlite3
    assert imported_by(f"import pve_gpu_hook.{module}") & HEAVY <= late | brought
