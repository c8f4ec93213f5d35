"""What stands between pve-gpu and the API: token, certificate, permissions."""
from __future__ import annotations

import sys

import pytest

from pve_gpu_hook.cluster import open_cluster
from tests.pve_tools.fakepve import USER, make_certificate

GUIDE = "Hint: make an API token and put USER!NAME=SECRET into this file: see the guide for Proxmox admins\n"


def test_who_we_are(lab):
    assert open_cluster(lab.root).user == USER


def test_no_token(lab, pve_gpu):
    file = lab.root / "etc/pve/priv/kvm-gpu.token"
    file.unlink()
    assert pve_gpu("mapping", "sync") == (2, "", f"pve-gpu: {file}: No such file or directory\n{GUIDE}")


def test_a_token_that_is_none(lab, pve_gpu):
    (lab.root / "etc/pve/priv/kvm-gpu.token").write_text("secret")
    assert pve_gpu("mapping", "sync") == (2, "", "pve-gpu: the API token is not like root@pam!gpu=12345678-...\n")


def test_a_wrong_token(lab, pve_gpu):
    (lab.root / "etc/pve/priv/kvm-gpu.token").write_text(USER + "=wrong")
    code, out, err = pve_gpu("mapping", "sync")
    assert (code, out) == (4, "")
    assert err == (f"pve-gpu: {lab.pve.address}: get nodes/pve1/hardware/pci: 401 Unauthorized: invalid token value!\n")


def test_a_server_that_is_not_of_our_cluster(lab, pve_gpu, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("PVE_GPU_CA", str(make_certificate(other)))
    code, out, err = pve_gpu("mapping", "sync")
    assert (code, out, "CERTIFICATE_VERIFY_FAILED" in err, lab.pve.calls) == (4, "", True, [])


def test_no_server(lab, pve_gpu, monkeypatch):
    monkeypatch.setenv("PVE_GPU_API", "localhost:1")
    code, out, err = pve_gpu("mapping", "sync")
    assert (code, out) == (4, "")
    assert err.startswith("pve-gpu: localhost:1: get nodes/pve1/hardware/pci: ")


def test_not_on_a_node(lab, pve_gpu):
    (lab.root / "etc/pve/local").unlink()
    assert pve_gpu("mapping", "sync") == (4, "", (
        f"pve-gpu: {lab.root}/etc/pve/local: No such file or directory\nHint: run it on a node of Proxmox VE\n"))


@pytest.mark.parametrize(("text", "said"), [("y\n", "create"), ("\n", None), ("no\n", None)])
def test_it_asks(lab, pve_gpu, monkeypatch, text, said):
    class Terminal:
        def isatty(self):
            return True

        def readline(self):
            return text

        def fileno(self):
            return -1
    monkeypatch.setattr("sys.stdin", Terminal())
    code, out, _ = pve_gpu("mapping", "sync", "A16-4Q")
    assert (code, out.endswith("Do it? [y/N] ")) == (0, True)
    assert set(lab.pve.mappings) == ({"gpu-a16-4q"} if said else set())


@pytest.mark.parametrize("package", ["proxmoxer", "proxmoxer.backends.https"])
def test_without_proxmoxer(lab, pve_gpu, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert pve_gpu("mapping", "sync") == (4, "", (
        "pve-gpu: the Python packages proxmoxer and requests are not installed\n"
        "Hint: apt install python3-proxmoxer python3-requests\n"))
