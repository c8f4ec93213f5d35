"""What a VM's start may import: on oneadmin's side next to nothing, on root's side what the core's start does."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"re", "json", "argparse", "tomllib", "subprocess", "enum", "typing", "functools", "dataclasses", "pathlib",
         "logging", "inspect", "contextlib", "string", "rich", "pyone", "jinja2"}


def imported_by(code: str) -> set[str]:
    script = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); {code};"
              "print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_vm_of_the_host_pays_for_this() -> None:
    assert imported_by("import one_gpu_driver.vmm") == {
        "__future__", "_operator", "kvm_gpu", "kvm_gpu.light", "one_gpu_driver", "one_gpu_driver.frame",
        "one_gpu_driver.processes", "one_gpu_driver.vmm", "operator"}


@pytest.mark.parametrize("module", ["helper", "start", "held", "wanted", "vmxml", "pcislots"])
def test_a_start_imports_nothing_heavy(module: str) -> None:
    assert imported_by(f"import one_gpu_driver.{module}") & HEAVY <= {"functools"}      # _sqlite3 imports it
