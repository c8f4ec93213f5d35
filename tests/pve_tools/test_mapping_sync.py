"""pve-gpu mapping sync: what it shows, what it writes, and that the node itself finds nothing wrong with it."""
from __future__ import annotations

import pytest

A16_4Q = "A16-4Q, 4096 MiB: choose MDev Type nvidia-713. Kept by pve-gpu."
RTX6000 = "rtx6000, 24576 MiB. Kept by pve-gpu."
VFS = [f"0000:{bus}:{vf}" for bus in (25, 26, 27, 28) for vf in (
    "00.4", "00.5", "00.6", "00.7", "01.0", "01.1", "01.2", "01.3", "01.4", "01.5", "01.6", "01.7", "02.0", "02.1",
    "02.2", "02.3")]
CARDS = ["0000:3b:00", "0000:5e:00", "0000:af:00", "0000:d8:00"]
OTHERS = "id=10de:25b6,iommugroup=7,node=pve3,path=0000:41:00.4,description=left by hand"


def entry(lab, node, path):
    """As Proxmox VE's own GUI writes it."""
    device = lab.node(node) / "sys/bus/pci/devices" / (path if "." in path else path + ".0")
    said = {name: (device / name).read_text().strip()[2:] for name in (
        "vendor", "device", "subsystem_vendor", "subsystem_device")}
    return (f"id={said['vendor']}:{said['device']},iommugroup={group_of(lab, node, device.name)},node={node},"
            f"path={path},subsystem-id={said['subsystem_vendor']}:{said['subsystem_device']}")


def group_of(lab, node, address):
    return int((lab.node(node) / "sys/bus/pci/devices" / address / "iommu_group").readlink().name)


def a16_4q(lab, *without):
    return {"description": A16_4Q, "mdev": "1",
            "map": [entry(lab, "pve1", path) for path in VFS if path not in without]}


def checks(lab, node):
    return {row["id"]: row["checks"] for row in lab.pve.list_mappings(**{"check-node": node})}


def on(lab, node, monkeypatch):
    monkeypatch.setenv("KVM_GPU_ROOT", str(lab.node(node)))


def test_vgpus(lab, pve_gpu):
    assert pve_gpu("mapping", "sync", "a16-4q", "--yes") == (0, (
        f"create mapping gpu-a16-4q: {A16_4Q}\n    + 64 devices, 0000:25:00.4 to 0000:28:02.3\n"), "")
    assert lab.pve.mappings == {"gpu-a16-4q": a16_4q(lab)}
    assert checks(lab, "pve1") == {"gpu-a16-4q": []}


def test_whole_cards_with_all_their_functions(lab, pve_gpu, monkeypatch):
    on(lab, "pve2", monkeypatch)
    code, out, err = pve_gpu("mapping", "sync", "--yes")
    assert (code, out) == (0, f"create mapping gpu-rtx6000: {RTX6000}\n" + "".join(
        f"    + {path}  id 10de:1e30, IOMMU group {group_of(lab, 'pve2', path + '.0')}\n" for path in CARDS))
    assert err.splitlines() == ["0000:03:00.0 is left out: the console is on it (boot_vga); list its address under "
                                "`devices` to give it all the same"]
    assert lab.pve.mappings == {"gpu-rtx6000": {
        "description": RTX6000, "mdev": "0", "map": [entry(lab, "pve2", path) for path in CARDS]}}
    assert checks(lab, "pve2") == {"gpu-rtx6000": []}


@pytest.mark.parametrize(("name", "id", "mdev_type"), [
    ("t4-mdev", "gpu-t4-4q", "nvidia-232"), ("flex170", "gpu-flex170-vf", None)])
def test_every_profile_of_other_machines(make_lab, pve_gpu, name, id, mdev_type):
    lab = make_lab(pve1=name)
    assert pve_gpu("mapping", "sync", "--yes")[0] == 0
    mapping = lab.pve.mappings[id]
    assert (mapping["mdev"], f"MDev Type {mdev_type}" in mapping["description"]) == (
        ("1", True) if mdev_type else ("0", False))
    assert {id: messages for id, messages in checks(lab, "pve1").items() if messages} == {}


def test_nothing_is_changed_before_it_was_shown(lab, pve_gpu):
    code, out, _ = pve_gpu("mapping", "sync", "A16-4Q")
    assert (code, out.splitlines()[-1]) == (0, "Nothing was changed; --yes does it.")
    assert lab.pve.mappings == {}
    assert {method for method, _ in lab.pve.calls} == {"GET"}


def test_again_there_is_nothing_to_do(lab, pve_gpu):
    pve_gpu("mapping", "sync", "--yes")
    before, lab.pve.calls[:] = dict(lab.pve.mappings), []
    assert pve_gpu("mapping", "sync", "--yes") == (0, "Nothing to do.\n", "")
    assert (lab.pve.mappings, {method for method, _ in lab.pve.calls}) == (before, {"GET"})


def test_devices_of_other_nodes_stay_to_the_letter(lab, pve_gpu):
    lab.pve.mappings["gpu-a16-4q"] = {"description": A16_4Q, "mdev": "1", "live-migration-capable": "1",
                                      "map": [OTHERS]}
    assert pve_gpu("mapping", "sync", "A16-4Q", "--yes").code == 0
    assert lab.pve.mappings["gpu-a16-4q"] == {
        **a16_4q(lab), "live-migration-capable": "1", "map": [OTHERS, *a16_4q(lab)["map"]]}


def test_what_is_gone_and_what_has_another_group(lab, pve_gpu):
    old = a16_4q(lab, "0000:26:00.4")
    groups = [group_of(lab, "pve1", address) for address in ("0000:25:00.4", "0000:25:00.5", "0000:26:00.4")]
    old["map"][0] = old["map"][0].replace(f"iommugroup={groups[0]},", "iommugroup=99,")
    old["map"].append(old["map"][1].replace("0000:25:00.5", "0000:99:00.4"))
    lab.pve.mappings["gpu-a16-4q"] = old
    assert pve_gpu("mapping", "sync", "A16-4Q", "--yes").out == (
        "change mapping gpu-a16-4q\n"
        "    - 0000:25:00.4  id 10de:25b6, IOMMU group 99\n"
        f"    - 0000:99:00.4  id 10de:25b6, IOMMU group {groups[1]}\n"
        f"    + 0000:25:00.4  id 10de:25b6, IOMMU group {groups[0]}\n"
        f"    + 0000:26:00.4  id 10de:25b6, IOMMU group {groups[2]}\n")
    assert lab.pve.mappings["gpu-a16-4q"] == a16_4q(lab)


def test_a_mapping_of_which_nothing_is_left(lab, pve_gpu):
    own = entry(lab, "pve1", "0000:25:00.4")
    lab.pve.mappings["gpu-a16-99q"] = {"description": "A16-99Q. Kept by pve-gpu.", "mdev": "1", "map": [own]}
    lab.pve.mappings["gpu-a16-98q"] = {"description": "A16-98Q. Kept by pve-gpu.", "mdev": "1", "map": [own, OTHERS]}
    lines = pve_gpu("mapping", "sync", "--yes").out.splitlines()
    assert "remove mapping gpu-a16-99q" in lines
    assert lines[lines.index("change mapping gpu-a16-98q") + 1].startswith("    - 0000:25:00.4 ")
    assert "gpu-a16-99q" not in lab.pve.mappings
    assert lab.pve.mappings["gpu-a16-98q"]["map"] == [OTHERS]


@pytest.mark.parametrize("id", ["gpu-a16-4q", "gpu-office", "office"])
def test_a_mapping_that_somebody_else_made_stays(lab, pve_gpu, id):
    mine = {"description": "mine", "map": ["id=10de:1111,node=pve1,path=0000:99:00.4"]}
    lab.pve.mappings[id] = dict(mine)
    code, _, err = pve_gpu("mapping", "sync", "A16-4Q", "--yes") if id == "gpu-a16-4q" else pve_gpu(
        "mapping", "sync", "--yes")
    assert (code, err) == ((4, "mapping gpu-a16-4q: was not made by pve-gpu, and stays as it is\n")
                           if id == "gpu-a16-4q" else (0, ""))
    assert lab.pve.mappings[id] == mine


def test_a_profile_that_the_node_has_not(lab, pve_gpu):
    assert pve_gpu("mapping", "sync", "T4-4Q", "--yes") == (4, "Nothing to do.\n", "T4-4Q: nothing of it on pve1\n")


# ---- at boot ---------------------------------------------------------------------------------------

def test_refresh_makes_no_mapping(lab, pve_gpu):
    assert pve_gpu("mapping", "sync", "--refresh", "--yes") == (0, "Nothing to do.\n", "")
    assert lab.pve.mappings == {}


def test_refresh_renews_what_there_is(lab, pve_gpu):
    lab.pve.mappings["gpu-a16-4q"] = a16_4q(lab, "0000:28:02.3")
    assert pve_gpu("mapping", "sync", "--refresh", "--yes").code == 0
    assert lab.pve.mappings == {"gpu-a16-4q": a16_4q(lab)}


def test_refresh_removes_no_mapping_whose_vfs_are_late(make_lab, pve_gpu):
    lab = make_lab(pve1="rtx6000x4")
    own = "id=10de:25b6,iommugroup=9,node=pve1,path=0000:25:00.4,subsystem-id=10de:14a9"
    late = {"description": A16_4Q, "mdev": "1", "map": [OTHERS, own]}
    lab.pve.mappings["gpu-a16-4q"] = {**late, "map": list(late["map"])}
    code, out, err = pve_gpu("mapping", "sync", "--refresh", "--yes")
    assert (code, out) == (4, "Nothing to do.\n")
    assert "mapping gpu-a16-4q: none of its devices on pve1 is there" in err.splitlines()
    assert lab.pve.mappings == {"gpu-a16-4q": late}


# ---- others at work --------------------------------------------------------------------------------

def test_another_node_writes_at_the_same_time(lab, pve_gpu):
    lab.pve.mappings["gpu-a16-4q"] = a16_4q(lab, "0000:28:02.3")
    lab.pve.before_write = lambda: lab.pve.mappings["gpu-a16-4q"]["map"].append(OTHERS)
    assert pve_gpu("mapping", "sync", "A16-4Q", "--yes").code == 0
    assert lab.pve.mappings["gpu-a16-4q"]["map"] == [OTHERS, *a16_4q(lab)["map"]]
    assert [path for method, path in lab.pve.calls if method == "PUT"] == ["cluster/mapping/pci/gpu-a16-4q"] * 2


def test_another_node_creates_it_at_the_same_time(lab, pve_gpu):
    other = {"description": A16_4Q, "mdev": "1", "map": [OTHERS]}
    lab.pve.before_write = lambda: lab.pve.mappings.update({"gpu-a16-4q": other})
    assert pve_gpu("mapping", "sync", "A16-4Q", "--yes").code == 0
    assert lab.pve.mappings == {"gpu-a16-4q": {**a16_4q(lab), "map": [OTHERS, *a16_4q(lab)["map"]]}}


def test_a_node_without_iommu(lab, pve_gpu):
    lab.pve.iommu = False
    code, out, err = pve_gpu("mapping", "sync", "A16-4Q", "--yes")
    assert (code, out) == (4, "Nothing to do.\n")
    assert err.splitlines() == [f"{vf} is left out: is in no IOMMU group (is the IOMMU switched on?)" for vf in VFS] + [
        "A16-4Q: nothing of it on pve1"]
