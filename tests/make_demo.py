"""Writes the machine that `kvm-gpu demo` unpacks: python -m tests.make_demo"""
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fakekernel.hosts import load
from tests.fakekernel.materialise import materialise

ARCHIVE = Path(__file__).parents[1] / "kvm_gpu/data/demo/host.txt"
HEAD = "# Made by tests/make_demo.py from tests/hosts/a16-vfio.toml; the form is told in kvm_gpu/demo.py.\n"
# Of no use to a tour: what kvm_gpu never reads, and the binary config space.
LEFT_OUT = {"bind", "config", "current_link_speed", "current_link_width", "driver_override", "local_cpulist",
            "reset_method", "sriov_drivers_autoprobe", "sriov_offset", "sriov_stride", "sriov_vf_device", "uevent",
            "unbind", "vgpu_params"}


def pack(root: Path) -> str:
    """The tree below `root`, as kvm_gpu.demo.unpack reads it."""
    parts = [HEAD]
    for folder, folders, files in os.walk(root):
        folders.sort()
        entries = [entry for name in sorted(folders + files) if (entry := pack_one(Path(folder, name)))]
        if entries or not folders:
            parts += [f"/{Path(folder).relative_to(root)}\n", *entries]
    return "".join(parts)


def pack_one(path: Path) -> str:
    if path.is_symlink():
        return f" link {path.name} {path.readlink()}\n"
    if path.is_dir() or path.name in LEFT_OUT:
        return ""
    return f" {path.stat().st_mode & 0o777:o} {path.name} {json.dumps(path.read_text())}\n"


def archive() -> str:
    with TemporaryDirectory() as folder:
        materialise(load("a16-vfio"), folder)
        for ours in ("run", "var/lib"):
            Path(folder, ours).mkdir(parents=True, exist_ok=True)
        return pack(Path(folder))


if __name__ == "__main__":
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.write_text(archive())
