"""What the lab boots from, made of this machine's Debian packages once and kept in the user's cache."""
from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvm-gpu-lab"
BOOT_MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "ext4", "9p", "9pnet_virtio", "overlay")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
SIZE_BYTES = 4      # the unpacked size, which the kernel's build appends


class Kept(NamedTuple):
    kernel: Path            # vmlinux
    initramfs: Path
    modules: Path           # folder with mtty.ko and labgpu.ko
    capabilities: Path      # what libvirt knows of QEMU: finding out takes it 10 s of each start


def tool(name: str) -> str | None:
    """Path of a program, None where it is not installed. Debian keeps some where a user's PATH does not lead."""
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


def kernel_version() -> str | None:
    """The newest kernel of this machine that modules can be built for, None where there is none."""
    images = sorted(Path("/boot").glob("vmlinuz-*"), key=lambda image: image.stat().st_mtime, reverse=True)
    versions = [image.name.removeprefix("vmlinuz-") for image in images]
    return next((version for version in versions
                 if Path(f"/lib/modules/{version}/build").exists() and kernel_source(version).exists()), None)


def kernel_source(version: str) -> Path:
    """Debian's source of the series: 6.1 for 6.1.0-57-amd64, 6.12 for 6.12.43+deb13-amd64."""
    return Path(f"/usr/src/linux-source-{'.'.join(version.split('.')[:2])}.tar.xz")


def prepare(version: str) -> Kept:
    """Make what is missing. Raises CalledProcessError with the compiler's words in its output."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = Path(f"/boot/vmlinuz-{version}")
        mine = sorted(path for path in (*HERE.glob("modules/*"), HERE / "init", HERE / "kept.py"))
        key = hashlib.sha256(b"\0".join(path.read_bytes() for path in (image, *mine))).hexdigest()[:16]
        folder = CACHE / key
        if not folder.exists():
            shutil.rmtree(CACHE / "part", ignore_errors=True)
            part = CACHE / "part"
            part.mkdir()
            _unpack_kernel(image, part / "vmlinux")
            _build_modules(version, part / "modules")
            _pack_initramfs(version, part)
            part.rename(folder)
        capabilities = CACHE / "capabilities"
        capabilities.mkdir(exist_ok=True)
    return Kept(folder / "vmlinux", folder / "initramfs", folder / "modules", capabilities)


def _unpack_kernel(image: Path, kernel: Path) -> None:
    """QEMU starts the unpacked kernel itself (PVH): its own unpacking would take 8 s when emulated. Debian 12 packs it
    by xz, 13 by zstd. Source: Documentation/arch/x86/boot.rst, setup_sects, payload_offset and payload_length."""
    data = image.read_bytes()
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (data[0x1f1] + 1) * 512 + offset
    payload = data[start:start + length - SIZE_BYTES]
    if payload.startswith(ZSTD_MAGIC):
        kernel.write_bytes(subprocess.run(["zstd", "-dcq"], input=payload, capture_output=True, check=True).stdout)
    else:
        kernel.write_bytes(lzma.decompress(payload))


def _build_modules(version: str, folder: Path) -> None:
    """Ours, and the kernel's mdev sample mtty."""
    source = kernel_source(version)
    shutil.copytree(HERE / "modules", folder)
    subprocess.run(["tar", "-C", folder, "--strip-components=3", "-xf", source,
                    f"{source.name.removesuffix('.tar.xz')}/samples/vfio-mdev/mtty.c"], check=True)
    subprocess.run(["make", "-C", f"/lib/modules/{version}/build", f"M={folder}", "CONFIG_DEBUG_INFO_BTF_MODULES=",
                    "modules"], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _pack_initramfs(version: str, folder: Path) -> None:
    """busybox, `init` and the modules that the root file system needs."""
    tree = folder / "tree"
    for name in ("bin", "lib"):
        (tree / name).mkdir(parents=True)
    shutil.copy(tool("busybox") or "busybox", tree / "bin/busybox")
    shutil.copy(HERE / "init", tree / "init")
    files = [file for module in BOOT_MODULES for file in _with_dependencies(version, module)]
    for file in dict.fromkeys(files):
        _unpack_module(Path(file), tree / "lib")
    (tree / "modules").write_text("".join(f"{Path(file).name.removesuffix('.xz')}\n" for file in dict.fromkeys(files)))
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    with open(folder / "initramfs", "wb") as archive:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=tree, input=names.encode(),
                       stdout=archive, check=True)
    shutil.rmtree(tree)


def _unpack_module(file: Path, folder: Path) -> None:
    data = file.read_bytes()
    (folder / file.name.removesuffix(".xz")).write_bytes(lzma.decompress(data) if file.suffix == ".xz" else data)


def _with_dependencies(version: str, module: str) -> list[str]:
    shown = subprocess.run([tool("modprobe") or "modprobe", "-S", version, "--show-depends", module],
                           check=True, capture_output=True, text=True)
    return [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("insmod ")]
