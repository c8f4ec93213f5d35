"""Nodes of a Proxmox VE cluster: folders with a machine's /sys, an API that reads them, and pve-gpu as its users run
it."""
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pve_gpu_hook import cli
from tests.fakekernel import hosts
from tests.fakekernel.materialise import materialise
from tests.pve_tools.fakepve import TOKEN, FakePve, make_certificate, serving

MACHINES = {"pve1": "a16-vfio", "pve2": "rtx6000x4"}


class Answer(NamedTuple):
    code: int
    out: str
    err: str


OFFERS = """
[offer.vdi]
profile = "A16-4Q"
numa = "required"
enabled_for = { users = ["ann"] }

[offer.train]
mechanism = "nvidia_vfio"
fb_mib = 10000
cards = 2
"""


class Lab(NamedTuple):
    """`root`: of the node on which pve-gpu runs, pve1."""
    pve: FakePve
    root: Path

    def node(self, name: str) -> Path:
        return self.pve.nodes[name]

    def offers(self) -> None:
        folder = self.root / "etc/kvm-gpu"
        folder.mkdir()
        (folder / "offers.toml").write_text(OFFERS)

    def pvesh(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A pvesh on PATH that notes its arguments in the file that is returned."""
        folder, said = self.root / "bin", self.root / "pvesh.said"
        folder.mkdir()
        (folder / "pvesh").write_text(f"#!/bin/sh\nprintf '%s|' \"$@\" >>{said}\necho >>{said}\n")
        (folder / "pvesh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return said


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """machine("t4-mdev"): its files, which nobody changes."""
    folder = tmp_path_factory.mktemp("machines")

    def up(name: str) -> Path:
        if not (folder / name).exists():
            materialise(hosts.load(name), folder / name)
        return folder / name
    return up


@pytest.fixture
def make_lab(machine: Callable[[str], Path], certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
             ) -> Iterator[Callable[..., Lab]]:
    """make_lab(pve1="t4-mdev"): a cluster of these machines."""
    servers = []

    def make(**names: str) -> Lab:
        roots = {node: _node(tmp_path / node, node, machine(name)) for node, name in names.items()}
        server = serving(FakePve(roots), certificate)
        servers.append(server)
        pve, root = server.__enter__(), roots["pve1"]
        monkeypatch.setenv("PVE_GPU_API", pve.address)
        for node in roots.values():
            shutil.copy(certificate, node / "etc/pve/pve-root-ca.pem")
        monkeypatch.setenv("KVM_GPU_ROOT", str(root))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        return Lab(pve, root)

    yield make
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(**MACHINES)


@pytest.fixture
def pve_gpu(capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(*argv: str) -> Answer:
        code = cli.main(list(argv))
        return Answer(code, *capfd.readouterr())
    return run


def _node(root: Path, name: str, machine: Path) -> Path:
    """The machine's /sys and /proc, read in place; everything else of its own."""
    root.mkdir()
    for part in ("proc", "sys"):
        (root / part).symlink_to(machine / part)
    for folder in ("etc/pve/priv", "run", "var/lib"):
        (root / folder).mkdir(parents=True)
    (root / "etc/pve/local").symlink_to(f"nodes/{name}")
    (root / "etc/pve/priv/kvm-gpu.token").write_text(TOKEN + "\n")
    return root
