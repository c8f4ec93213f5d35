"""Puts our driver folder, probe and hook beside OpenNebula's own on the front-end, and takes them away again.

Nothing of OpenNebula's is changed but one word of oned.conf, last at installing and first at removing.
"""
from __future__ import annotations

from pathlib import Path
from typing import Final

from kvm_gpu.errors import HostError
from one_gpu_driver import onedconf, shims
from one_gpu_driver.changes import Change, Copy, Remove, RemoveFolder, Restore, Write, read, written

REMOTES: Final = "var/lib/one/remotes"
CONF: Final = "etc/one/oned.conf"
COPY_SUFFIX: Final = ".before-kvm-gpu"
FOLDER: Final = "vmm/" + onedconf.OURS
FILES: Final = Path(__file__).parent / "remotes"        # laid over oned's remotes as they are
PROBE: Final = "im/kvm-probes.d/host/system/kvm-gpu.sh"
HOOK: Final = "hooks/kvm-gpu/retry"


def install(root: Path) -> list[Change]:
    """What is to do until the front-end below `root` has our driver; nothing where it has. Run again after an upgrade
    of OpenNebula it makes shims for new scripts and removes those of scripts that are gone. Raises HostError."""
    remotes, conf = _places(root)
    scripts = _scripts(remotes)
    changes: list[Change] = [change for name, text in scripts.items()
                             for change in written(remotes / FOLDER / name, text, 0o755)]
    changes += [Remove(path) for path in _ours(remotes) if path.name not in scripts]
    for name in (PROBE, HOOK):
        changes += written(remotes / name, read(FILES / name), 0o755)
    text = read(conf)
    if onedconf.folder(text) == onedconf.STOCK:
        changed = onedconf.with_folder(text, onedconf.OURS)
        changes += [Copy(conf, _copy(conf)), Write(conf, changed, conf.stat().st_mode & 0o777)]
    elif onedconf.folder(text) != onedconf.OURS:
        raise HostError(f"{conf}: the VM_MAD kvm uses the driver folder {onedconf.folder(text)}",
                        "set it back to kvm first")
    return changes


def uninstall(root: Path) -> list[Change]:
    """What is to do until nothing of ours is left; what others put into our folders stays. Raises HostError."""
    remotes, conf = _places(root)
    files = [*_ours(remotes), *(remotes / name for name in (PROBE, HOOK) if (remotes / name).exists())]
    folders = [folder for folder in (remotes / FOLDER, (remotes / HOOK).parent) if folder.is_dir()]
    return [*_back(conf), *map(Remove, files), *map(RemoveFolder, folders)]


def restart_needed(changes: list[Change]) -> bool:
    """Whether oned reads its configuration anew only at a restart."""
    return any(change.path.name == "oned.conf" for change in changes)


def _back(conf: Path) -> list[Change]:
    """oned.conf with the stock folder: the kept copy itself, with its times, unless the file was changed since."""
    copy, text = _copy(conf), read(conf)
    if onedconf.folder(text) == onedconf.OURS:
        stock = onedconf.with_folder(text, onedconf.STOCK)
        if copy.exists() and read(copy) == stock:
            return [Restore(conf, copy)]
        changes: list[Change] = [Write(conf, stock, conf.stat().st_mode & 0o777)]
    else:
        changes = []
    return [*changes, Remove(copy)] if copy.exists() else changes


def _places(root: Path) -> tuple[Path, Path]:
    remotes, conf = root / REMOTES, root / CONF
    if not (remotes / "vmm/kvm").is_dir() or not conf.is_file():
        raise HostError(f"{remotes}/vmm/kvm, {conf}: not there", "run it on the OpenNebula front-end")
    return remotes, conf


def _scripts(remotes: Path) -> dict[str, str]:
    scripts = shims.scripts(remotes / "vmm/kvm")
    if "deploy" not in scripts:
        raise HostError(f"{remotes}/vmm/kvm: has no program deploy", "repair the installation of OpenNebula")
    return scripts


def _ours(remotes: Path) -> list[Path]:
    folder = remotes / FOLDER
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in files if file.is_file() and shims.is_ours(read(file))]


def _copy(conf: Path) -> Path:
    return conf.with_name(conf.name + COPY_SUFFIX)
