"""A device inside a VM, and a device that we hold: who comes second is turned away at once, and nothing waits.

Without the guard the kernel would make each of these writers wait for the end of the VM, in state D.
"""
from __future__ import annotations

import pytest

from kvm_gpu.apply import InUse, apply, undo
from kvm_gpu.inuse import Kept
from kvm_gpu.model import Attribute, Driver, Mdev
from kvm_gpu.sysfs import Sysfs
from tests.lab.inside import guests, kernel, ours

CARD = kernel.PLAIN[0]
NUMVFS = f"/sys/bus/pci/devices/{CARD}/sriov_numvfs"


def test_a_vf_inside_a_vm() -> None:
    """The VM is not one of ours: its XML has the VF by hand."""
    vf, other = kernel.vfs(CARD)
    assert guests.create(guests.domain("foreign", hostdev=vf)).returncode == 0
    assert kernel.is_busy(kernel.group(vf))
    for action in (Attribute(NUMVFS, "0", before="2", through="0"), Attribute(NUMVFS, "4", before="2", through="0"),
                   Driver(vf, None, before="vfio-pci"), Driver(CARD, "vfio-pci", before="nvme")):
        with pytest.raises(InUse, match=f"^{vf}: a VM has it open"):
            apply(Sysfs(), (action,))
    assert (kernel.numvfs(CARD), kernel.driver(vf), kernel.driver(CARD)) == ("2", "vfio-pci", "nvme")
    assert kernel.opened(guests.pid("foreign")) == ([kernel.group(vf)], 1)

    ours.run("cordon", kernel.PLAIN[1])
    refused = ours.run("claim", "--vm", "late", "--mechanism", "whole", "--model", "lab")
    assert (refused.code, ours.claims()) == (3, [])
    assert f"{CARD}: " in refused.err
    given = ours.run("--json", "claim", "--vm", "late", "--mechanism", "vf").json
    assert [slot["slot"] for slot in given["slots"]] == [other]
    ours.run("uncordon", kernel.PLAIN[1])


def test_an_mdev_inside_a_vm() -> None:
    xml = ours.inject("mdev", guests.domain("mdev"), "--mechanism", "mdev", "--profile", "LAB-1Q")
    assert guests.create(xml).returncode == 0
    [uuid] = kernel.mdevs()
    group = kernel.group_of_mdev(uuid)
    assert kernel.is_busy(group)
    kind = f"/sys/bus/pci/devices/{kernel.vf(kernel.MDEV_CARD)}/mdev_supported_types/nvidia-901"
    with pytest.raises(InUse, match=f"^{uuid}: a VM has it open"):
        undo(Sysfs(), (Mdev(uuid, kind),))
    [said] = ours.run("--json", "release", "--vm", "mdev").json["done"]
    assert said == f"VM mdev: releasing, still in use: {uuid}: a VM has it open (VFIO group {group})"
    assert (kernel.mdevs(), ours.claims()) == ([uuid], [("mdev", "releasing")])
    guests.virsh("destroy", "mdev")
    assert ours.reconcile() == ["VM mdev: released"]
    assert kernel.mdevs() == []


def test_no_vm_starts_on_what_we_hold() -> None:
    xml = ours.inject("vf", guests.domain("vf"), "--mechanism", "vf")
    [vf] = ours.slots("vf")
    apply(Sysfs(), (Driver(vf, "vfio-pci", before=None),))      # before libvirt does: else there is no group to hold
    with Kept(Sysfs(), (f"/sys/bus/pci/devices/{vf}",)):
        created = guests.create(xml)
    assert created.returncode == 1
    assert b"Device or resource busy" in created.stderr
    undo(Sysfs(), (Driver(vf, "vfio-pci", before=None),))
    assert guests.create(xml).returncode == 0
