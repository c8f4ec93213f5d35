"""The command kvm-gpu: one short function a verb. Stdout carries the result only, stderr the rest.

A verb answers with its exit code. Failures are caught, told and turned into exit codes in `run` alone.
"""
from __future__ import annotations

import posix
import sys

from kvm_gpu import asked, claims
from kvm_gpu.errors import GpuError, HostError, NoCapacity, RequestError
from kvm_gpu.holder import holder_of
from kvm_gpu.options import parse
from kvm_gpu.request import canonical_address
from kvm_gpu.site import open_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, Protocol

    from kvm_gpu.capacity import Row
    from kvm_gpu.ledgerrows import Claim, Event
    from kvm_gpu.model import Action, Decision, Device, Host, Refusal, Request, Use
    from kvm_gpu.options import Arguments
    from kvm_gpu.site import Site

    class View(Protocol):
        """How answers are worded: module jsonout or render."""
        def inventory(self, host: Host) -> str: ...
        def capacity(self, rows: tuple[Row, ...]) -> str: ...
        def decision(self, made: Decision) -> str: ...
        def refused(self, request: Request, refusal: Refusal) -> str: ...
        def claims(self, held: list[tuple[Claim, tuple[Device, ...]]]) -> str: ...
        def show(self, claim: Claim, devices: tuple[Device, ...], uses: tuple[Use, ...],
                 actions: tuple[Action, ...]) -> str: ...
        def events(self, happened: tuple[Event, ...]) -> str: ...
        def done(self, sentences: tuple[str, ...]) -> str: ...
        def error(self, failure: GpuError) -> str: ...

SIGPIPE: Final = 13
SIGINT: Final = 2
EVENTS: Final = 50


def main() -> None:
    """Run the command line and end the process at once: an orderly end would have SQLite checkpoint its log."""
    posix._exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code of the command line `argv`, when all is said."""
    try:
        given = parse(argv)
        return VERBS[given.verb](given)
    except GpuError as failure:
        _complain(_module("--json" in argv).error(failure))
        return failure.exit_code
    except BrokenPipeError:
        return 128 + SIGPIPE
    except KeyboardInterrupt:
        return 128 + SIGINT
    except SystemExit as end:       # argparse after --help
        sys.stdout.flush()
        return int(end.code or 0)
    except BaseException as bug:
        sys.excepthook(type(bug), bug, bug.__traceback__)
        sys.stderr.flush()
        return 1


# ---- verbs -----------------------------------------------------------------------------------------

def inventory(given: Arguments) -> int:
    return _say(_view(given).inventory(_site(given).fresh_view().host))


def capacity(given: Arguments) -> int:
    return _say(_view(given).capacity(claims.capacity(_site(given))))


def explain(given: Arguments) -> int:
    site = _site(given)
    decision = claims.explain(site, asked.request(site.config, given))
    _say(_view(given).decision(decision))
    return NoCapacity.exit_code if decision.refusal else 0


def claim(given: Arguments) -> int:
    site = _site(given)
    request = asked.request(site.config, given)
    try:
        decision = claims.claim(site, request, holder_of(posix.getppid()))
    except NoCapacity as refused:
        return _refuse(given, _view(given).refused(request, refused.refusal))
    return _hand_over(site, decision, _view(given).decision(decision))


def inject(given: Arguments) -> int:
    if given.text("--request") == "-":
        raise RequestError("inject: stdin is the domain XML", "give --request the name of a file")
    site = _site(given)
    request = asked.request(site.config, given)
    try:
        decision, xml = claims.inject(site, request, asked.read("-"), holder_of(posix.getppid()))
    except NoCapacity as refused:
        return _refuse(given, _view(given).refused(request, refused.refusal))
    return _hand_over(site, decision, xml)


def release(given: Arguments) -> int:
    site, vm = _site(given, lenient=True), given.text("--vm") or ""
    return _say(_view(given).done(claims.release(site, vm, given.text("--claim"), given.flag("--force"))))


def list_claims(given: Arguments) -> int:
    ledger = _site(given).ledger
    return _say(_view(given).claims([(claim, ledger.devices(claim.id)) for claim in ledger.claims()]))


def show(given: Arguments) -> int:
    vm = given.text("VM") or ""
    ledger = _site(given).ledger
    claim = ledger.claim_of(vm)
    if claim is None:
        raise RequestError(f"VM {vm} holds nothing on this host", "kvm-gpu list")
    return _say(_view(given).show(claim, ledger.devices(claim.id), ledger.uses(claim.id), ledger.actions(claim.id)))


def reconcile(given: Arguments) -> int:
    from kvm_gpu.reconcile import reconcile

    return _say(_view(given).done(reconcile(_site(given, lenient=True))))


def cordon(given: Arguments) -> int:
    site, board = _site(given), _board(given)
    if board not in [known.address for known in site.view().host.boards]:
        raise RequestError(f"no board {board} on this host", "kvm-gpu inventory")
    why = given.text("--why") or ""
    with site.ledger.write():
        site.ledger.cordon(board, why)
        site.ledger.event(None, None, "cordoned", f"{board}: {why}" if why else board)
    return _say(_view(given).done((f"{board} gets no new VM",)))


def uncordon(given: Arguments) -> int:
    site, board = _site(given), _board(given)
    with site.ledger.write():
        ended = site.ledger.uncordon(board)
        if ended:
            site.ledger.event(None, None, "uncordoned", board)
    return _say(_view(given).done((f"{board} gets new VMs again",) if ended else ()))


def events(given: Arguments) -> int:
    limit = given.number("--limit")
    return _say(_view(given).events(_site(given).ledger.events(EVENTS if limit is None else limit)))


def demo(given: Arguments) -> int:
    from kvm_gpu.demo import demo

    return demo()


VERBS: dict[str, Callable[[Arguments], int]] = {
    "inventory": inventory, "capacity": capacity, "explain": explain, "claim": claim, "inject": inject,
    "release": release, "list": list_claims, "show": show, "reconcile": reconcile, "cordon": cordon,
    "uncordon": uncordon, "events": events, "demo": demo,
}


# ---- what goes in ----------------------------------------------------------------------------------

def _view(given: Arguments) -> View:
    return _module(given.flag("--json"))


def _module(json: bool) -> View:
    if json:
        from kvm_gpu import jsonout
        return jsonout
    from kvm_gpu import render
    return render


def _site(given: Arguments, lenient: bool = False) -> Site:
    root = given.text("--root") or posix.environ.get(b"KVM_GPU_ROOT", b"").decode("utf-8", "surrogateescape")
    return open_site(root.rstrip("/"), given.text("--state"), given.text("--config"), lenient)


def _board(given: Arguments) -> str:
    name = given.text("BOARD") or ""
    return canonical_address(name) or name      # an mdev parent need not be PCI


# ---- what goes out ---------------------------------------------------------------------------------

def _refuse(given: Arguments, text: str) -> int:
    """With --json a refusal is the result; else stdout stays empty for those who expect XML there."""
    if given.flag("--json"):
        _say(text)
    else:
        _complain(text)
    return NoCapacity.exit_code


def _hand_over(site: Site, decision: Decision, text: str | bytes) -> int:
    """Say what a VM got; what nobody could be told of is given back. Raises HostError."""
    try:
        return _say(text)
    except (BrokenPipeError, HostError):
        claims.release(site, decision.request.vm.id, decision.claim)
        raise


def _say(text: str | bytes) -> int:
    """Write all of it to stdout. Raises BrokenPipeError, HostError."""
    try:
        _write(1, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(f"stdout: {error.strerror}") from None
    return 0


def _complain(text: str) -> None:
    try:
        _write(2, text)
    except OSError:     # nobody is left to be told; the exit code still says it
        return


def _write(descriptor: int, text: str | bytes) -> None:
    data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    while data:
        data = data[posix.write(descriptor, data):]
