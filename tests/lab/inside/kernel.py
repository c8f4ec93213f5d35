"""What the lab's kernel shows, read without kvm_gpu: tests verify with the kernel, not with ourselves."""
from __future__ import annotations

import os
import re
from errno import EBUSY
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
MDEVS = Path("/sys/bus/mdev/devices")
NODES = Path("/sys/devices/system/node")

# The cards, as machine.py puts them and init gives them drivers. NVMe disks, whose VFs are plain:
PLAIN = {0: "0000:21:00.0", 1: "0000:61:00.0"}
VFIO_CARD = "0000:24:00.0"      # node 0: its VFs have NVIDIA's vendor VFIO files
MDEV_CARD = "0000:64:00.0"      # node 1: its VFs are mdev parents
DISPLAY = ("0000:27:00.0", "0000:27:00.1")      # node 0: one card of two functions in one IOMMU group
CARDS = (*PLAIN.values(), VFIO_CARD, MDEV_CARD)


# ---- devices -----------------------------------------------------------------------------------------

def read(path: Path | str) -> str:
    return Path(path).read_text().strip()


def write(path: Path | str, text: str) -> None:
    """As an administrator's echo; OSError as the kernel gives it."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode() + b"\n")
    finally:
        os.close(descriptor)


def numvfs(card: str) -> str:
    return read(DEVICES / card / "sriov_numvfs")


def make_vfs(card: str, number: int) -> None:
    write(DEVICES / card / "sriov_numvfs", str(number))


def vfs(card: str) -> list[str]:
    return sorted(link.readlink().name for link in (DEVICES / card).glob("virtfn*"))


def vf(card: str) -> str:
    """The first one."""
    return vfs(card)[0]


def driver(function: str) -> str | None:
    link = DEVICES / function / "driver"
    return link.readlink().name if link.is_symlink() else None


def group(function: str) -> str:
    return (DEVICES / function / "iommu_group").readlink().name


def group_of_mdev(uuid: str) -> str:
    return (MDEVS / uuid / "iommu_group").readlink().name


def group_members(function: str) -> list[str]:
    return sorted(path.name for path in (DEVICES / function / "iommu_group/devices").iterdir())


def is_busy(group: str) -> bool:
    """Whether the kernel refuses the VFIO group to one more user."""
    try:
        os.close(os.open(f"/dev/vfio/{group}", os.O_RDWR))
    except OSError as error:
        if error.errno == EBUSY:
            return True
        raise
    return False


def mdevs() -> list[str]:
    return sorted(path.name for path in MDEVS.iterdir())


def available(parent: str, type_id: str) -> int:
    [folder] = Path(f"/sys/class/mdev_bus/{parent}/mdev_supported_types").glob(f"*-{type_id}")
    return int(read(folder / "available_instances"))


def free_pages(node: int) -> int:
    return int(read(NODES / f"node{node}/hugepages/hugepages-2048kB/free_hugepages"))


def state() -> dict[str, str]:
    """All that a start may change, of every function and mdev there is."""
    found = {f"pages of node {node}": str(free_pages(node)) for node in (0, 1)}
    found.update((f"mdev {path.name}", str(path.readlink().parent.name)) for path in MDEVS.iterdir())
    for path in sorted(DEVICES.iterdir()):
        found[f"driver of {path.name}"] = str(driver(path.name))
        for name in ("driver_override", "sriov_numvfs", "nvidia/current_vgpu_type"):
            if (path / name).exists():
                found[f"{path.name}/{name}"] = read(path / name)
    return found


# ---- processes ---------------------------------------------------------------------------------------

def opened(pid: int) -> tuple[list[str], int]:
    """(groups of which the process has /dev/vfio/N open, number of VFIO devices that it has open)."""
    targets = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    groups = [target.removeprefix("/dev/vfio/") for target in targets if re.fullmatch(r"/dev/vfio/\d+", target)]
    return sorted(groups), targets.count("anon_inode:[vfio-device]")


def vcpus(pid: int) -> dict[int, str]:
    """CPUs on which the kernel lets each vCPU thread run."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = re.fullmatch(r"CPU (\d+)/KVM", read(task / "comm"))
        if name:
            found[int(name[1])] = status(task, "Cpus_allowed_list")
    return found


def allowed(pid: int) -> set[tuple[str, str]]:
    """(CPUs, memory nodes) to which the kernel holds its threads."""
    return {(status(task, "Cpus_allowed_list"), status(task, "Mems_allowed_list"))
            for task in Path(f"/proc/{pid}/task").iterdir()}


def status(process: Path, field: str) -> str:
    lines = (line.partition(":") for line in read(process / "status").splitlines())
    return next(value.strip() for name, _, value in lines if name == field)


def guest_memory(pid: int) -> tuple[str, dict[int, int]]:
    """How the guest's huge pages are bound, and how many are on which node. Reads numa_maps."""
    [line] = [line for line in read(f"/proc/{pid}/numa_maps").splitlines() if " huge " in line]
    pages = {int(node): int(number) for node, number in re.findall(r"\bN(\d+)=(\d+)", line)}
    return line.split()[1], pages
