"""What a host file says: kinds of cards, where they sit, nodes and CPUs. No behaviour."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvm_gpu.cpulist import format_cpus, parse_cpus


@dataclass(frozen=True)
class Sriov:
    total: int
    id: str
    offset: int = 1
    stride: int = 1
    driver: str | None = None       # binds to a VF of its own accord
    bars: Mapping[int, str] = field(default_factory=dict)
    at_load: int = 0                # VFs that the PF's driver makes when it loads
    subsystem: str | None = None    # None: the PF's


@dataclass(frozen=True)
class VgpuType:
    id: int
    name: str
    fb_mb: int
    max_instance: int
    slices: int = 0                 # compute slices of the GPU instance behind it; 0: time-sliced
    per_instance: int = 1           # how many share one GPU instance


@dataclass(frozen=True)
class ShareType:
    """An mdev type that is a share of one total: GVT-g, mtty."""
    suffix: str
    name: str
    units: int
    description: str = ""


@dataclass(frozen=True)
class Kind:
    """One PCI function as its maker built it, with those beside it in the slot."""
    id: str                         # vendor:device
    pci_class: int
    driver: str | None = None       # binds to it of its own accord
    subsystem: str = "0000:0000"
    bars: Mapping[int, str] = field(default_factory=dict)    # BAR number -> "16M", "256M p" (64-bit prefetchable)
    functions: tuple[Kind, ...] = ()
    sriov: Sriov | None = None
    brand: str = "NVIDIA"           # first word of its vGPU types' names
    vgpu_types: tuple[VgpuType, ...] = ()
    shares: tuple[ShareType, ...] = ()
    units: int = 0                  # total of `shares`
    table: str | None = None        # its key in /etc/kvm-gpu/vgpu-types.json; None: not written there
    vram_mb: int = 0                # memory that xe shares out among its VFs
    reset_method: str = "flr bus"   # empty: none


@dataclass(frozen=True)
class Card:
    """One kind at one place. What is set here differs from what a board of its kind would say."""
    kind: Kind
    at: str
    path: str                       # root complex and bridges: "pci0000:40/0000:40:01.1"
    node: int = -1
    local_cpulist: str | None = None
    group: int | None = None        # IOMMU group of all its functions; None: a new one for the card
    slot: str | None = None         # label in /sys/bus/pci/slots
    serial: str | None = None       # Device Serial Number capability, "00-11-22-33-44-55-66-77"
    boot_vga: bool = False
    vfs: int = 0                    # enabled by the operator after boot
    fails: Mapping[str, str] = field(default_factory=dict)   # attribute -> errno of its read
    alias: Mapping[int, str] = field(default_factory=dict)   # vf_index -> what its mdev types' folders begin with


@dataclass(frozen=True)
class Bridge:
    node: int | None = None         # None: that of the first card below it
    group: int | None = None        # IOMMU group; None: one of its own


@dataclass(frozen=True)
class NodeSpec:
    cpus: str
    mem_mib: int
    pages: Mapping[int, int] = field(default_factory=dict)          # KiB -> number
    free_pages: Mapping[int, int] = field(default_factory=dict)     # KiB -> number; absent: all
    distances: tuple[int, ...] = ()
    package: int | None = None


@dataclass(frozen=True)
class Machine:
    name: str
    nodes: Mapping[int, NodeSpec]
    cards: tuple[Card, ...]
    smt_offset: int = 0                     # CPU n and n + offset are siblings; 0: no SMT
    vgpu: str | None = None                 # how the NVIDIA driver serves vGPUs: "mdev", "vfio"; None: it does not
    iommu: bool = True
    bridges: Mapping[str, Bridge] = field(default_factory=dict)     # what a bridge says for itself
    cgroups: Mapping[str, str] = field(default_factory=dict)    # "" or "machine.slice" -> cpuset.cpus.effective
    isolated: str = ""
    mtty: tuple[ShareType, ...] = ()        # types of the kernel's sample driver mtty
    mtty_ports: int = 24
    setup: tuple[tuple[str, str], ...] = ()     # writes by the operator after boot: path, value

    @property
    def all_cpus(self) -> str:
        return format_cpus(tuple(cpu for node in self.nodes.values() for cpu in parse_cpus(node.cpus)))

    @property
    def reserved_groups(self) -> frozenset[int]:
        said = [card.group for card in self.cards] + [bridge.group for bridge in self.bridges.values()]
        return frozenset(group for group in said if group is not None)

    def siblings(self, cpu: int) -> tuple[int, ...]:
        if not self.smt_offset:
            return (cpu,)
        first = cpu % self.smt_offset
        return first, first + self.smt_offset
