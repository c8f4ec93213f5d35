"""QEMU's monitor, asked one question. Not on the way of a VM's start: QEMU runs already."""
from __future__ import annotations

import json

# `socket` imports selectors and enum
from _socket import AF_UNIX, SOCK_STREAM, socket

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

PATH: Final = "/run/qemu-server/{}.qmp"
TIMEOUT_S: Final = 5.0          # one client at a time; Proxmox VE's own questions are short
LIMIT: Final = 1 << 20          # bytes of one line


def vcpu_threads(root: str, vm: str) -> dict[int, int]:
    """Thread by vCPU, of those that are plugged in. Raises HostError.
    Source: query-cpus-fast in QEMU's QMP reference."""
    path = root + PATH.format(vm)
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(path)
        monitor = _Monitor(connection)
        monitor.ask("qmp_capabilities")
        return {int(cpu["cpu-index"]): int(cpu["thread-id"]) for cpu in monitor.ask("query-cpus-fast")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(f"{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()


class _Monitor:
    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._unread = b""
        self._line()            # the greeting

    def ask(self, command: str) -> Any:
        """The answer; events that come before it are passed over. Raises OSError, ValueError."""
        self._connection.sendall(b'{"execute": "%s"}\r\n' % command.encode())
        while True:
            said = json.loads(self._line())
            if "return" in said:
                return said["return"]
            if "error" in said:
                raise ValueError(f"{command}: {said['error']}")

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            part = self._connection.recv(1 << 16)
            if not part or len(self._unread) > LIMIT:
                raise ValueError("QEMU ended the conversation")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line
