"""Proxmox VE's own book of PCI devices, /run/qemu-server/pci-id-reservations, under its lock.

A line is "ADDRESS VMID time:SECONDS" from the choice of a device to QEMU's start, "ADDRESS VMID pid:PID" after it. What
is reserved for another VMID is passed over, so a start is steered: the device it shall take is reserved for its own
VMID, every other free one for a VMID that nobody has. Steered starts compose: each may take over what is only steered.
Source: reserve_pci_usage in PVE::QemuServer::PCI.
"""
from __future__ import annotations

import fcntl
import posix
from time import monotonic, sleep, time

from kvm_gpu.errors import BusyError, HostError
from kvm_gpu.request import canonical_address
from pve_gpu_hook import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Final, NamedTuple

    from kvm_gpu.model import PciAddress
    from kvm_gpu.site import Site

    Book = dict[PciAddress, "Line"]
else:
    from kvm_gpu.light import NamedTuple

FOLDER: Final = "/run/qemu-server"
BOOK: Final = FOLDER + "/pci-id-reservations"
NOBODY: Final = "999999999"     # the highest VMID there can be
LEASE_S: Final = 120            # as long as Proxmox VE itself gives the start of a VM with a device
WAIT_S: Final = 10.0


class Line(NamedTuple):
    vm: str
    kind: str                   # "time": seconds since the epoch, or "pid"
    number: int


def of_others(site: Site, vm: str) -> dict[PciAddress, str]:
    """What other VMs have, or are just being given: VMID by address. Raises HostError."""
    now = time()
    return {address: line.vm for address, line in _read(site.sysfs.root).items()
            if line.vm not in (vm, NOBODY) and _holds(site, line, now)}


def steer(site: Site, vm: str, wanted: Collection[PciAddress], others: Collection[PciAddress]) -> bool:
    """Have the start of this VM take `wanted`, and none of `others`. False, with nothing changed, where another VM got
    one of `wanted` meanwhile. Raises BusyError, HostError."""
    root = site.sysfs.root
    with _Locked(root):
        book, now = _read(root), time()
        if any(address in book and book[address].vm not in (vm, NOBODY) and _holds(site, book[address], now)
               for address in wanted):
            return False
        book = _without_stale(site, {address: line for address, line in book.items() if line.vm != vm}, vm, now)
        until = int(now) + LEASE_S
        for address in others:
            if address not in book or book[address].vm == NOBODY or not _holds(site, book[address], now):
                book[address] = Line(NOBODY, "time", until)
        book.update((address, Line(vm, "time", until)) for address in wanted)
        _write(root, book)
    return True


def let_go(site: Site, vm: str, started: bool) -> None:
    """The VM has `started`, or will not: its own lines are Proxmox VE's from here, or go. What was steered becomes free
    unless another start is under way. Raises BusyError, HostError."""
    root = site.sysfs.root
    with _Locked(root):
        book = _read(root)
        left = {address: line for address, line in book.items() if started or line.vm != vm}
        left = _without_stale(site, left, vm, time())
        if left != book:
            _write(root, left)


# ---- the book --------------------------------------------------------------------------------------

class _Locked:
    """Proxmox VE waits 2 to 5 seconds for this lock and then fails, so it is held for reading and writing alone."""

    def __init__(self, root: str) -> None:
        self._path = f"{root}{BOOK}.lock"

    def __enter__(self) -> None:
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
        try:
            self._file = posix.open(self._path, flags, 0o644)
        except OSError as error:
            raise HostError(f"{self._path}: {error.strerror}") from None
        deadline = monotonic() + WAIT_S
        while not self._taken():
            if monotonic() > deadline:
                posix.close(self._file)
                raise BusyError(f"{self._path}: held by another process for {WAIT_S:.0f} s", "try again")
            sleep(0.02)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        posix.close(self._file)


def _read(root: str) -> Book:
    """Lines that Proxmox VE would read; others it loses too, with the next that it writes."""
    book = {}
    for text in (files.content(root + BOOK) or "").splitlines():
        words = text.split(" ")
        kind, _, number = words[-1].partition(":")
        address = canonical_address(words[0])
        if len(words) == 3 and address and words[1].isdecimal() and kind in ("time", "pid") and number.isdecimal():
            book[address] = Line(words[1], kind, int(number))
    return book


def _write(root: str, book: Book) -> None:
    files.replace(root + BOOK, "".join(f"{address} {line.vm} {line.kind}:{line.number}\n"
                                       for address, line in sorted(book.items())))


def _holds(site: Site, line: Line, now: float) -> bool:
    if line.kind == "time":
        return line.number > now
    return site.sysfs.read(f"{FOLDER}/{line.vm}.pid") == str(line.number) and site.running(line.vm)


def _without_stale(site: Site, book: Book, vm: str, now: float) -> Book:
    """Without steering that no start needs any more: each steered start has a line of its own until it has ended."""
    if any(line.kind == "time" and line.vm not in (vm, NOBODY) and line.number > now for line in book.values()):
        return book
    return {address: line for address, line in book.items() if line.vm != NOBODY}
