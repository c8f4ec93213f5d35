"""pve-gpu assign: the keys that a VM gets, what only root may set, and what stays as it was."""
from __future__ import annotations

import pytest

A16_4Q = "mapping=gpu-a16-4q,mdev=nvidia-713"
Q35 = {"name": "web", "machine": "pc-q35-9.2+pve1", "sockets": "2", "cores": "4", "memory": "16384",
       "scsi0": "local:vm-104-disk-0,size=8G"}


@pytest.fixture
def mapped(lab, pve_gpu):
    """pve1's mappings are there, and VM 104 on it."""
    assert pve_gpu("mapping", "sync", "A16-4Q", "A16-16Q", "--yes").code == 0
    lab.pve.vms[104] = ("pve1", dict(Q35))
    lab.offers()
    return lab


def config(lab):
    return lab.pve.vms[104][1]


def test_one_vgpu(mapped, pve_gpu):
    assert pve_gpu("assign", "104", "--profile", "a16-4q", "--yes") == (
        0, f"VM 104 on pve1\n    + hostpci0: {A16_4Q},pcie=1\n", "")
    assert config(mapped) == {**Q35, "hostpci0": f"{A16_4Q},pcie=1"}
    assert pve_gpu("assign", "104", "--profile", "A16-4Q", "--yes") == (0, "Nothing to do.\n", "")


def test_nothing_is_changed_before_it_was_shown(mapped, pve_gpu):
    assert pve_gpu("assign", "104", "--profile", "A16-4Q") == (
        0, f"VM 104 on pve1\n    + hostpci0: {A16_4Q},pcie=1\nNothing was changed; --yes does it.\n", "")
    assert config(mapped) == Q35


def test_pcie_only_for_q35(mapped, pve_gpu):
    config(mapped).pop("machine")
    pve_gpu("assign", "104", "--profile", "A16-4Q", "--yes")
    assert config(mapped)["hostpci0"] == A16_4Q


def test_devices_of_others_keep_their_places(mapped, pve_gpu):
    raw, other = "0000:03:00.0,pcie=1", "mapping=fast-nic,pcie=1"
    config(mapped).update(hostpci0=raw, hostpci1="mapping=gpu-a16-8q,mdev=nvidia-714", hostpci3=other,
                          hostpci5="mapping=gpu-a16-8q,mdev=nvidia-714", tags="office;gpu-offer-vdi")
    assert pve_gpu("assign", "104", "--profile", "A16-4Q", "--cards", "2", "--yes") == (0, (
        "VM 104 on pve1\n"
        "    - hostpci1: mapping=gpu-a16-8q,mdev=nvidia-714\n"
        f"    + hostpci1: {A16_4Q},pcie=1\n"
        f"    + hostpci2: {A16_4Q},pcie=1\n"
        "    - hostpci5: mapping=gpu-a16-8q,mdev=nvidia-714\n"
        "    - tags: office;gpu-offer-vdi\n"
        "    + tags: office\n"), "")
    assert config(mapped) == {**Q35, "hostpci0": raw, "hostpci1": f"{A16_4Q},pcie=1", "hostpci2": f"{A16_4Q},pcie=1",
                              "hostpci3": other, "tags": "office"}


def test_an_offer_by_its_tag(mapped, pve_gpu):
    """The admin may use every offer: who is allowed to start with it is asked at the start."""
    config(mapped)["tags"] = "office gpu-offer-old"
    assert pve_gpu("assign", "104", "--offer", "vdi", "--yes").code == 0
    assert config(mapped) == {**Q35, "hostpci0": f"{A16_4Q},pcie=1", "tags": "office;gpu-offer-vdi"}


def test_an_offer_that_names_no_profile_gets_what_the_host_would_give(mapped, pve_gpu):
    assert pve_gpu("assign", "104", "--offer", "train", "--yes").code == 0
    kinds = [config(mapped)[key] for key in ("hostpci0", "hostpci1")]
    assert kinds == ["mapping=gpu-a16-16q,mdev=nvidia-715,pcie=1"] * 2


def test_guest_numa_and_huge_pages(mapped, pve_gpu):
    numa0 = "cpus=0-7,hostnodes=0,memory=16384,policy=bind"
    code, out, err = pve_gpu("assign", "104", "--profile", "A16-4Q", "--hugepages", "1024", "--yes")
    assert (code, out) == (4, (
        f"VM 104 on pve1\n    + hostpci0: {A16_4Q},pcie=1\n    + hugepages: 1024\n    + numa: 1\n    + numa0: {numa0}\n"
        "    only root@pam may set: hugepages\n"))
    assert err == "as root on pve1: pvesh set /nodes/pve1/qemu/104/config --hugepages 1024\n"
    assert config(mapped) == {**Q35, "hostpci0": f"{A16_4Q},pcie=1", "numa": "1", "numa0": numa0}


def test_root_of_a_node_sets_huge_pages_itself(mapped, pve_gpu, monkeypatch):
    said = mapped.pvesh(monkeypatch)
    code, out, err = pve_gpu("assign", "104", "--profile", "A16-4Q", "--hugepages", "2", "--yes")
    assert (code, err, "only root" in out) == (0, "", False)
    assert said.read_text() == "set|/nodes/pve1/qemu/104/config|--hugepages|2|\n"


def test_a_host_node_that_the_admin_chose(mapped, pve_gpu):
    assert pve_gpu("assign", "104", "--profile", "A16-4Q", "--numa", "--host-node", "1", "--yes").code == 0
    assert config(mapped)["numa0"] == "cpus=0-7,hostnodes=1,memory=16384,policy=bind"


def test_a_raw_device_stays(mapped, pve_gpu):
    config(mapped)["hostpci0"] = "0000:25:00.4,mdev=nvidia-713"
    assert pve_gpu("assign", "104", "--profile", "A16-4Q", "--yes").code == 0
    assert (config(mapped)["hostpci0"], config(mapped)["hostpci1"]) == (
        "0000:25:00.4,mdev=nvidia-713", f"{A16_4Q},pcie=1")


def test_a_running_vm_gets_it_at_its_next_start(mapped, pve_gpu):
    mapped.pve.running.add(104)
    assert pve_gpu("assign", "104", "--profile", "A16-4Q").out.startswith(
        "VM 104 on pve1, which runs: from its next start on\n")


@pytest.mark.parametrize(("before", "argv", "code", "message"), [
    ({}, ("--profile", "A16-99Q"), 2,
     "no board of this host has the profile A16-99Q as it is now\nHint: kvm-gpu capacity"),
    ({}, ("--offer", "none"), 2, "no offer 'none' on this host\nHint: offers: train, vdi"),
    ({}, ("--profile", "A16-4Q", "--cards", "17"), 2, "VM '104': wants[0].cards: 17 is not between 1 and 16"),
    ({"hostpci3": "0000:03:00"}, ("--profile", "A16-4Q", "--cards", "16"), 2,
     "16 devices, but only 15 of the VM's 16 are free"),
    ({"numa1": "cpus=4-7,memory=8192"}, ("--profile", "A16-4Q", "--numa"), 2,
     "VM 104: has NUMA nodes of its own: numa1\nHint: remove them, or leave out --numa and --hugepages"),
    ({"memory": "current=1000"}, ("--profile", "A16-4Q", "--hugepages", "1024"), 2,
     "1000 MiB is no multiple of 1024 MiB"),
    ({"memory": "999424"}, ("--profile", "A16-4Q", "--numa"), 3, None),
])
def test_wishes_that_cannot_be(mapped, pve_gpu, before, argv, code, message):
    config(mapped).update(before)
    found = pve_gpu("assign", "104", *argv, "--yes")
    assert (found.code, found.out) == (code, "")
    assert found.err == f"pve-gpu: {message}\n" if message else "no NUMA node" in found.err or "refused" in found.err
    assert config(mapped) == {**Q35, **before}


def test_a_vm_that_is_not_here(mapped, pve_gpu):
    mapped.pve.vms[105] = ("pve2", dict(Q35))
    assert pve_gpu("assign", "105", "--profile", "A16-4Q", "--yes") == (2, "", (
        "pve-gpu: VM 105: is on pve2\nHint: run it there: only a node knows its own boards\n"))
    assert pve_gpu("assign", "106", "--profile", "A16-4Q", "--yes") == (2, "", (
        "pve-gpu: VM 106: no such VM in the cluster, or the token may not see it\n"))


def test_without_the_mapping(lab, pve_gpu):
    lab.pve.vms[104] = ("pve1", dict(Q35))
    assert pve_gpu("assign", "104", "--profile", "A16-4Q", "--yes") == (2, "", (
        "pve-gpu: no mapping gpu-a16-4q on pve1\nHint: pve-gpu mapping sync\n"))
