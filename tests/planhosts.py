"""Small hosts for the tests of the decision, made by hand."""
from kvm_gpu.model import Board, Cell, Function, GuestNode, Hold, Host, Layout, NumaNode, Pages, Profile, Slot, Use

GIB = 1 << 20   # KiB


def node(number, cores=4, mem_mib=65536, free_mib=None, pages=(), nodes=2):
    """SMT2 cores (10, 110), (11, 111), ... on node 1; SLIT 10 and 21."""
    cpus = tuple((10 * number + core, 100 + 10 * number + core) for core in range(cores))
    return NumaNode(number, cpus, mem_mib, free_mib, tuple(Pages(*size) for size in pages),
                    tuple(10 if other == number else 21 for other in range(nodes)))


def host(*boards, nodes=None):
    return Host("boot", (node(0), node(1)) if nodes is None else nodes, boards)


def slot(name, functions=None, trouble=None, cells=("board",)):
    return Slot(name, functions or (name,), "/sys/bus/pci/devices/" + name, cells, None, trouble)


def whole(address, model, functions=1):
    names = tuple(f"{address[:-1]}{number}" for number in range(functions))
    cell = Cell("board", False, (Profile(model, None, None, 1, (0,)),))
    return Layout("whole", "whole", (slot(address, names),), (cell,))


def vfs(address, model, number):
    cell = Cell("board", False, (Profile(model + "-vf", None, None, 1, tuple(range(number))),))
    return Layout("vf", "vf", tuple(slot(f"{address[:-1]}{vf + 1}") for vf in range(number)), (cell,))


def vgpus(address, *profiles, slots=4, one_size=True):
    cell = Cell("board", one_size, profiles)
    return Layout("nvidia_vfio", "nvidia_vfio", tuple(slot(f"{address[:-1]}{4 + vf}") for vf in range(slots)), (cell,))


def size(name, type_id, fb_gib, most):
    fb_mib = fb_gib * 1024
    return Profile(name, type_id, fb_mib, fb_mib, tuple(number * fb_mib for number in range(most)))


X48 = (size("X48-2Q", "9102", 2, 24), size("X48-8Q", "9108", 8, 6), size("X48-24Q", "9124", 24, 2),
       size("X48-48Q", "9148", 48, 1))


def board(address, *layouts, model="g", numa_node=0, path=None, ids="10de:1e30", trouble=()):
    path = path or ("pci" + address[:7], address[:7] + ":01.0")
    functions = (Function(address, ids, 0x030000, None, None),)
    return Board(address, None, model, None, numa_node, "device", path, functions, layouts, trouble)


def card(address, numa_node=0, path=None, functions=1):
    return board(address, whole(address, "g", functions), numa_node=numa_node, path=path)


def x48(address="0000:ca:00.0", numa_node=0, slots=4, one_size=True):
    layouts = (vgpus(address, *X48, slots=slots, one_size=one_size), whole(address, "x48"))
    return board(address, *layouts, model="x48", numa_node=numa_node)


def hold(on, profile, vm, at=0, layout=0, start=0, state="active"):
    """Slot number `at` of a layout of the board, as a profile of it by name."""
    kind = on.layouts[layout]
    cell, found = next((cell, one) for cell in kind.cells for one in cell.profiles if one.name == profile)
    return Hold(kind.slots[at].name, on.address, kind.name, cell.name, profile, start, found.size, vm, state)


def guest(vcpus=2, mem_mib=4096, number=0, **fields):
    return GuestNode(number, tuple(range(number * vcpus, number * vcpus + vcpus)), mem_mib, **fields)


def use(node, mib=0, page_kib=None, cpus=(), allocated=False, vm="vm-old"):
    return Use(vm, 0, node, (), cpus, mib, page_kib, allocated)
