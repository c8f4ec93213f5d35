"""The lab's hardware as QEMU arguments: a server with two NUMA nodes, an IOMMU, four SR-IOV cards and a plain one.

    node 0: CPUs 0-3   0000:21:00.0, 0000:24:00.0 SR-IOV; 0000:27:00.0 and .1 display and audio, in one IOMMU group
    node 1: CPUs 4-7   0000:61:00.0, 0000:64:00.0 SR-IOV

QEMU 7.2 has SR-IOV for NVMe alone, so that is what the cards are; `init` says which drivers take them.
"""
from __future__ import annotations

from pathlib import Path

QEMU = "qemu-system-x86_64"
NODE_MIB = 1536
NEEDS_MIB = 2 * NODE_MIB + 512
VFS = 4         # that a card can have at most
# no_timer_check: on a busy machine outside, the kernel would take a tick that comes late for a broken timer.
KERNEL = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check intel_iommu=on pci=realloc"


def arguments() -> list[str]:
    """One thread emulates all CPUs: with more, QEMU 7.2 dies now and then while BARs move. The CPU has AMD's SVM,
    which QEMU emulates, so that there is KVM in the lab."""
    host = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
            "-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,la57=off",
            "-m", str(2 * NODE_MIB), "-smp", "8,sockets=2,cores=2,threads=2",
            "-device", "intel-iommu,intremap=on,caching-mode=on", "-device", "virtio-serial-pci,bus=pcie.0"]
    return host + _node(0) + _node(1) + _port(9, 0) + [
        "-device", "bochs-display,bus=port9,addr=0.0,multifunction=on", "-device", "intel-hda,bus=port9,addr=0.1"]


def _node(node: int) -> list[str]:
    first = 4 * node
    return ["-object", f"memory-backend-ram,id=ram{node},size={NODE_MIB}M",
            "-numa", f"node,nodeid={node},memdev=ram{node},cpus={first}-{first + 3}",
            "-device", f"pxb-pcie,id=node{node},bus=pcie.0,bus_nr={0x20 + 0x40 * node},numa_node={node}",
            *_card(2 * node, node), *_card(2 * node + 1, node)]


def _card(number: int, node: int) -> list[str]:
    return [*_port(number, node), "-device", f"nvme-subsys,id=subsys{number}", "-device",
            f"nvme,serial=GPU{number},bus=port{number},subsys=subsys{number},sriov_max_vfs={VFS},"
            f"sriov_vq_flexible={2 * VFS},sriov_vi_flexible={VFS},max_ioqpairs={2 * VFS + 2},msix_qsize={VFS + 3}"]


def _port(number: int, node: int) -> list[str]:
    return ["-device", f"pcie-root-port,id=port{number},bus=node{node},chassis={number + 1},slot={number + 1},"
                       "mem-reserve=4M,bus-reserve=2"]


def share(tag: str, path: Path, readonly: bool = False) -> list[str]:
    """A folder of this machine, for the lab to mount over 9p by its tag."""
    return ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap"
                      + (",readonly=on" if readonly else ""),
            "-device", f"virtio-9p-pci,bus=pcie.0,fsdev={tag},mount_tag={tag}"]


def disk(path: Path) -> list[str]:
    return ["-drive", f"if=none,id=disk,file={path},format=raw,cache=unsafe",
            "-device", "virtio-blk-pci,bus=pcie.0,drive=disk"]


def stream(name: str, descriptor: int) -> list[str]:
    """A port of the lab that writes to an open descriptor of ours."""
    return ["-chardev", f"file,id={name},path=/dev/fd/{descriptor},append=on",
            "-device", f"virtserialport,chardev={name},name=lab.{name}"]
