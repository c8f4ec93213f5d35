"""A tour on a bundled machine: its /sys and /proc, unpacked as plain files, and real commands on them.

Plain files take every write and do nothing more, which is enough to show decisions. Cold path.
"""
from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from tempfile import TemporaryDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DATA: Final = os.path.dirname(__file__) + "/data/demo"
INTRODUCTION: Final = """\
The machine of this tour has one A16 board, four GPUs with 16 VFs each, on NUMA node 0 of two. It is a folder of
plain files: this host is neither read nor changed. domain.xml is what OpenNebula wrote for a VM.
"""
# What a line ends with: 3 is a refusal, and 1 is diff's way to say that there are differences.
STEPS: Final = (
    ("kvm-gpu inventory", 0),
    ("kvm-gpu explain --vm one-0 --profile A16-4Q --cards 2", 0),
    ("kvm-gpu inject --vm one-0 --profile A16-4Q --cpu shared --numa required <domain.xml | diff -U1 domain.xml -", 1),
    ("kvm-gpu list", 0),
    ("kvm-gpu capacity | grep -e BOARD -e A16-4Q -e A16-8Q", 0),
    ("kvm-gpu explain --vm one-1 --profile A16-16Q --cards 4", 3),
    ("kvm-gpu release --vm one-0", 0),
    ("kvm-gpu list", 0),
)


def demo() -> int:
    """Run the tour; 0 if every line ended as it should."""
    with TemporaryDirectory(prefix="kvm-gpu-demo-") as folder:
        with open(DATA + "/host.txt", encoding="utf-8") as archive:
            unpack(archive.read(), folder + "/root")
        shutil.copy(DATA + "/domain.xml", folder)
        _write_command(folder)
        path = f"{folder}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        # One shell for all lines: the shell is the caller, and a claim lives no longer than its caller.
        return subprocess.run(["sh", "-c", _script()], cwd=folder, env={**os.environ, "PATH": path}).returncode


def _write_command(folder: str) -> None:
    """The kvm-gpu of the tour: this one, on the unpacked machine."""
    command = shlex.join([sys.executable, "-IS", os.path.abspath(sys.argv[0]), "--root", folder + "/root"])
    with open(folder + "/kvm-gpu", "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {command} "$@"\n')
    os.chmod(folder + "/kvm-gpu", 0o755)


def _script() -> str:
    lines = [f"printf '%s' {shlex.quote(INTRODUCTION)}"]
    for line, code in STEPS:
        lines += [f"printf '\\n$ %s\\n' {shlex.quote(line)}", line, f"[ $? = {code} ] || exit 1"]
    return "\n".join(lines)


def unpack(archive: str, root: str) -> None:
    """Write the tree that an archive describes: a line for each folder, below it its links and files.

        /sys/devices/system/node
         link driver ../../../bus/pci/drivers/nvidia
         444 online "0-1\\n"
    """
    folder = root
    for line in archive.splitlines():
        if line.startswith("/"):
            folder = root + line
            os.makedirs(folder, exist_ok=True)
        elif line.startswith(" "):
            kind, name, content = line[1:].split(" ", 2)
            _unpack_one(kind, f"{folder}/{name}", content)


def _unpack_one(kind: str, path: str, content: str) -> None:
    if kind == "link":
        os.symlink(content, path)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.loads(content))
    os.chmod(path, int(kind, 8))
