"""The operator's configuration as the hot path sees it: compiled once into one marshalled file.

TOML costs a VM start 12 ms of CPU, so configfile.py (strict, cold) is imported only when a file changed.
"""
from __future__ import annotations

import posix

from kvm_gpu import private
from kvm_gpu.errors import HostError
from kvm_gpu.model import CardLayout, Config, HostLayout, Offer, Policy, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from kvm_gpu.model import Stamp

    Row = tuple[Any, ...]           # a value as marshal gives it back

TYPES: Final = "vgpu-types.json"    # read by profiles.py
FORMAT: Final = 1                   # raise it when the compiled form or the meaning of a key changes


def load(config_dir: str, run: str) -> Config:
    """The configuration of the TOML files in a folder, defaults where there are none. Keeps its compiled form in
    RUN/config; without the right to write there it reads the TOML files each time. Raises HostError."""
    stamp = take_stamp(config_dir)
    if not stamp:
        return Config()
    rows = private.load(run + "/config", (FORMAT, stamp))
    if rows is not None:
        return _rebuilt(rows, stamp)
    from kvm_gpu import configfile
    toml = tuple(seen for seen in stamp if not seen[0].endswith("/" + TYPES))
    config = configfile.read(toml)._replace(stamp=stamp)
    private.store(run + "/config", (FORMAT, stamp), config[:-1])
    return config


def take_stamp(config_dir: str) -> Stamp:
    """(path, mtime_ns, size, inode) of each TOML file in the folder and its folder `layouts`, and of the table of vGPU
    types, by path."""
    return tuple(sorted(_files(config_dir) + _files(config_dir + "/layouts")))


def _files(folder: str) -> list[tuple[str, int, int, int]]:
    try:
        names = [name for name in posix.listdir(folder)
                 if name == TYPES or (name.endswith(".toml") and name[0] != ".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError(f"{folder}: {error.strerror}") from None
    return [_seen(f"{folder}/{name}") for name in names]


def _seen(path: str) -> tuple[str, int, int, int]:
    try:
        seen = posix.stat(path)
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
    return path, seen.st_mtime_ns, seen.st_size, seen.st_ino


def _rebuilt(rows: Row, stamp: Stamp) -> Config:
    policy, offers, deadline_s, layouts = rows
    return Config(Policy(*policy), tuple(_offer(*offer) for offer in offers), deadline_s,
                  tuple(_layout(*layout) for layout in layouts), stamp)


def _offer(name: str, want: Row, *rest: Any) -> Offer:
    return Offer(name, Want(*want), *rest)


def _layout(name: str, cards: tuple[Row, ...]) -> HostLayout:
    return HostLayout(name, tuple(CardLayout(*card) for card in cards))
