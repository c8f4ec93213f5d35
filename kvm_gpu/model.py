"""Values without I/O: what there is, wanted, allowed, held, decided, and what will be done.

Unknown is None, never 0 or -1. Fields keep the kernel's attribute names; units end the name. All values
are immutable, compare by value, and consist of tuples, text, numbers and None, so that `marshal` takes them.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NamedTuple, Optional, Union

    Kind = Literal["whole", "vf", "mdev", "nvidia_vfio"]
    Strict = Literal["required", "preferred", "none"]
    CpuMode = Literal["dedicated", "shared", "none"]
    Order = Literal["pack", "spread", "keep-whole"]
    State = Literal["starting", "active", "releasing", "kept", "foreign"]
    Action = Union["Attribute", "Driver", "Mdev", "Command"]
    Stamp = tuple[tuple[str, int, int, int], ...]       # (path, mtime_ns, size, inode) of files
else:
    from kvm_gpu.light import NamedTuple

    Action = CpuMode = Kind = Order = State = Strict = object  # names for annotations, never evaluated

PciAddress = str  # canonical "0000:41:00.4", lower case; sorts as text within four-digit domains


# ---- what there is ---------------------------------------------------------------------------------

class Function(NamedTuple):
    """One PCI function. Reads vendor, device, class, driver, iommu_group, boot_vga.
    Source: Documentation/ABI/testing/sysfs-bus-pci."""
    address: PciAddress
    ids: str                        # "10de:1e30": vendor:device, lower-case hex without 0x
    pci_class: int                  # 0x030000
    driver: Optional[str]           # None: no driver bound
    iommu_group: Optional[int]      # None: IOMMU off
    boot_vga: bool = False          # the console that firmware chose


class Profile(NamedTuple):
    """A named size and where it may sit. `size` and `starts` are in units of its cell."""
    name: str                       # "A16-4Q", "flex170-vf", "rtx6000"
    type_id: Optional[str]          # numeric suffix of the vendor's type, "713"; GVT-g "V5_4"; else None
    fb_mib: Optional[int]           # frame buffer
    size: int
    starts: tuple[int, ...]         # at most len(starts) of it in the cell


class Cell(NamedTuple):
    """A part of a board with its own room: the board itself, or one MIG GPU instance."""
    name: str
    one_size: bool                  # NVIDIA's default for time-sliced vGPUs: all holders have one frame-buffer size
    profiles: tuple[Profile, ...]


class Slot(NamedTuple):
    """One place that can be taken: a whole card, a VF, an mdev parent, or the n-th mdev of a PF."""
    name: str                       # "0000:41:00.4"; "0000:3b:00.0#2" for the n-th mdev of a PF; "mtty#0"
    functions: tuple[PciAddress, ...]   # what the guest gets, .0 first; empty where the parent is not PCI
    path: str                       # folder "/sys/bus/pci/devices/0000:41:00.4": of .0, the VF or the mdev parent
    cells: tuple[str, ...]          # names of the cells it may draw from
    bar_mib: Optional[int] = None   # MiB of 64-bit prefetchable BARs that the guest has to map
    trouble: Optional[str] = None   # why this one cannot be given


class Layout(NamedTuple):
    """What a board is cut into. `known=False`: predicted, read again after applying."""
    name: str                       # "whole", "vf", ...: the mechanism's name while a board has one layout of each
    mechanism: Kind
    slots: tuple[Slot, ...]
    cells: tuple[Cell, ...]
    known: bool = True


class Board(NamedTuple):
    """One GPU with all its functions. The first of `layouts` is the present one; the others it can be given as
    while nothing on it is held."""
    address: str                    # the PF's, function .0; the parent's name where an mdev parent is not PCI
    identity: Optional[str]         # Device Serial Number, else slot label
    model: str                      # short name "rtx6000", "a16"; "10de:ffff" where the table has none
    partitioner: Optional[str]      # who can give it another layout: "sriov", "nvidia", ...; None: nobody
    numa_node: Optional[int]
    numa_source: str                # device | parent ADDRESS | cpulist | only node | unknown
    pci_path: tuple[str, ...]       # root complex first, without the device: ("pci0000:26", "0000:26:01.0")
    functions: tuple[Function, ...]
    layouts: tuple[Layout, ...]
    trouble: tuple[str, ...] = ()   # why nothing of it can be given; listed, never placed on


class Pages(NamedTuple):
    """One huge page size on one node. Reads hugepages-*/nr_hugepages, free_hugepages (numbers of pages)."""
    size_kib: int
    total: int
    free: int


class NumaNode(NamedTuple):
    id: int
    cores: tuple[tuple[int, ...], ...]  # usable CPUs, SMT siblings together; empty: a node without CPUs
    mem_mib: int                        # MemTotal
    free_mib: Optional[int]             # memory a new VM can get; None: not read
    pages: tuple[Pages, ...]
    distances: tuple[int, ...]          # SLIT row, one for each of Host.nodes in order


class Host(NamedTuple):
    boot_id: str
    nodes: tuple[NumaNode, ...]         # online, by id
    boards: tuple[Board, ...]           # by address


# ---- what is wanted --------------------------------------------------------------------------------

class Vm(NamedTuple):
    id: str                         # domain name under libvirt and OpenNebula ("one-42"), vmid under Proxmox ("104")
    user: Optional[str] = None
    groups: tuple[str, ...] = ()


class GuestNode(NamedTuple):
    """One NUMA node of the guest (the whole guest where it has no cells)."""
    id: int
    vcpus: tuple[int, ...]          # vCPU numbers
    mem_mib: int
    page_kib: Optional[int] = None  # huge page size; None: ordinary memory
    pinned: Optional[tuple[tuple[int, tuple[int, ...]], ...]] = None  # (vcpu, host CPUs) as the platform pinned them
    bound: Optional[tuple[int, ...]] = None     # host nodes to which the platform already bound its memory


class Want(NamedTuple):
    """`cards` equal devices. All given fields must hold; at least one besides `cards` is given."""
    profile: Optional[str] = None   # name without regard to case, or type_id
    mechanism: Optional[str] = None     # whole | vf | mdev | nvidia_vfio, or "mig": a MIG-backed cell
    vendor: Optional[str] = None    # PCI id "10de"; request.check turns names into it
    model: Optional[str] = None     # Board.model without regard to case
    fb_mib: Optional[int] = None    # at least
    address: Optional[str] = None   # adoption of the slot that the platform chose
    cards: int = 1
    among: tuple[PciAddress, ...] = ()  # only slots at these addresses, as the platform lists them; empty: any


class Request(NamedTuple):
    vm: Vm
    wants: tuple[Want, ...]
    guest: tuple[GuestNode, ...] = ()
    numa: Strict = "preferred"
    close: Strict = "preferred"
    cpu: CpuMode = "none"
    keep: bool = False              # hold the slot while the VM is stopped
    uuids: tuple[Optional[str], ...] = ()   # of the mdevs, as the platform names them, device by device; else random


# ---- what the operator set -------------------------------------------------------------------------

class Policy(NamedTuple):
    """The operator's rules. `held_back` is counted (capacity), a start may still use it."""
    order: Order = "pack"
    cpu_pool: Optional[tuple[int, ...]] = None      # CPUs that pinning may use; None: all usable ones
    ours: tuple[str, ...] = ()      # addresses or vendor:device[:class] patterns; empty: every GPU class card
    held_back: tuple[tuple[str, int], ...] = ()     # (profile, number not to sell)


class Offer(NamedTuple):
    """A request under a name that the operator sells. users, groups: who may use it; both None: everyone."""
    name: str
    want: Want
    numa: Strict = "preferred"
    close: Strict = "preferred"
    cpu: CpuMode = "none"
    keep: bool = False
    users: Optional[tuple[str, ...]] = None
    groups: Optional[tuple[str, ...]] = None

    def allows(self, vm: Vm) -> bool:
        """The VM's user is named, or one of its groups is."""
        if self.users is None and self.groups is None:
            return True
        return vm.user in (self.users or ()) or not set(self.groups or ()).isdisjoint(vm.groups)


class CardLayout(NamedTuple):
    """What the card at `address`, or every card of `model`, is cut into."""
    address: Optional[str]
    model: Optional[str]
    profiles: tuple[str, ...]


class HostLayout(NamedTuple):
    name: str
    cards: tuple[CardLayout, ...]


class Config(NamedTuple):
    """`stamp` tells which files, in which state, it was read from."""
    policy: Policy = Policy()
    offers: tuple[Offer, ...] = ()          # by name
    release_deadline_s: int = 300
    layouts: tuple[HostLayout, ...] = ()    # by name
    stamp: Stamp = ()


# ---- what is held ----------------------------------------------------------------------------------

class Hold(NamedTuple):
    """One slot taken: from the ledger, or seen in the kernel and not ours (foreign: vm is None)."""
    slot: str
    board: str
    layout: str
    cell: str
    profile: str
    start: int
    size: int
    vm: Optional[str]
    state: State


class Use(NamedTuple):
    """What one guest node takes of one host node."""
    vm: str
    guest_node: int
    node: Optional[int]             # host node; None: not bound to one
    pins: tuple[tuple[int, tuple[int, ...]], ...]   # (vcpu, host CPUs) to pin; empty: leave as it is
    cpus: tuple[int, ...]           # host CPUs taken for this VM alone (dedicated), whole cores
    mib: int
    page_kib: Optional[int]
    allocated: bool = False         # the kernel's free counters already show it (the VM runs)


class Taken(NamedTuple):
    holds: tuple[Hold, ...] = ()
    uses: tuple[Use, ...] = ()
    cordoned: tuple[tuple[str, str], ...] = ()  # (board that gets no new VM, why)


# ---- what was decided ------------------------------------------------------------------------------

class Device(NamedTuple):
    """All that domain.py needs of one device. `uuid`: of the mdev; place() leaves None, the caller of place() fills."""
    hold: Hold
    mechanism: Kind
    functions: tuple[PciAddress, ...]
    uuid: Optional[str] = None
    bar_mib: Optional[int] = None


class Placement(NamedTuple):
    devices: tuple[Device, ...]     # in the order of the wants
    uses: tuple[Use, ...]           # one for each guest node, in order
    emulator: tuple[int, ...] = ()  # host CPUs for QEMU's emulator threads and iothreads; empty: leave as it is
    memory: Optional[str] = None    # libvirt numatune mode, "strict" or "preferred"; None: bind nothing
    warnings: tuple[str, ...] = ()


class Reason(NamedTuple):
    candidate: str                  # board address, "node 1", or a slot
    why: str


class Refusal(NamedTuple):
    reasons: tuple[Reason, ...]
    hint: str


# ---- what will be done -----------------------------------------------------------------------------

class Attribute(NamedTuple):
    """File `path` reads `value`. `through` is written first where the kernel allows no direct change."""
    path: str
    value: str
    before: str
    through: Optional[str] = None


class Driver(NamedTuple):
    """`function` is bound to `driver` by driver_override. Layouts only."""
    function: PciAddress
    driver: Optional[str]
    before: Optional[str]


class Mdev(NamedTuple):
    """mdev `uuid` exists, of the type in folder `type_path` ("/sys/.../mdev_supported_types/nvidia-711")."""
    uuid: str
    type_path: str


class Command(NamedTuple):
    """`check` says yes; else run `argv`. Layouts only."""
    argv: tuple[str, ...]
    undo: tuple[str, ...]
    check: str


# ---- all of it -------------------------------------------------------------------------------------

class Decision(NamedTuple):
    """What was, or would be, decided. `claim` is None where nothing was recorded."""
    request: Request
    host: Host
    claim: Optional[str]
    placement: Optional[Placement]
    refusal: Optional[Refusal]
    actions: tuple[Action, ...] = ()
