"""Every expected failure, with the exit code that a script can rely on. Anything else is a bug: exit 1."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvm_gpu.model import Refusal


class GpuError(Exception):
    """`message` says who asked, what was found where and why it fails; `hint` what helps."""
    code = "bug"
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RequestError(GpuError):
    """The request, the domain XML or the command line is wrong."""
    code = "request"
    exit_code = 2


class NoCapacity(GpuError):
    """A well-formed request that this host cannot serve now; `refusal` has a reason for each candidate."""
    code = "refused"
    exit_code = 3

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message, refusal.hint)
        self.refusal = refusal


class HostError(GpuError):
    """The host is not fit: a file cannot be read or written, the kernel refused a step, the disk is full."""
    code = "host"
    exit_code = 4


class OwnershipError(GpuError):
    """Not allowed, or not the holder."""
    code = "ownership"
    exit_code = 5


class BusyError(GpuError):
    """The ledger's lock is held by somebody else, or the host is not restored yet: try again."""
    code = "busy"
    exit_code = 75
