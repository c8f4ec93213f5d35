"""One VMM action on a host, run as oneadmin in place of the stock script, which does the work in the middle.

    one-vmm ACTION STOCK-SCRIPT ARGUMENT...

A VM that has nothing to do with us costs the start of an interpreter: this process becomes the stock script. The ledger
is root's: one-helper reads and writes it.
"""
from __future__ import annotations

import posix
import sys

from one_gpu_driver import frame
from one_gpu_driver.processes import SUDO_SAYS, Answer, Waiting, ask, become, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

HELD: Final = "/run/kvm-gpu-one"        # a file for each VM that has, or had, something of ours
MONITOR: Final = "/var/tmp/one_db/.monitor_client.pid"      # Source: OpenNebula 7.0, monitord-client.rb
SIGUSR1: Final = 10                     # "send what the host's probes say now", since 7.0.2
ASKING: Final = (b"<GPU", b"<PCI>")     # in vm.xml: a device is asked for
TAKING: Final = (b"hostdev", b"nvme", b"vfio", b"&#")   # in the domain: one may be taken by hand, or be hidden
# where each action's arguments have the VM's id, as one_vmm_exec gives them
VM_ID: Final = {"cancel": 2, "shutdown": 2, "save": 3, "migrate": 3}


def main() -> None:
    """Ends with the exit code of the stock script, as a shell tells it where a signal ended it."""
    _, action, *command = sys.argv
    code = ACTIONS[action](action, command) if action in ACTIONS else become(command)
    posix._exit(code if code >= 0 else 128 - code)


def deploy(_: str, command: list[str]) -> int:
    """Claim, inject, and have the stock script start the result. The claim's holder is the process of the stock
    script: whoever else dies, it is the one that can still bring the domain to life."""
    folder = command[1].rpartition("/")[0]
    domain, vm = frame.read(0), _content(f"{folder}/vm.xml")
    if not _concerns_us(vm, domain):
        become(command, domain)
    stock = Waiting(command)
    answer = ask("deploy", vm, domain, b"%d" % stock.pid)
    try:
        if answer.code == 0 and answer.parts[3] != vm:
            _replace(f"{folder}/vm.xml", answer.parts[3])
    except OSError as error:
        _say(f"vm.xml cannot be written beside the deployment file: {error.strerror}")
        answer = _undo(answer)
    if answer.code:
        stock.give_up()
        return _fail(answer)
    _tell(answer)
    return _after_deploy(answer, stock.start(answer.parts[2]))


def stop(action: str, command: list[str]) -> int:
    """cancel and shutdown: while the stock script is at it the claim is `releasing`, in our name, then it ends.
    Nothing of ours keeps a VM from being stopped: what fails here is left to reconcile."""
    vm = _held_by_us(action, command)
    if not vm:
        become(command)
    begun = _tell(ask("stop", vm, b"%d" % posix.getpid()))
    code = run(command)
    if begun.code == 0 and begun.parts[0]:
        _tell(ask("stopped" if code == 0 else "still-runs", vm, begun.parts[0], b"%d" % posix.getpid()))
        _refresh_probes()
    return code


def save(action: str, command: list[str]) -> int:
    """A device's state cannot be saved: refuse before the stock script touches an earlier checkpoint."""
    vm = _held_by_us(action, command)
    answer = ask("save", vm) if vm else None
    return _fail(answer) if answer and answer.code else become(command)


def migrate(action: str, command: list[str]) -> int:
    """Refuse before the stock script deletes snapshots. On one host only the disks move."""
    destination, source = command[2:4]
    vm = _held_by_us(action, command) if destination != source else b""
    answer = ask("migrate", vm) if vm else None
    return _fail(answer) if answer and answer.code else become(command)


ACTIONS: Final = {"deploy": deploy, "cancel": stop, "shutdown": stop, "save": save, "migrate": migrate}


# ---- whether ---------------------------------------------------------------------------------------

def _concerns_us(vm: bytes, domain: bytes) -> bool:
    return any(word in vm for word in ASKING) or any(word in domain for word in TAKING)


def _held_by_us(action: str, command: list[str]) -> bytes:
    """The VM's name where a claim may stand behind it. Its owner may have changed the template since the start, so the
    template does not tell."""
    vm = "one-" + "".join(command[1 + VM_ID[action]:][:1])
    return vm.encode() if _exists(f"{_root()}{HELD}/{vm}") else b""


# ---- deploy ----------------------------------------------------------------------------------------

def _after_deploy(answer: Answer, code: int) -> int:
    """The stock script's exit code, when the claim is as it should be after it."""
    vm, claim = answer.parts[:2]
    if claim and code < 0:      # what it asked libvirt for may still come to life
        _say(f"the stock deploy was ended by signal {-code}; its GPU is free again once no VM has it")
    elif claim and code:
        _tell(ask("failed", vm, claim))
    elif claim:
        _refresh_probes()
    return code


def _undo(answer: Answer) -> Answer:
    """The helper's deploy taken back, as a failure."""
    _tell(ask("failed", *answer.parts[:2]))
    return Answer(1, (), b"")


def _replace(path: str, content: bytes) -> None:
    file = posix.open(path + ".new", posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC, 0o644)
    try:
        frame.write(file, content)
    finally:
        posix.close(file)
    posix.rename(path + ".new", path)


def _refresh_probes() -> None:
    """Have OpenNebula's monitor run the probes now, so that the next VM is scheduled by what is left."""
    pid = _content(_root() + MONITOR).strip()
    if pid.isdigit() and b"monitord-client" in _content(f"/proc/{int(pid)}/cmdline"):
        try:
            posix.kill(int(pid), SIGUSR1)
        except OSError:
            return


# ---- words and files -------------------------------------------------------------------------------

def _fail(answer: Answer) -> int:
    """What the user sees begins with our reason; the stock script has not said anything yet."""
    if answer.err.startswith(SUDO_SAYS):
        _say("the GPU driver may not run its helper on this host")
        answer = answer._replace(err=b"INFO: " + answer.err)
    _tell(answer)
    return answer.code


def _tell(answer: Answer) -> Answer:
    try:
        frame.write(2, answer.err)
    except OSError:
        pass
    return answer


def _say(text: str) -> None:
    _tell(Answer(0, (), text.encode() + b"\n"))


def _root() -> str:
    return posix.environ.get(b"KVM_GPU_ROOT", b"").decode("utf-8", "surrogateescape")


def _content(path: str) -> bytes:
    """Empty where the file cannot be read."""
    try:
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return frame.read(file)
    finally:
        posix.close(file)


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True
