"""The ledger's file: made whole or not at all, opened, and its failures told.

SQLite in WAL mode: readers never wait, and a commit is one write and one sync. Nothing relies on a connection
being closed; a process may die at any point and the next one finds the last commit.
"""
from __future__ import annotations

import posix
from errno import EEXIST, ENOENT, errorcode

from kvm_gpu.errors import BusyError, GpuError, HostError
from kvm_gpu.holder import command_of, lock_holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Final
else:
    try:
        import _sqlite3 as sqlite3  # what sqlite3 hands on; that also imports datetime, 1.3 ms for each VM start
    except ImportError:
        import sqlite3

Error = sqlite3.Error
FORMAT: Final = 1       # pragma user_version
WAIT_S: Final = 4.0     # for the write lock; a hook has to answer within 5 s
WRITE_LOCK: Final = 120     # byte of the -shm file. Source: https://sqlite.org/walformat.html, "WAL locks"

# Tuples of text stand one item a line, CPUs as the kernel writes them ("8-11,40"), so that a person can read them.
# `unique` and `primary key` keep a double give out even where the code that decides is wrong.
SCHEMA: Final = f"""
create table claims(
    id text primary key not null, vm text not null, user text, groups text not null, state text not null,
    keep integer not null, boot text not null, holder_pid integer, holder_start integer, deadline integer,
    since integer not null, verified_at integer, note text);
create unique index one_run on claims(vm) where state <> 'releasing';
create table holds(
    slot text primary key not null, claim text not null references claims on delete cascade, board text not null,
    layout text not null, cell text not null, profile text not null, start integer not null, size integer not null,
    mechanism text not null, functions text not null, uuid text unique, bar_mib integer,
    identity text);
create table uses(
    claim text not null references claims on delete cascade, guest_node integer not null, node integer,
    pins text not null, cpus text not null, mib integer not null, page_kib integer, primary key(claim, guest_node));
create table cpus(cpu integer primary key, claim text not null references claims on delete cascade);
create table actions(
    claim text not null references claims on delete cascade, seq integer not null, kind text not null,
    target text not null, value text, before text, through text, primary key(claim, seq));
create table events(
    seq integer primary key, time integer not null, claim text, vm text, event text not null, detail text);
create table cordons(board text primary key not null, since integer not null, why text not null);
pragma user_version={FORMAT};
"""

WRITABLE: Final = "the ledger's file system has to be writable, and the caller root"
HINTS: Final = {
    sqlite3.SQLITE_FULL: "make room on the ledger's file system",
    sqlite3.SQLITE_IOERR: "see the kernel's log for the disk, and whether its file system is full",
    sqlite3.SQLITE_READONLY: WRITABLE,
    sqlite3.SQLITE_CANTOPEN: WRITABLE,
    sqlite3.SQLITE_PERM: WRITABLE,
    sqlite3.SQLITE_CORRUPT: "keep a copy, then restore the file from a backup, or move it away and reconcile",
    sqlite3.SQLITE_NOTADB: "this file is no ledger: restore it from a backup, or move it away and reconcile",
    sqlite3.SQLITE_CONSTRAINT: "it is held already: please report this as a bug, with the output of `list --json`",
}


def exists(path: str) -> bool:
    """Raises HostError where that cannot be told."""
    try:
        posix.stat(path)
    except OSError as error:
        if error.errno == ENOENT:
            return False
        raise _refused(path, error) from None
    return True


def log_size(path: str) -> int:
    """Bytes of SQLite's write-ahead log; 0 where there is none."""
    try:
        return posix.stat(path + "-wal").st_size
    except OSError:
        return 0


def create(path: str) -> None:
    """An empty ledger at `path`, for root alone; harmless where there is one. Raises HostError.
    It is made aside and linked into place, so that sixteen first starts at once, and one that dies here, leave one
    whole ledger or none."""
    folder = path.rpartition("/")[0] or "."
    aside = f"{path}.{posix.getpid()}"
    try:
        _folder(folder)
        _remove(aside)
        posix.close(posix.open(aside, posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | posix.O_CLOEXEC, 0o600))
        try:
            _fill(aside)
            _link(aside, path)
        finally:
            _remove(aside)
        _sync(folder)
    except OSError as error:
        raise _refused(path, error) from None


def connect(path: str) -> sqlite3.Connection:
    """A connection to the ledger that is there. Raises HostError, BusyError."""
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        # mode=rw: a ledger that was taken away meanwhile is an error, not a new empty one
        db = sqlite3.connect(f"file:{name}?mode=rw", uri=True, isolation_level=None, timeout=WAIT_S)
        db.execute("pragma foreign_keys=on")
        [version] = db.execute("pragma user_version").fetchone()
    except sqlite3.Error as error:
        raise failure(path, error) from None
    if version != FORMAT:
        db.close()
        raise HostError(f"{path} is of format {version}, this package knows {FORMAT}; it was left as it is",
                        "install the package that wrote it, or move the file away while no VM with a GPU runs")
    return db


def failure(path: str, error: sqlite3.Error) -> GpuError:
    """What to raise for an error of SQLite: the path, the cause, and what helps. Nothing was changed.
    Source: https://sqlite.org/rescode.html."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xff
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(f"{path}: locked by {_lock_holder(path)} for more than {WAIT_S:g} s", "try again")
    if code not in HINTS:
        raise error
    return HostError(f"{path}: {error} ({getattr(error, 'sqlite_errorname', code)}); nothing was recorded", HINTS[code])


def _lock_holder(path: str) -> str:
    pid = lock_holder(path + "-shm", WRITE_LOCK)
    return "another process" if pid is None else f"process {pid} ({command_of(pid) or 'ended meanwhile'})"


def _folder(folder: str) -> None:
    try:
        posix.mkdir(folder, 0o700)
    except OSError as error:
        if error.errno != EEXIST:
            raise


def _fill(path: str) -> None:
    try:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("pragma journal_mode=wal")
        db.executescript(f"begin; {SCHEMA} commit;")
        db.close()      # writes all into the one file that will be linked, and removes the -wal
    except sqlite3.Error as error:
        raise failure(path, error) from None


def _link(aside: str, path: str) -> None:
    try:
        posix.link(aside, path)
    except OSError as error:
        if error.errno != EEXIST:   # another process was first: its ledger is the ledger
            raise


def _remove(path: str) -> None:
    for name in (path, path + "-journal", path + "-wal", path + "-shm"):
        try:
            posix.unlink(name)
        except OSError as error:
            if error.errno != ENOENT:
                raise


def _sync(folder: str) -> None:
    file = posix.open(folder, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        posix.fsync(file)
    finally:
        posix.close(file)


def _refused(path: str, error: OSError) -> HostError:
    name = errorcode.get(error.errno or 0, error.errno)
    return HostError(f"{path}: {error.strerror} ({name}); nothing was recorded", WRITABLE)
