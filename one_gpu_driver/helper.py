"""What runs as root for OpenNebula's scripts: one verb, its input on stdin, its answer on stdout.

No path is taken from the caller. oneadmin is the cloud's own account and is believed who a VM's owner is; what the
owner wrote into the template and the domain is not believed at all.
"""
from __future__ import annotations

import posix
import sys

from kvm_gpu.errors import GpuError, NoCapacity, RequestError
from kvm_gpu.site import open_site
from one_gpu_driver import frame, held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from kvm_gpu.site import Site

    Verb = Callable[[Site, tuple[bytes, ...]], tuple[bytes, ...]]

GOES_ON: Final = ("failed", "stop", "stopped", "still-runs")    # the action does not fail with these


def main() -> None:
    """Ends the process at once: an orderly end would have SQLite checkpoint its log."""
    posix._exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code, when all is said."""
    name = " ".join(argv)
    try:
        if name == "probe":
            return _probe()
        if name not in VERBS:
            raise RequestError(f"one-helper {name[:40]}: the verbs are probe, {', '.join(VERBS)}")
        answer = VERBS[name](_site(lenient=name != "deploy"), _input())
        frame.write(1, frame.pack(*answer))
        return 0
    except GpuError as failure:
        if name in GOES_ON:
            _log("WARN", failure.message)
        else:
            _complain(told(failure))
        return failure.exit_code
    except BaseException as bug:
        _complain(f"the GPU driver has a bug ({type(bug).__name__}); the VM's log has more")
        _log("ERROR", _traceback(bug))
        return 1


# ---- verbs -----------------------------------------------------------------------------------------

def deploy(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """vm.xml, domain, pid of the stock script -> VM, claim (empty: none), domain, vm.xml."""
    from one_gpu_driver.start import start
    vm_xml, xml, pid = given
    started = start(site, vm_xml, xml, int(pid))
    for warning in started.warnings:
        _log("WARN", warning)
    return started.vm.encode(), (started.claim or "").encode(), started.domain, started.vm_xml


def failed(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    vm, claim = _words(given)
    for sentence in held.failed(site, vm, claim):
        _log("INFO", sentence)
    return ()


def stop(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """VM, pid of who stops it -> claim, empty where there is nothing to free afterwards."""
    vm, pid = _words(given)
    return ((held.begin_stop(site, vm, int(pid)) or "").encode(),)


def stopped(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    vm, claim, pid = _words(given)
    for sentence in held.end_stop(site, vm, claim, int(pid)):
        _log("INFO", sentence)
    return ()


def still_runs(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    _, claim, pid = _words(given)
    held.still_runs(site, claim, int(pid))
    return ()


def save(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    held.refuse_saving(site, *_words(given))
    return ()


def migrate(site: Site, given: tuple[bytes, ...]) -> tuple[bytes, ...]:
    held.refuse_migration(site, *_words(given))
    return ()


VERBS: Final[dict[str, Verb]] = {"deploy": deploy, "failed": failed, "stop": stop, "stopped": stopped,
                                 "still-runs": still_runs, "save": save, "migrate": migrate}


def _probe() -> int:
    from one_gpu_driver.probe import publish
    frame.write(1, publish(_site(lenient=True)).encode())
    return 0


# ---- what goes in ----------------------------------------------------------------------------------

def _site(lenient: bool) -> Site:
    """Tests have a root of their own; who comes through sudo has not."""
    root = b"" if b"SUDO_UID" in posix.environ else posix.environ.get(b"KVM_GPU_ROOT", b"")
    return open_site(root.decode(), lenient=lenient)


def _input() -> tuple[bytes, ...]:
    try:
        return frame.unpack(frame.read(0))
    except ValueError as error:
        raise RequestError(f"one-helper: stdin is {error}") from None


def _words(given: tuple[bytes, ...]) -> tuple[str, ...]:
    """Plain words: a VM's name, a claim, a pid. Raises RequestError."""
    words = tuple(part.decode("ascii", "replace") for part in given)
    for word in words:
        if not word.replace("-", "").isalnum() or not word.isascii():
            raise RequestError(f"one-helper: {word[:40]!r} is not a plain word")
    return words


# ---- what goes out ---------------------------------------------------------------------------------

def told(failure: GpuError) -> str:
    """The failure for a VM's owner, who sees the beginning of it; after INFO: what only the VM's log gets, where the
    owner may read it as well: not which VMs of others hold what. oned joins lines without a space and cuts them to
    100 characters."""
    first, *rest = [line for line in failure.message.splitlines() if line]
    if isinstance(failure, NoCapacity):
        rest += [f"{reason.candidate}: {_without_names(reason.why)}" for reason in failure.refusal.reasons]
    return "\n".join([first, *(_for_log("INFO", line) for line in (*rest, failure.hint) if line)])


def _without_names(why: str) -> str:
    """"fully used by one-13" -> "fully used", "none free, held by one-13" -> "none free"."""
    return why.replace(", held by ", " by ").partition(" by ")[0].partition(" beside ")[0]


def _for_log(level: str, line: str) -> str:
    """A line for the VM's log alone. oned swallows digits at its beginning, as those of a PCI address."""
    return f"{level}: GPU {line}" if line[:1].isdigit() else f"{level}: {line}"


def _complain(text: str) -> None:
    try:
        frame.write(2, text.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:     # nobody is left to be told; the exit code still says it
        return


def _log(level: str, text: str) -> None:
    _complain("\n".join(_for_log(level, line) for line in text.splitlines()))


def _traceback(bug: BaseException) -> str:
    from traceback import format_exception
    return "".join(format_exception(bug))
