"""hostpciN and mappings: the alternatives on this node."""
from __future__ import annotations

from pathlib import Path

import pytest

from pve_gpu_hook import mapping
from pve_gpu_hook.mapping import HostPci

CONFIG = """\
gpu
\tmap id=10de:1e30,iommugroup=1,node=pve1,path=0000:3b:00,subsystem-id=10de:12ba
\tmap id=10de:1e30,iommugroup=2,node=pve2,path=0000:5e:00,subsystem-id=10de:12ba
\tmap id=10de:1e30,iommugroup=3,node=pve1,path=0000:AF:00.0;0000:af:00.1,subsystem-id=10de:12ba
\tdescription map node=pve1,path=0000:00:00.0

gpu-a16-4q
\tdescription gpu
\tmdev 1
\tmap node=pve1,path=0000:25:00.4,id=10de:25b6

"""


@pytest.mark.parametrize(("value", "found"), [
    ("mapping=gpu,pcie=1", [HostPci(0, "gpu", (("0000:3b:00",), ("0000:af:00.0", "0000:af:00.1")), None)]),
    ("mdev=nvidia-713,mapping=gpu-a16-4q", [HostPci(0, "gpu-a16-4q", (("0000:25:00.4",),), "nvidia-713")]),
    ("3b:00.0;5e:00,rombar=0", [HostPci(0, "3b:00.0;5e:00", (("0000:3b:00.0", "0000:5e:00"),), None)]),
    ("host=0001:3b:00", [HostPci(0, "0001:3b:00", (("0001:3b:00",),), None)]),
    ("mapping=none", []), ("mapping=description", []), ("mapping=\tmap", []), ("host=../x", []), ("3b:00.0;x", []),
    ("pcie=1", []), ("", []),
])
def test_alternatives(tmp_path: Path, value: str, found: list[HostPci]) -> None:
    (tmp_path / "etc/pve/mapping").mkdir(parents=True)
    (tmp_path / "etc/pve/mapping/pci.cfg").write_text(CONFIG)
    assert mapping.devices(str(tmp_path), "pve1", {"hostpci0": value}) == tuple(found)


def test_no_mappings_at_all(tmp_path: Path) -> None:
    assert mapping.devices(str(tmp_path), "pve1", {"hostpci0": "mapping=gpu"}) == ()


@pytest.mark.parametrize(("alternative", "address", "part"), [
    (("0000:3b:00",), "0000:3b:00.0", True), (("0000:3b:00",), "0000:3b:00.3", True),
    (("0000:3b:00.0",), "0000:3b:00.3", False), (("0000:3b:00.0", "0000:3b:00.3"), "0000:3b:00.3", True),
    (("0000:3b:00",), "0000:3b:01.0", False),
])
def test_what_an_alternative_covers(alternative: tuple[str, ...], address: str, part: bool) -> None:
    assert mapping.covers(alternative, address) is part


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "etc/pve/mapping").mkdir(parents=True)
    entries = "".join(f"\tmap id=10de:25b6,node=pve{number % 9},path=0000:25:00.4\n" for number in range(9000))
    (tmp_path / "etc/pve/mapping/pci.cfg").write_text(f"other\n{entries}\n{CONFIG}")
    [found] = mapping.devices(str(tmp_path), "pve1", {"hostpci0": "mapping=gpu-a16-4q"})
    assert found.alternatives == (("0000:25:00.4",),)
