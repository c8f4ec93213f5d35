"""profiles.py: the tables of boards and vGPU types, and what names and descriptions tell."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu import profiles
from kvm_gpu.errors import HostError
from kvm_gpu.profiles import Tables, VgpuType

X48 = {"X48": {"device": "0xfff1", "vendor": "0x10de", "subsystem": "any", "mode": "sriov", "types": [
    {"id": 9102, "name": "NVIDIA X48-2Q", "framebuffer_mb": 2048, "max_instance": 24},
    {"id": 9148, "name": "X48-48Q", "framebuffer_mb": 49152, "max_instance": 1}]}}


@pytest.fixture(scope="module")
def tables() -> Tables:
    return profiles.load()


@pytest.mark.parametrize(("ids", "subsystem", "model"), [
    ("10de:1e30", None, "rtx6000"), ("10de:1e30", "10de:12ba", "rtx6000"), ("10de:1e30", "10de:129e", "rtx8000"),
    ("10de:25b6", "10de:14a9", "a16"), ("10de:25b6", "10de:157e", "a2"),
    ("10de:25b6", "10de:0000", "10de:25b6"), ("10de:25b6", None, "10de:25b6"),
    ("10de:2235", "10de:145a", "a40"), ("10de:20f1", None, "a100-pcie-40"), ("10de:20b0", None, "a100-sxm4-40"),
    ("10de:20b2", None, "a100-sxm4-80"), ("10de:20b5", "10de:1533", "a100-pcie-80"), ("10de:20b7", "10de:1532", "a30"),
    ("10de:27b8", None, "l4"), ("10de:26b9", None, "l40s"), ("10de:26ba", None, "l20"),
    ("10de:1eb8", "10de:12a2", "t4"),
    ("10de:2bb5", None, "rtxpro6000"), ("10de:2330", None, "h100-sxm"), ("10de:2331", None, "h100-pcie"),
    ("10de:2335", None, "h200-sxm"), ("10de:233b", None, "h200-nvl"), ("10de:1db8", "10de:131d", "v100-sxm3-32"),
    ("1002:6929", None, "s7150"), ("1002:692f", None, "s7150"), ("1002:6864", None, "v340"),
    ("1002:686c", None, "v340"),
    ("1002:7362", None, "v520"), ("1002:73a1", None, "v620"), ("1002:73ae", None, "v620"),
    ("1002:74a1", None, "mi300x"), ("1002:74b5", None, "mi300x"), ("1002:74a5", None, "mi325x"),
    ("1002:74b9", None, "mi325x"), ("1002:74a2", None, "mi308x"), ("1002:74a8", None, "mi308x"),
    ("1002:74b6", None, "mi308x"), ("1002:74bc", None, "mi308x"), ("1002:74a9", None, "mi300x-hf"),
    ("1002:74bd", None, "mi300x-hf"), ("1002:75a0", None, "mi350x"), ("1002:75a3", None, "mi355x"),
    ("1002:740f", None, "mi210"), ("1002:7410", None, "mi210"), ("1002:7461", None, "v710"),
    ("8086:56c0", None, "flex170"), ("8086:56c1", None, "flex140"), ("8086:56c2", None, "flex170v"),
    ("8086:e212", None, "arcpro-b50"), ("8086:e211", None, "arcpro-b60"), ("8086:e222", None, "arcpro-b65"),
    ("8086:e223", None, "arcpro-b70"), ("8086:a780", "1043:8882", "uhd770"), ("8086:4690", None, "uhd770"),
    ("8086:a7a0", None, "irisxe"), ("8086:46a6", None, "irisxe"), ("8086:46d3", None, "adl-n"),
    ("8086:3e92", None, "uhd630"), ("8086:5912", None, "hd630"), ("10de:ffff", None, "10de:ffff"),
])
def test_model(tables: Tables, ids: str, subsystem: str | None, model: str) -> None:
    assert tables.model(ids, subsystem) == model


def test_types_of_a_board(tables: Tables) -> None:
    assert tables.types("10de:25b6", "10de:14a9")[2:7] == (
        VgpuType("711", "A16-1Q", 1024, 16), VgpuType("712", "A16-2Q", 2048, 8), VgpuType("713", "A16-4Q", 4096, 4),
        VgpuType("714", "A16-8Q", 8192, 2), VgpuType("715", "A16-16Q", 16384, 1))
    assert tables.types("10de:20f1", None)[-3:] == (
        VgpuType("477", "A100-4-20C", 20480, 1), VgpuType("478", "A100-7-40C", 40960, 1),
        VgpuType("706", "A100-1-5CME", 5120, 1))


@pytest.mark.parametrize(("ids", "subsystem", "number"), [
    ("10de:1e30", None, 23), ("10de:1e30", "10de:12ba", 23), ("10de:1e30", "10de:129e", 0), ("10de:1eb8", None, 17),
    ("10de:2235", None, 29), ("10de:25b6", "10de:14a9", 15), ("10de:25b6", "10de:157e", 0), ("10de:26b9", None, 22),
    ("10de:27b8", None, 18), ("10de:20f1", None, 12), ("10de:ffff", None, 0), ("1002:74a1", None, 0),
])
def test_number_of_types(tables: Tables, ids: str, subsystem: str | None, number: int) -> None:
    assert len(tables.types(ids, subsystem)) == number


def test_built_in_names_agree_with_their_sizes() -> None:
    boards = json.loads(Path(profiles.DATA, "vgpu-types.json").read_text())
    rows = [row for board in boards.values() for row in board["types"]]
    assert [profiles.fb_from_name(row["name"]) for row in rows] == [row["framebuffer_mb"] for row in rows]
    assert len({row["id"] for row in rows}) == len(rows) == 136
    assert all(row["source"] for row in rows)


# ---- the administrator's file ----------------------------------------------------------------------

def extra(folder: Path, value: object) -> str:
    path = folder / "vgpu-types.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_own_boards_are_added(tmp_path: Path) -> None:
    tables = profiles.load(extra(tmp_path, X48))
    assert tables.model("10de:fff1", "10de:0000") == "x48"
    assert tables.types("10de:fff1", None) == (
        VgpuType("9102", "X48-2Q", 2048, 24), VgpuType("9148", "X48-48Q", 49152, 1))
    assert len(tables.types("10de:1eb8", None)) == 17


def test_own_rows_replace_built_in_ones(tmp_path: Path) -> None:
    t4 = {"T4": {"vendor": "0x10de", "device": "0x1eb8", "types": [
        {"id": 5, "name": "T4-16Q", "framebuffer_mb": 16384, "max_instance": 1, "source": "seen"}]}}
    assert profiles.load(extra(tmp_path, t4)).types("10de:1eb8", None) == (VgpuType("5", "T4-16Q", 16384, 1),)


def test_no_own_file(tmp_path: Path, tables: Tables) -> None:
    assert profiles.load(str(tmp_path / "none.json")).types("10de:1eb8", None) == tables.types("10de:1eb8", None)


@pytest.mark.parametrize(("value", "expected"), [
    ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ("[" * 100000, "maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
    ([], "expected a table of boards"),
    ({"Z": {"vendor": "10de", "device": "0x1", "types": [{"id": "1", "name": "Z-1Q", "framebuffer_mb": 0}], "max": 1}},
     "Z.vendor: expected an id like '0x25b6'\n"
     "Z.device: expected an id like '0x25b6'\n"
     "Z.types[0].id: expected a number, not '1'\n"
     "Z.types[0].framebuffer_mb: 0 is not between 1 and 16777216\n"
     "Z.types[0].max_instance: missing\n"
     "Z: unknown key 'max'; known are device, mode, subsystem, types, vendor"),
])
def test_own_file_refused(tmp_path: Path, value: object, expected: str) -> None:
    path = extra(tmp_path, value)
    with pytest.raises(HostError) as error:
        profiles.load(path)
    assert error.value.message == "\n".join(f"{path}: {line}" for line in expected.split("\n"))


# ---- names and descriptions ------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "short"), [
    ("GRID RTX6000-4Q", "RTX6000-4Q"), ("NVIDIA A16-4Q", "A16-4Q"), (" NVIDIA L40S-2Q\n", "L40S-2Q"),
    ("NVIDIA RTX Pro 6000 Blackwell DC-3Q", "RTX Pro 6000 Blackwell DC-3Q"), ("A16-4Q", "A16-4Q"),
    ("GVTg_V5_4", "GVTg_V5_4"), ("", ""),
])
def test_short_name(text: str, short: str) -> None:
    assert profiles.short_name(text) == short


@pytest.mark.parametrize(("name", "fb_mib", "mig"), [
    ("A16-4Q", 4096, False), ("M10-0Q", 512, False), ("GRID M60-0B", 512, False), ("A100-4-20C", 20480, True),
    ("A100-4C", 4096, False), ("A100-1-5CME", 5120, True), ("A100D-7-80C", 81920, True), ("DC-1-24Q", 24576, True),
    ("RTX Pro 6000 Blackwell DC-3Q", 3072, False), ("RTX Pro 6000 Blackwell DC-1-24QGFX", 24576, True),
    ("T4-2B4", 2048, False), ("RTX6000-24Q", 24576, False),
    ("GVTg_V5_4", None, False), ("flex170-vf", None, False), ("rtx6000", None, False), ("a100-pcie-40", None, False),
    ("4Q", None, False), ("-4Q", None, False), ("A16-Q", None, False), ("A16-4X", None, False),
    ("A16-4QX", None, False),
    ("A16-4Q\u00b2", None, False), ("A16-99999Q", None, False), ("1-5C", 5120, False), ("", None, False),
])
def test_size_and_kind_from_the_name(name: str, fb_mib: int | None, mig: bool) -> None:
    assert (profiles.fb_from_name(name), profiles.is_mig(name)) == (fb_mib, mig)


GVT_G = "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\nresolution: 1920x1200\nweight: 4\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4", (4096, 4)),
    ("num_heads=1,max_instance=16,framebuffer=1024M\n", (1024, 16)),
    ("framebuffer=4096M", (4096, None)), ("max_instance=4", (None, 4)), (GVT_G, (None, None)),
    ("virtual PCI serial adapter", (None, None)), ("framebuffer=4G, max_instance=-1", (None, None)),
    ("framebuffer=\u00b2M, max_instance=" + "9" * 5000, (None, None)), ("", (None, None)),
])
def test_parse_description(text: str, expected: tuple[int | None, int | None]) -> None:
    assert profiles.parse_description(text) == expected


def test_description_fields() -> None:
    assert profiles.description_fields(GVT_G) == {
        "low_gm_size": "128MB", "high_gm_size": "512MB", "fence": "4", "resolution": "1920x1200", "weight": "4"}
    assert profiles.description_fields("num_heads=4, framebuffer=4096M") == {"num_heads": "4", "framebuffer": "4096M"}
    assert profiles.description_fields("=, :,\n\n") == {}


@settings(max_examples=200)
@given(st.text(max_size=40), st.text(alphabet="=:,\n -0123456789MGQABCframebuffer_max_instance", max_size=60))
def test_no_text_is_an_error(name: str, text: str) -> None:
    for word in (name, text):
        assert all(number is None or number >= 0 for number in profiles.parse_description(word))
        assert profiles.is_mig(word) <= (profiles.fb_from_name(word) is not None)
        assert profiles.short_name(profiles.short_name(word)) == profiles.short_name(word)
