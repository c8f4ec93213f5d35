"""pve-gpu hook install and remove: the snippet of the node, and the hookscript of VMs."""
from __future__ import annotations

import os

import pytest

HOOK = "local:snippets/pve-gpu-hook"
LINK = "var/lib/vz/snippets/pve-gpu-hook"
PROGRAM = "/usr/libexec/kvm-gpu/pve-gpu-hook"
MADE = f"make /{LINK}, a link to {PROGRAM}\n"


@pytest.fixture
def vms(lab):
    lab.pve.snippets = {"pve1": ["pve-gpu-hook"], "pve2": ["pve-gpu-hook"]}
    lab.pve.vms = {
        104: ("pve1", {"name": "a", "tags": "gpu"}), 105: ("pve2", {"name": "b", "tags": "office;gpu"}),
        106: ("pve1", {"name": "c", "tags": "gpu", "hookscript": "local:snippets/mine.pl"}),
        107: ("pve1", {"name": "d", "hookscript": HOOK})}
    return lab


def test_only_on_this_node(vms, pve_gpu):
    assert pve_gpu("hook", "install") == (0, MADE + "Nothing was changed; --yes does it.\n", "")
    assert not (vms.root / LINK).is_symlink()
    assert pve_gpu("hook", "install", "--yes") == (0, MADE, "")
    assert os.readlink(vms.root / LINK) == PROGRAM
    assert pve_gpu("hook", "install", "--yes") == (0, "Nothing to do.\n", "")


def test_for_vms_by_root(vms, pve_gpu, monkeypatch):
    said = vms.pvesh(monkeypatch)
    assert pve_gpu("hook", "install", "104", "107", "--yes") == (
        0, MADE + f"VM 104 on pve1\n    + hookscript: {HOOK}\n", "")
    assert said.read_text() == f"set|/nodes/pve1/qemu/104/config|--hookscript|{HOOK}|\n"


def test_by_tag_on_all_nodes_with_a_token(vms, pve_gpu):
    code, out, err = pve_gpu("hook", "install", "--tag", "gpu", "--yes")
    assert (code, out) == (4, MADE + "".join(
        f"VM {vm} on {node}\n    + hookscript: {HOOK}\n    only root@pam may set: hookscript\n"
        for vm, node in ((104, "pve1"), (105, "pve2"))))
    assert err.splitlines() == [
        "VM 106: has another hookscript, local:snippets/mine.pl: left as it is",
        f"as root on pve1: pvesh set /nodes/pve1/qemu/104/config --hookscript {HOOK}",
        f"as root on pve2: pvesh set /nodes/pve2/qemu/105/config --hookscript {HOOK}"]
    assert vms.pve.vms[106][1]["hookscript"] == "local:snippets/mine.pl"


def test_remove(vms, pve_gpu, monkeypatch):
    pve_gpu("hook", "install", "--yes")
    vms.pve.vms[108] = ("pve2", {"hookscript": HOOK})
    said = vms.pvesh(monkeypatch)
    assert pve_gpu("hook", "remove", "106", "107", "--yes") == (0, f"VM 107 on pve1\n    - hookscript: {HOOK}\n", "")
    assert said.read_text() == "set|/nodes/pve1/qemu/107/config|--delete|hookscript|\n"
    assert (vms.root / LINK).is_symlink()


def test_the_snippet_goes_with_its_last_vm(vms, pve_gpu, monkeypatch):
    pve_gpu("hook", "install", "--yes")
    shown = f"VM 107 on pve1\n    - hookscript: {HOOK}\n"
    gone = f"remove /{LINK}: no VM has it any more\n"
    assert pve_gpu("hook", "remove", "107") == (
        0, f"{shown}    only root@pam may set: hookscript\n{gone}Nothing was changed; --yes does it.\n", "")
    assert pve_gpu("hook", "remove", "107", "--yes").code == 4
    assert (vms.root / LINK).is_symlink()       # root has yet to take it from the VM
    vms.pvesh(monkeypatch)
    assert pve_gpu("hook", "remove", "107", "--yes") == (0, shown + gone, "")
    assert not (vms.root / LINK).is_symlink()


def test_nodes_that_are_not_ready(vms, pve_gpu):
    said = {"pve1": "storage local may hold no snippets: add them under Datacenter > Storage",
            "pve2": f"has no {HOOK}: run pve-gpu hook install there"}
    vms.pve.snippets = {"pve1": None, "pve2": []}
    code, _, err = pve_gpu("hook", "install")
    assert (code, err.splitlines()) == (4, [f"{node}: {what}" for node, what in said.items()])
    vms.pve.snippets = {"pve1": [], "pve2": []}     # this node is just getting it
    assert pve_gpu("hook", "install").err == f"pve2: {said['pve2']}\n"
    vms.pve.offline = {"pve2"}
    assert pve_gpu("hook", "install").code == 0


def test_another_file_of_that_name_stays(vms, pve_gpu):
    file = vms.root / LINK
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert pve_gpu("hook", "install") == (4, "", (
        f"pve-gpu: /{LINK}: is there and not a link to {PROGRAM}\nHint: move it away\n"))
    assert file.read_text() == "mine"


def test_no_such_vm(vms, pve_gpu):
    assert pve_gpu("hook", "remove", "999") == (2, "", (
        "pve-gpu: VM 999: no such VM in the cluster, or the token may not see it\n"))
