"""CPUs of QEMU's threads: each vCPU on its own, the rest on those of the emulator."""
from __future__ import annotations

import posix
from errno import ESRCH

from kvm_gpu.cpulist import format_cpus
from kvm_gpu.errors import HostError
from pve_gpu_hook.qmp import vcpu_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvm_gpu.model import Use
    from kvm_gpu.site import Site


def pin(site: Site, vm: str, pid: int, uses: tuple[Use, ...], emulator: tuple[int, ...]) -> str:
    """What was pinned, in words. A vCPU that is plugged in later stays within the CPUs of the VM's scope.
    Raises HostError."""
    pins = {vcpu: cpus for use in uses for vcpu, cpus in use.pins}
    threads = vcpu_threads(site.sysfs.root, vm)
    own = frozenset(map(int, site.sysfs.list(f"/proc/{pid}/task")))
    strangers = sorted(set(threads.values()) - own)
    if strangers:
        raise HostError(f"QEMU names threads {', '.join(map(str, strangers))}, which are not its own")
    for vcpu, thread in threads.items():
        if vcpu in pins:
            _bind(thread, pins[vcpu])
    for thread in own.difference(threads.values()) if emulator else ():
        _bind(thread, emulator)
    cpus = {cpu for vcpu in threads for cpu in pins.get(vcpu, ())}
    return f"{len(threads.keys() & pins.keys())} vCPUs pinned to CPUs {format_cpus(tuple(cpus))}"


def _bind(thread: int, cpus: tuple[int, ...]) -> None:
    try:
        posix.sched_setaffinity(thread, cpus)
    except OSError as error:
        if error.errno != ESRCH:        # a worker thread that ended meanwhile
            raise HostError(f"thread {thread} cannot be pinned to CPUs {format_cpus(cpus)}: {error.strerror}") from None
