"""The lab's host: libvirt up, cards made ours by configuration, and every test gives back what it took."""
from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import guests, kernel, ours

# Who is in its group may use libvirt; there is no polkit to ask.
LIBVIRTD = """\
unix_sock_group = "libvirt"
unix_sock_rw_perms = "0770"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""

collect_ignore = [] if os.environ.get("LAB_BOOT") == "2" else ["test_after_reboot.py"]


@pytest.fixture(scope="session", autouse=True)
def host() -> None:
    """libvirt runs with its defaults, whatever the machine outside has, and each SR-IOV card has two VFs: what a
    service of the driver's does at boot."""
    ours.configure()
    for card in kernel.CARDS:
        kernel.make_vfs(card, 2)
    Path("/etc/libvirt/qemu.conf").write_text("")
    Path("/etc/libvirt/libvirtd.conf").write_text(LIBVIRTD)
    subprocess.run(["virtlogd", "-d"], check=True)
    subprocess.run(["libvirtd", "-d"], check=True)
    guests.wait_for(Path("/run/libvirt/libvirt-sock").exists)


@pytest.fixture(autouse=True)
def all_given_back(host: None) -> Iterator[None]:
    """When its VMs have ended, kernel and ledger are as before the test."""
    before = kernel.state()
    assert ours.claims() == []
    yield
    guests.destroy_all()
    for vm, _ in ours.claims():
        ours.run("release", "--vm", vm)
    assert (kernel.state(), ours.claims()) == (before, [])
