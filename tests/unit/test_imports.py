"""Who may import whom, and what a VM start must never import. Imports for types alone do not count."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kvm_gpu.demo import unpack

ROOT = Path(__file__).parents[2]

# Group: its modules, and the groups below it that they may import; within a group all may. From low to high.
GROUPS = {
    "values": ("light errors model cpulist", ""),
    "kernel": ("sysfs pci topology users inuse holder private", "values"),
    "settings": ("request strict tomllines config configfile requestfile profiles", "values kernel"),
    "decision": ("room closeness nodes outlook plan refusal capacity", "values"),
    "domain": ("domain domxml domvalue domrecord guestpci hostdev tune", "values"),
    "ledger": ("ledger ledgerfile ledgerrows", "values kernel"),
    "mechanisms": ("mechanisms mechanisms.whole mechanisms.vf mechanisms.mdev mechanisms.nvidia_vfio mechanisms.vgpu"
                   " partition", "values kernel settings"),
    "host": ("inventory foreign cache apply", "values kernel settings decision mechanisms"),
    "site": ("site", "values kernel settings ledger host"),
    "steps": ("claims act look moved unknown reconcile",
              "values kernel settings decision domain ledger mechanisms host site"),
    "command": ("options asked cli render tables jsonout demo", "values kernel settings ledger site steps"),
}

HEAVY = {"re", "json", "argparse", "tomllib", "subprocess", "enum", "typing", "functools", "dataclasses", "pathlib",
         "logging", "inspect", "contextlib", "string", "rich"}
COLD = {"tomllines", "configfile", "requestfile", "profiles", "strict", "unknown", "demo", "jsonout"}


def group_of(module):
    return next((group for group, (modules, _) in GROUPS.items() if module in modules.split()), None)


def modules():
    files = (file.relative_to(ROOT / "kvm_gpu").with_suffix("") for file in (ROOT / "kvm_gpu").rglob("*.py"))
    names = {".".join(file.parts).removesuffix(".__init__").removesuffix("__init__") for file in files}
    return names - {""}


def source(module):
    file = ROOT / "kvm_gpu" / module.replace(".", "/")
    return (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()


def is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node):
    """Every statement below `node`, without what only a type checker runs."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from map_all(statements, child.orelse) if is_for_types(child) else statements(child)


def map_all(function, nodes):
    for node in nodes:
        yield node
        yield from function(node)


def imports(module):
    """Full names of what a module imports at run time, at its top or later."""
    for node in statements(ast.parse(source(module))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name.removeprefix("kvm_gpu.") in modules() else node.module for name in inner)


def imported_by(code):
    """What a fresh interpreter has imported after `code`, above what SQLite brings along, which every start needs."""
    script = (f"import sys, sqlite3; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); {code};"
              "print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_module_has_its_group():
    assert modules() == {module for names, _ in GROUPS.values() for module in names.split()}


@pytest.mark.parametrize("group", GROUPS)
def test_groups_import_downwards(group):
    names, below = GROUPS[group]
    lower = list(GROUPS)[:list(GROUPS).index(group)]
    assert set(below.split()) <= set(lower)
    allowed = {group, *below.split()}
    wrong = [f"{module} imports {name}" for module in names.split() for name in imports(module)
             if name.startswith("kvm_gpu.") and group_of(name.removeprefix("kvm_gpu.")) not in allowed]
    assert wrong == []


def test_nothing_but_the_standard_library_and_rich_for_tables():
    foreign = {(module, name.partition(".")[0]) for module in modules() for name in imports(module)
               if name.partition(".")[0] not in {"kvm_gpu", *sys.stdlib_module_names}}
    assert foreign == {("tables", "rich")}


@pytest.mark.parametrize("module", sorted(modules() - COLD))
def test_hot_modules_import_nothing_heavy(module):
    assert imported_by(f"import kvm_gpu.{module}") & HEAVY == set()


def test_a_start_imports_nothing_heavy(tmp_path):
    unpack((ROOT / "kvm_gpu/data/demo/host.txt").read_text(), str(tmp_path))
    domain = (ROOT / "kvm_gpu/data/demo/domain.xml").read_text()
    for vm in ("first", "second"):      # the first one reads the host, the second finds it cached
        command = [sys.executable, "-IS", "-X", "importtime", ROOT / "bin/kvm-gpu", "--root", tmp_path, "inject",
                   "--vm", vm, "--profile", "A16-4Q", "--cpu", "shared", "--numa", "required"]
        done = subprocess.run(command, input=domain, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kvm_gpu.domain" in imported
    assert imported & HEAVY == {"functools"}    # _sqlite3 imports it


def test_a_regular_command_line_needs_no_argparse():
    code = "from kvm_gpu.options import parse; parse(['inject', '--vm', 'one-42', '--profile=A16-4Q', '--cards', '2'])"
    assert imported_by(code) & HEAVY == set()
