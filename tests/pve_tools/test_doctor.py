"""pve-gpu doctor: each thing that is wrong, and a cluster where nothing is."""
from __future__ import annotations

import pytest

HOOK = "local:snippets/pve-gpu-hook"
PROGRAM = "/usr/libexec/kvm-gpu/pve-gpu-hook"
GUEST = {"hostpci0": "mapping=gpu-a16-4q,mdev=nvidia-713", "hookscript": HOOK}


@pytest.fixture
def well(lab, pve_gpu):
    """A cluster of one node with all that belongs to it."""
    del lab.pve.nodes["pve2"]
    program = lab.root / PROGRAM.lstrip("/")
    timer = lab.root / "etc/systemd/system/timers.target.wants/kvm-gpu-reconcile.timer"
    for file in (program, timer):
        file.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    timer.symlink_to("/lib/systemd/system/kvm-gpu-reconcile.timer")
    pve_gpu("hook", "install", "--yes")
    pve_gpu("mapping", "sync", "A16-4Q", "--yes")
    lab.pve.snippets = {"pve1": ["pve-gpu-hook"]}
    lab.pve.vms = {104: ("pve1", dict(GUEST)), 105: ("pve1", {"hostpci0": "0000:03:00.0"})}
    return lab


def test_nothing_is_wrong(well, pve_gpu):
    assert pve_gpu("doctor") == (0, "Nothing is wrong.\n", "")


def one(lab, name):
    """One thing goes wrong."""
    config = lab.pve.vms[104][1]
    entries = lab.pve.mappings["gpu-a16-4q"]["map"]
    if name == "program":
        (lab.root / PROGRAM.lstrip("/")).unlink()
    elif name == "link":
        (lab.root / "var/lib/vz/snippets/pve-gpu-hook").unlink()
    elif name == "timer":
        (lab.root / "etc/systemd/system/timers.target.wants/kvm-gpu-reconcile.timer").unlink()
    elif name == "mapping":
        entries.append(entries[0].replace("0000:25:00.4", "0000:99:00.4"))
    elif name == "device":
        entries.pop()
    elif name == "snippet":
        lab.pve.snippets = {"pve1": []}
    elif name == "storage":
        lab.pve.snippets = {"pve1": None}
    elif name == "hookscript":
        config.pop("hookscript")
    elif name == "mdev":
        config["hostpci0"] = "mapping=gpu-a16-4q"


@pytest.mark.parametrize(("name", "said"), [
    ("program", f"pve1: {PROGRAM} is not there: no VM with the hook starts\n    install the package pve-gpu-hook\n"),
    ("link", "pve1: /var/lib/vz/snippets/pve-gpu-hook is no link to it\n    pve-gpu hook install\n"),
    ("timer", "pve1: GPUs of failed starts are not freed until somebody needs them\n"
              "    systemctl enable --now kvm-gpu-reconcile.timer\n"),
    ("mapping", "pve1: mapping gpu-a16-4q: no VM with it starts: Invalid configuration: pci device '0000:99:00.4' not "
                "found\n    pve-gpu mapping sync\n"
                "pve1: mappings that do not list the devices that there are: gpu-a16-4q\n    pve-gpu mapping sync\n"),
    ("device", "pve1: mappings that do not list the devices that there are: gpu-a16-4q\n    pve-gpu mapping sync\n"),
    ("snippet", f"pve1: has no {HOOK}: run pve-gpu hook install there\n"),
    ("storage", "pve1: storage local may hold no snippets: add them under Datacenter > Storage\n"),
    ("hookscript", "VM 104 on pve1: has a GPU without the hook: Proxmox VE takes any free device, on any NUMA node\n"
                   "    pve-gpu hook install 104\n"),
    ("mdev", "VM 104 on pve1: hostpci0 has no MDev Type: the VM does not start\n"
             "    choose the one that mapping gpu-a16-4q names, under Hardware\n"),
])
def test_what_is_wrong(well, pve_gpu, name, said):
    one(well, name)
    assert pve_gpu("doctor") == (4, said, "")


def test_without_iommu(well, pve_gpu):
    well.pve.iommu = False
    code, out, _ = pve_gpu("doctor")
    assert code == 4
    assert "pve1: 0000:25:00.4 is in no mapping: is in no IOMMU group (is the IOMMU switched on?)" in out.splitlines()
    assert "pve1: mapping gpu-a16-4q: none of its devices on pve1 is there" in out.splitlines()
