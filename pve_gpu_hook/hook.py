"""The hookscript: `pve-gpu-hook VMID PHASE`, started by Proxmox VE's task worker, whose log gets what is said here.

A pre-start that fails stops the start; every other phase only tells. Nothing keeps running after it: a child with our
stdout would block the task.
"""
from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final

    from kvm_gpu.errors import GpuError
    from kvm_gpu.site import Site

SOURCE: Final = b"PVE_MIGRATED_FROM"
SAYS: Final = "GPU: "


def main() -> None:
    """Ends the process at once: an orderly end would have SQLite checkpoint its log."""
    posix._exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code. Phases that concern containers, or are not known yet, are nothing to do."""
    if len(argv) != 2 or not (argv[0].isascii() and argv[0].isdecimal()):
        _say(2, ["usage: pve-gpu-hook VMID pre-start|post-start|pre-stop|post-stop"])
        return 2
    vm, phase = argv
    try:
        _say(1, PHASES[phase](vm) if phase in PHASES else ())
    except BaseException as failure:
        return _failed(vm, failure)
    return 0


# ---- phases ----------------------------------------------------------------------------------------

def pre_start(vm: str) -> Iterable[str]:
    """A VM that has no hostpci, and left no binding behind, costs no more than the reading of its configuration."""
    from pve_gpu_hook import lease, qmconf, scope
    root = _environment(b"KVM_GPU_ROOT")
    lease.remove(root, vm)      # of a run whose end nobody told us
    conf = qmconf.read(root, vm, _environment(SOURCE))
    if conf is None or conf.keys().isdisjoint(qmconf.HOSTPCI):
        scope.bind(root, vm, {})
        return ()
    from pve_gpu_hook.start import start
    return start(_site(), vm, conf, posix.getppid())


def post_start(vm: str) -> Iterable[str]:
    from pve_gpu_hook import lease
    held = lease.read(_environment(b"KVM_GPU_ROOT"), vm)
    if held is None:
        return ()
    from pve_gpu_hook.running import confirm
    return confirm(_site(), vm, held)


def post_stop(vm: str) -> Iterable[str]:
    """Also after QEMU was killed, or the guest turned itself off: `qm cleanup` runs it. Proxmox VE has cleared the
    devices by then."""
    from pve_gpu_hook import lease
    held = lease.read(_environment(b"KVM_GPU_ROOT"), vm)
    if held is None:
        return ()
    from pve_gpu_hook.start import give_back
    return give_back(_site(lenient=True), vm, held.claim)


PHASES: Final[dict[str, Callable[[str], Iterable[str]]]] = {
    "pre-start": pre_start, "post-start": post_start, "post-stop": post_stop}   # at pre-stop the VM may yet go on


# ---- around ----------------------------------------------------------------------------------------

def _site(lenient: bool = False) -> Site:
    from kvm_gpu.site import open_site
    return open_site(_environment(b"KVM_GPU_ROOT"), lenient=lenient)


def _environment(name: bytes) -> str:
    return posix.environ.get(name, b"").decode("utf-8", "surrogateescape")


def _failed(vm: str, failure: BaseException) -> int:
    from kvm_gpu.errors import GpuError
    if isinstance(failure, GpuError):
        _say(2, _told(failure))
        return failure.exit_code
    from traceback import format_exception
    _say(2, [f"VM {vm}: a bug in pve-gpu-hook", *"".join(format_exception(failure)).splitlines()])
    return 1


def _told(failure: GpuError) -> list[str]:
    from kvm_gpu.errors import NoCapacity
    reasons = failure.refusal.reasons if isinstance(failure, NoCapacity) else ()
    return [*failure.message.splitlines(), *(f"  {reason.candidate}: {reason.why}" for reason in reasons),
            *([f"Hint: {failure.hint}"] if failure.hint else [])]


def _say(descriptor: int, lines: Iterable[str]) -> None:
    for line in lines:
        try:
            posix.write(descriptor, f"{SAYS}{line}\n".encode("utf-8", "backslashreplace"))
        except OSError:     # nobody is left to be told; the exit code still says it
            return
