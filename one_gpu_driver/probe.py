"""What a host tells OpenNebula of its GPUs: attributes for SCHED_REQUIREMENTS, SCHED_RANK and Sunstone's host panel,
and GPU slots where the administrator wants them.

oned keeps an attribute that a probe no longer prints, so a size that was ever told is told as zero when it is gone.
"""
from __future__ import annotations

import posix
from select import select
from time import monotonic

from kvm_gpu import claims, config, private
from kvm_gpu.errors import GpuError
from kvm_gpu.site import CONFIG, RUN
from one_gpu_driver import pcislots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final, NamedTuple, NoReturn

    from kvm_gpu.capacity import Row
    from kvm_gpu.site import Site
else:
    from kvm_gpu.light import NamedTuple

TOLD: Final = "/var/lib/kvm-gpu/one-sizes"      # every size that oned was ever told of
FORMAT: Final = 1
PATIENCE_S: Final = 20
LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


class Pool(NamedTuple):
    """One size on this host, over all its boards."""
    profile: str
    model: str = ""
    total: int = 0
    taken: int = 0
    free: int = 0
    sellable: int = 0
    nodes: tuple[int, ...] = ()


def publish(site: Site, patience_s: float = PATIENCE_S) -> str:
    """Lines NAME="value" in oned's template syntax. Never raises GpuError and never waits for long: a probe that fails
    or hangs takes the host down, so a host that cannot be read has nothing to give, and says why."""
    told = _told(site)
    answer = _within(patience_s, lambda: _publish(site, told))
    return answer or attributes(map(Pool, told), (), f"reading the GPUs takes more than {patience_s:g} s, or died")


def _publish(site: Site, told: tuple[str, ...]) -> str:
    try:
        config.load(site.sysfs.root + CONFIG, site.sysfs.root + RUN)    # wrong, it keeps every VM from starting
        slots = pcislots.read(site.sysfs.root)
        rows, trouble = _rows(site), ""
    except GpuError as failure:
        slots, rows, trouble = (), (), failure.message
    found = pools(rows)
    sizes = tuple(sorted({*told, *(pool.profile for pool in found)}))
    if sizes != told:
        private.store(site.sysfs.root + TOLD, FORMAT, sizes)
    gone = tuple(Pool(size) for size in sizes if size not in {pool.profile for pool in found})
    boards = tuple(dict.fromkeys(row.board for row in rows))
    return attributes(found + gone, boards, trouble) + pcislots.lines(slots)


def pools(rows: Iterable[Row]) -> tuple[Pool, ...]:
    """The sizes by name. A board has one row for a size, or several for one that it could give in several ways: these
    are alternatives, of which the first is in use."""
    boards: dict[tuple[str, str], Row] = {}
    for row in rows:
        boards.setdefault((row.profile, row.board), row)
    sizes = sorted({profile for profile, _ in boards})
    return tuple(_pool(size, [row for (profile, _), row in boards.items() if profile == size]) for size in sizes)


def attributes(sizes: Iterable[Pool], boards: tuple[str, ...], trouble: str) -> str:
    """`boards`: what we give out, so that it can be compared with what oned lists as PCI devices."""
    sizes = tuple(sizes)
    lines = [_line("GPU_BOARDS", " ".join(boards)), _line("GPU_TAKEN", sum(pool.taken for pool in sizes)),
             _line("GPU_TROUBLE", trouble)]
    for pool in sizes:
        name = attribute_name(pool.profile)
        lines += [_line("GPU_TOTAL_" + name, pool.total), _line("GPU_FREE_" + name, pool.free),
                  _line("GPU_SELLABLE_" + name, pool.sellable), _vector(pool)]
    return "".join(lines)


def attribute_name(profile: str) -> str:
    """"A16-4Q" -> "A16_4Q": what SCHED_REQUIREMENTS takes as a name without quotes."""
    return "".join(letter if letter in LETTERS else "_" for letter in profile.upper())


def _rows(site: Site) -> tuple[Row, ...]:
    """Without boards of which nothing is ever given, such as the console's."""
    rows = claims.capacity(site)
    given = {board.address for board in site.view().host.boards
             if any(slot.trouble is None for layout in board.layouts for slot in layout.slots)}
    return tuple(row for row in rows if row.taken or row.board in given)


def _told(site: Site) -> tuple[str, ...]:
    return private.load(site.sysfs.root + TOLD, FORMAT) or ()


def _within(seconds: float, work: Callable[[], str]) -> str:
    """What `work` returns; empty if it fails or takes longer. It runs in a child that holds none of our files: reading
    a kernel file can block where no signal reaches."""
    inside, outside = posix.pipe()
    child = posix.fork()
    if child == 0:
        _tell(outside, work)
    posix.close(outside)
    text, end = b"", monotonic() + seconds
    while select([inside], [], [], max(0.0, end - monotonic()))[0]:
        data = posix.read(inside, 65536)
        if not data:
            return text.decode() if posix.waitpid(child, 0)[1] == 0 else ""
        text += data
    return ""


def _tell(descriptor: int, work: Callable[[], str]) -> NoReturn:
    """The child's life."""
    try:
        nothing = posix.open("/dev/null", posix.O_RDWR)
        for standard in range(3):
            posix.dup2(nothing, standard)
        data = work().encode()
        while data:
            data = data[posix.write(descriptor, data):]
        posix._exit(0)
    finally:
        posix._exit(1)


def _pool(size: str, rows: list[Row]) -> Pool:
    nodes = sorted({row.numa_node for row in rows if row.numa_node is not None})
    return Pool(size, " ".join(sorted({row.model for row in rows})), sum(row.total for row in rows),
                sum(row.taken for row in rows), sum(row.free for row in rows), sum(row.sellable for row in rows),
                tuple(nodes))


def _vector(pool: Pool) -> str:
    fields = {"PROFILE": pool.profile, "MODEL": pool.model, "TOTAL": pool.total, "TAKEN": pool.taken,
              "FREE": pool.free, "SELLABLE": pool.sellable, "NODES": " ".join(map(str, pool.nodes))}
    return f"GPU_POOL=[{','.join(_line(name, value).rstrip() for name, value in fields.items())}]\n"


def _line(name: str, value: object) -> str:
    """Quotes and control characters in names and messages would end the value."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value)).replace('"', "'")
    return f'{name}="{text}"\n'
