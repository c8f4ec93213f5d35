"""Starting the stock script, and the helper that runs as root.

Files in memory take the place of pipes: nothing has to be pumped, and nobody waits for a reader.
"""
from __future__ import annotations

import posix

# `signal` itself imports enum: 3 ms
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]

from one_gpu_driver import frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, NamedTuple, NoReturn, Optional
else:
    from kvm_gpu.light import NamedTuple

SUDO: Final = ("sudo", "-n", "/usr/libexec/kvm-gpu/one-helper")
SUDO_SAYS: Final = b"sudo: "
IGNORED: Final = (SIGPIPE, SIGXFSZ)     # by Python; a shell script and its pipes want them back
NOT_FOUND: Final = 127


class Answer(NamedTuple):
    """What the helper said. `parts` are empty where it failed."""
    code: int
    parts: tuple[bytes, ...]
    err: bytes


def become(command: list[str], stdin: Optional[bytes] = None) -> NoReturn:
    """Go on as this command, with `stdin` in place of what was read of it."""
    if stdin is not None:
        posix.dup2(_memory(stdin), 0)
    for number in IGNORED:
        signal(number, SIG_DFL)
    try:
        posix.execv(command[0], command)
    except OSError as error:
        frame.write(2, f"{command[0]}: {error.strerror}\n".encode())
        posix._exit(NOT_FOUND)


def run(command: list[str]) -> int:
    """Exit code of the command, which has our stdin, stdout and stderr; less than 0 where a signal ended it."""
    try:
        return exit_code(posix.posix_spawn(command[0], command, posix.environ, setsigdef=IGNORED))
    except OSError as error:
        frame.write(2, f"{command[0]}: {error.strerror}\n".encode())
        return NOT_FOUND


class Waiting:
    """A process that will be the command, or nothing. Its pid and start time stay the same when it becomes it, so a
    claim can name it as the holder before it starts."""

    def __init__(self, command: list[str]) -> None:
        self._stdin = _memory()
        told, self._tell = posix.pipe()
        self.pid = posix.fork()
        if self.pid == 0:
            posix.close(self._tell)
            if not posix.read(told, 1):     # who should tell us is dead, or has given up
                posix._exit(NOT_FOUND)
            posix.dup2(self._stdin, 0)
            become(command)
        posix.close(told)

    def start(self, stdin: bytes) -> int:
        """Exit code of the command with this on its stdin; less than 0 where a signal ended it."""
        _fill(self._stdin, stdin)
        posix.write(self._tell, b"1")
        return exit_code(self.pid)

    def give_up(self) -> None:
        posix.close(self._tell)
        posix.waitpid(self.pid, 0)


def ask(verb: str, *parts: bytes) -> Answer:
    """What the helper says to this."""
    stdin, out, err = _memory(frame.pack(*parts)), _memory(), _memory()
    places = [(posix.POSIX_SPAWN_DUP2, file, place) for place, file in enumerate((stdin, out, err))]
    try:
        pid = posix.posix_spawnp(SUDO[0], [*SUDO, verb], posix.environ, file_actions=places, setsigdef=IGNORED)
    except OSError as error:
        return Answer(NOT_FOUND, (), f"{SUDO[0]}: {error.strerror}\n".encode())
    code = exit_code(pid)
    said = _heard(code, _content(err))
    for file in (stdin, err):
        posix.close(file)
    return Answer(code, frame.unpack(_content(out)) if code == 0 else (), said)


def _heard(code: int, said: bytes) -> bytes:
    """What sudo itself said is for the log alone where it ran the helper, as it does on a host whose own name does not
    resolve."""
    lines = said.splitlines(keepends=True)
    if code and all(line.startswith(SUDO_SAYS) for line in lines):
        return said
    return b"".join(b"WARN: " + line if line.startswith(SUDO_SAYS) else line for line in lines)


def exit_code(pid: int) -> int:
    """Of a child when it has ended; less than 0, by the signal, where one ended it."""
    return posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])


def _memory(content: bytes = b"") -> int:
    file = posix.memfd_create("kvm-gpu")
    _fill(file, content)
    return file


def _fill(file: int, content: bytes) -> None:
    frame.write(file, content)
    posix.lseek(file, 0, 0)


def _content(file: int) -> bytes:
    posix.lseek(file, 0, 0)
    return frame.read(file)
