"""What boards and vGPU types are called: built-in tables, and what names and descriptions say of sizes.

The driver's own list wins where it exists; the tables serve where it names no size, or lists only what still
fits. Cold path: used when the host is read. Sources stand beside the values in data/.
"""
from __future__ import annotations

import os.path

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, NamedTuple, Optional

    from kvm_gpu.strict import Table
else:
    from kvm_gpu.light import NamedTuple

DATA: Final = os.path.join(os.path.dirname(__file__), "data")
BRANDS: Final = ("GRID ", "NVIDIA ")        # a type is called "GRID T4-4Q" or "NVIDIA T4-4Q" by driver branch
SERIES: Final = "ABCQ"
MIG_SUFFIXES: Final = ("ME", "NOME", "MEALL", "GFX")    # source: NVIDIA/vgpu-device-manager pkg/vgpu/config.go
MODES: Final = ("pf-mdev", "sriov")
ANY: Final = "any"
MAX_ID: Final = 1 << 31
MAX_FB_MIB: Final = 1 << 24
MAX_INSTANCE: Final = 4096


class VgpuType(NamedTuple):
    """A row of the vendor's table; `max_instance` on one board that holds nothing else."""
    type_id: str                    # "713"
    name: str                       # "A16-4Q"
    fb_mib: int
    max_instance: int


class Tables:
    """`models`: short names by "10de:1e30", or with the subsystem by "10de:25b6 10de:14a9"; `boards`: types by short
    name."""

    def __init__(self, models: dict[str, str], boards: dict[str, tuple[VgpuType, ...]]) -> None:
        self._models = models
        self._boards = boards

    def model(self, ids: str, subsystem: Optional[str]) -> str:
        """Short name "a16" of a board or of its VFs; the ids themselves where no table has them."""
        return self._models.get(f"{ids} {subsystem}") or self._models.get(ids, ids)

    def types(self, ids: str, subsystem: Optional[str]) -> tuple[VgpuType, ...]:
        """The board's vGPU types in the order of the table, empty where it has none."""
        return self._boards.get(self.model(ids, subsystem), ())

    def names(self) -> frozenset[str]:
        """All profiles that there can be: vGPU types, whole cards and VFs."""
        models = frozenset(self._models.values())
        types = frozenset(kind.name for types in self._boards.values() for kind in types)
        return types | models | frozenset(model + "-vf" for model in models)


def load(extra: Optional[str] = None) -> Tables:
    """The built-in tables, and over them the administrator's file `extra` if it is there. Raises HostError."""
    models = {ids: name for part in _read(DATA + "/models.json") for ids, name in part["models"].items()}
    boards: dict[str, tuple[VgpuType, ...]] = {}
    for path in (DATA + "/vgpu-types.json", extra):
        if path is not None and (path != extra or os.path.exists(path)):
            _add_boards(path, models, boards)
    return Tables(models, boards)


def _read(path: str) -> Any:
    import json
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HostError(f"{path}: {error}") from None


def _add_boards(path: str, models: dict[str, str], boards: dict[str, tuple[VgpuType, ...]]) -> None:
    from kvm_gpu.strict import Table
    value = _read(path)
    if not isinstance(value, dict):
        raise HostError(f"{path}: expected a table of boards")
    table = Table(value, [])
    for name in table.names():
        board, short = table.table(name), name.lower().replace(" ", "-")
        models[_key(board)] = short
        boards[short] = tuple(map(_type, board.tables("types")))
        board.done()
    if table.problems:
        raise HostError("\n".join(f"{path}: {problem.text}" for problem in table.problems))


def _key(board: Table) -> str:
    """"10de:25b6 10de:14a9", or "10de:2235" where the subsystem is "any"."""
    board.word("mode", MODES, MODES[0])
    vendor, device = _hex(board, "vendor"), _hex(board, "device")
    if board.text("subsystem", ANY) == ANY:
        return f"{vendor}:{device}"
    return f"{vendor}:{device} {vendor}:{_hex(board, 'subsystem')}"


def _hex(board: Table, key: str) -> str:
    from kvm_gpu.request import is_hex
    text = (board.text(key) or "").lower()
    if len(text) != 6 or text[:2] != "0x" or not is_hex(text[2:]):
        board.problem("expected an id like '0x25b6'", key)
    return text[2:]


def _type(row: Table) -> VgpuType:
    number, name = row.number("id", 1, MAX_ID), row.text("name")
    fb_mib, most = row.number("framebuffer_mb", 1, MAX_FB_MIB), row.number("max_instance", 1, MAX_INSTANCE)
    row.text("source")
    for key in ("id", "name", "framebuffer_mb", "max_instance"):
        if not row.has(key):
            row.problem("missing", key)
    row.done()
    return VgpuType(str(number), short_name(name or ""), fb_mib or 0, most or 0)


def short_name(text: str) -> str:
    """"GRID RTX6000-4Q" -> "RTX6000-4Q", "NVIDIA A16-4Q" -> "A16-4Q"."""
    text = text.strip()
    for brand in BRANDS:
        text = text.removeprefix(brand)
    return text


def fb_from_name(name: str) -> Optional[int]:
    """MiB that a type's name promises: "A16-4Q" 4096, "M10-0Q" 512, "A100-4-20C" 20480, "T4-2B4" 2048; None without.
    Source: NVIDIA virtual GPU software user guide, "Virtual GPU Types"; NVIDIA/vgpu-device-manager ("0" is 512 MB)."""
    board, dash, size = name.strip().rpartition("-")
    digits = size[:len(size) - len(size.lstrip("0123456789"))]
    series, variant = size[len(digits):len(digits) + 1], size[len(digits) + 1:]
    if not board or not dash or not 0 < len(digits) <= 4 or not series or series not in SERIES:
        return None
    if variant and variant not in MIG_SUFFIXES and not (variant.isascii() and variant.isdecimal()):
        return None
    return int(digits) * 1024 or 512


def is_mig(name: str) -> bool:
    """The type is served by a MIG GPU instance: its name has slices and size, "A100-1-5C", "DC-1-24Q"."""
    board, _, slices = name.strip().rpartition("-")[0].rpartition("-")
    return bool(board) and len(slices) == 1 and slices in "123456789" and fb_from_name(name) is not None


def parse_description(text: str) -> tuple[Optional[int], Optional[int]]:
    """(fb_mib, max_instance) of an mdev type's `description`, each None where the text does not tell it.
    Source: NVIDIA's one line "num_heads=4, ..., framebuffer=4096M, ..., max_instance=4"."""
    fields = description_fields(text)
    return _whole(fields.get("framebuffer", "").removesuffix("M")), _whole(fields.get("max_instance", ""))


def description_fields(text: str) -> dict[str, str]:
    """{"framebuffer": "4096M", ...} from the one-line form, {"low_gm_size": "128MB", ...} from GVT-g's lines.
    Source: GVT-g in drivers/gpu/drm/i915/gvt/kvmgt.c ("low_gm_size: %dMB\\nhigh_gm_size: ...")."""
    fields = {}
    for part in text.replace("\n", ",").split(","):
        key, equals, value = part.replace(":", "=", 1).partition("=") if "=" not in part else part.partition("=")
        if equals and key.strip():
            fields[key.strip()] = value.strip()
    return fields


def _whole(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
