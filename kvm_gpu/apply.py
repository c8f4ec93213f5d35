"""Perform and undo Actions. Each names a state, so doing it twice is harmless; each is read back.

What reads neither as we found it nor as we leave it was changed by somebody else, and stays as it is.
"""
from __future__ import annotations

from errno import EACCES, EBUSY, EIO, ENODEV, ENOENT, ENOSPC, EPERM, EUSERS

from kvm_gpu.errors import HostError
from kvm_gpu.inuse import InUse, Kept, devices_behind, with_all_on
from kvm_gpu.model import Attribute, Driver, Mdev
from kvm_gpu.sysfs import DEVICES, MDEVS, Sysfs, WriteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Optional

    from kvm_gpu.model import Action

__all__ = ["InUse", "apply", "undo"]

DRIVERS_PROBE: Final = "/sys/bus/pci/drivers_probe"
HINTS: Final = {
    EACCES: "the file is read-only: is /sys mounted read-only, or is this not root?",
    EBUSY: "something still uses it: a VM, a monitoring tool, or an earlier setting that has to go first",
    EIO: "the driver could not do it: see the kernel's log, and whether the type fits beside what the board holds",
    ENODEV: "the device or the type is not there any more: read the host again",
    ENOENT: "no driver that offers this is bound to the device",
    ENOSPC: "no instance of this type is left",
    EPERM: "the driver forbids it in this state: does the type fit beside what the board holds?",
    EUSERS: "no instance of this type is left",
}


def apply(sysfs: Sysfs, actions: tuple[Action, ...]) -> None:
    """Bring about the states in order; if one fails, undo it and those before it, last first.
    Raises HostError that tells what failed, what was undone and what could not be, InUse where a VM has the device."""
    for begun, action in enumerate(actions):
        try:
            _perform(sysfs, action)
        except HostError as error:
            _roll_back(sysfs, actions[:begun], error)
            raise


def undo(sysfs: Sysfs, actions: tuple[Action, ...]) -> None:
    """Bring the states from before back, last first; what is gone counts as undone, and one that fails does not keep
    the others. Raises the first failure with the text of all: HostError, InUse where a VM has the device."""
    failures = []
    for action in reversed(actions):
        try:
            _undo_one(sysfs, action)
        except HostError as error:
            failures.append(error)
    for other in failures[1:]:
        _add(failures[0], other.message)
    if failures:
        raise failures[0]


def stands(sysfs: Sysfs, action: Action) -> bool:
    """Whether there is something to undo: the action was performed, or half of it. Raises HostError."""
    if isinstance(action, Attribute):
        return sysfs.read(action.path) in {action.value, action.through} - {action.before, None}
    if isinstance(action, Driver):
        return action.driver != action.before and sysfs.link(f"{DEVICES}{action.function}/driver") == action.driver
    return isinstance(action, Mdev) and _is_ours(sysfs, action)


def _roll_back(sysfs: Sysfs, actions: tuple[Action, ...], error: HostError) -> None:
    for action in reversed(actions):
        try:
            _undo_one(sysfs, action)
            _add(error, f"undone: {_name(action)}")
        except HostError as second:
            _add(error, f"not undone: {second.message}")


def _perform(sysfs: Sysfs, action: Action) -> None:
    if isinstance(action, Attribute):
        _set(sysfs, action)
    elif isinstance(action, Driver):
        _bind(sysfs, action)
    elif isinstance(action, Mdev):
        _create(sysfs, action)
    else:
        raise HostError(f"{' '.join(action.argv)}: commands are not run yet")


def _undo_one(sysfs: Sysfs, action: Action) -> None:
    if isinstance(action, Attribute):
        _reset(sysfs, action)
    elif isinstance(action, Driver):
        _rebind(sysfs, action)
    elif isinstance(action, Mdev):
        _remove(sysfs, action)


# ---- attributes ----

def _set(sysfs: Sysfs, action: Attribute) -> None:
    if _present(sysfs, action) is None:
        raise HostError(f"{action.path}: does not exist", HINTS[ENOENT])
    try:
        _move(sysfs, action.path, action.value, action.through)
    except HostError as error:
        try:
            _move(sysfs, action.path, action.before, action.through)
        except HostError as second:
            _add(error, f"not put back: {second.message}")
        raise


def _reset(sysfs: Sysfs, action: Attribute) -> None:
    if _present(sysfs, action) is not None:
        _move(sysfs, action.path, action.before, action.through)


def _present(sysfs: Sysfs, action: Attribute) -> Optional[str]:
    """What the attribute reads, None where it does not exist. Raises HostError if somebody else changed it."""
    now = sysfs.read(action.path)
    if now is not None and now not in (action.value, action.before, action.through):
        raise HostError(f"{action.path}: reads {now!r}, neither {action.before!r} as found nor {action.value!r} as set",
                        "somebody else changed it: undo that, or let reconcile record it")
    return now


def _move(sysfs: Sysfs, path: str, value: str, through: Optional[str]) -> None:
    now = sysfs.read(path)
    if now == value:
        return      # not only to save time: some drivers answer EPERM to what is so already
    if through is not None and now != through:
        with Kept(sysfs, devices_behind(sysfs, path)):
            _write(sysfs, path, through)
    if value != through:
        _write(sysfs, path, value)


def _write(sysfs: Sysfs, path: str, value: str) -> None:
    _store(sysfs, path, value)
    seen = sysfs.read(path)
    if seen != value:
        raise HostError(f"{path}: wrote {value!r}, reads {seen!r}", "the driver did otherwise: see the kernel's log")


def _store(sysfs: Sysfs, path: str, value: str) -> None:
    try:
        sysfs.write(path, value)
    except WriteError as error:
        error.hint = HINTS.get(error.errno, "see the kernel's log")
        raise


# ---- mediated devices ----

def _create(sysfs: Sysfs, action: Mdev) -> None:
    if not sysfs.exists(MDEVS + action.uuid):
        _store(sysfs, action.type_path + "/create", action.uuid)
    if not _is_ours(sysfs, action):
        parent, kind = _identity(sysfs, action.uuid)
        raise HostError(f"mdev {action.uuid}: is of type {kind} on {parent}, wanted was {action.type_path}",
                        "it is not ours and was left as it is")


def _remove(sysfs: Sysfs, action: Mdev) -> None:
    folder = MDEVS + action.uuid
    if not _is_ours(sysfs, action):
        return
    with Kept(sysfs, (folder,)):
        try:
            _store(sysfs, folder + "/remove", "1")
        except WriteError:
            if sysfs.exists(folder):    # else it went away by itself meanwhile
                raise
    if sysfs.exists(folder):
        raise HostError(f"{folder}: still there after its removal", "see the kernel's log")


def _is_ours(sysfs: Sysfs, action: Mdev) -> bool:
    parent, _, kind = action.type_path.rsplit("/", 2)
    return _identity(sysfs, action.uuid) == (parent.rpartition("/")[2], kind)


def _identity(sysfs: Sysfs, uuid: str) -> tuple[Optional[str], Optional[str]]:
    """(name of the mdev's parent, folder name of its type), None where there is no such mdev.
    Source: Documentation/driver-api/vfio-mediated-device.rst."""
    target = sysfs.target(MDEVS + uuid)
    return target and target.split("/")[-2], sysfs.link(f"{MDEVS}{uuid}/mdev_type")


# ---- drivers ----

def _bind(sysfs: Sysfs, action: Driver) -> None:
    if not _bound_by_us(sysfs, action):
        raise HostError(f"{DEVICES}{action.function}: does not exist", "read the host again")
    override = _override(sysfs, action.function)
    try:
        _attach(sysfs, action.function, action.driver, action.driver or override)
    except HostError as error:
        try:
            _attach(sysfs, action.function, action.before, override)
        except HostError as second:
            _add(error, f"not put back: {second.message}")
        raise


def _rebind(sysfs: Sysfs, action: Driver) -> None:
    if _bound_by_us(sysfs, action):
        _attach(sysfs, action.function, action.before, "")


def _bound_by_us(sysfs: Sysfs, action: Driver) -> bool:
    """False where the function does not exist. Raises HostError if somebody else bound it."""
    folder = DEVICES + action.function
    now = sysfs.link(folder + "/driver")
    if now not in (None, action.driver, action.before):
        raise HostError(f"{folder}: bound to {now}, neither {action.before} as found nor {action.driver} as set",
                        "somebody else bound it: undo that, or let reconcile record it")
    return sysfs.exists(folder)


def _override(sysfs: Sysfs, function: str) -> str:
    text = sysfs.read(f"{DEVICES}{function}/driver_override")
    return "" if text in (None, "(null)") else text


def _attach(sysfs: Sysfs, function: str, driver: Optional[str], override: str) -> None:
    """Bind to `driver`, None: to none, and leave `override` in driver_override.
    Source: Documentation/ABI/testing/sysfs-bus-pci, driver_override."""
    folder = DEVICES + function
    now = sysfs.link(folder + "/driver")
    if now != driver:
        with Kept(sysfs, with_all_on(sysfs, folder)):
            _store(sysfs, folder + "/driver_override", driver or "")
            if now is not None:
                _store(sysfs, folder + "/driver/unbind", function)
            if driver is not None:
                _store(sysfs, DRIVERS_PROBE, function)
    if _override(sysfs, function) != override:
        _store(sysfs, folder + "/driver_override", override)
    seen = sysfs.link(folder + "/driver")
    if seen != driver:
        raise HostError(f"{folder}: bound to {seen}, wanted was {driver}", "is the driver's module loaded?")


# ---- telling ----

def _name(action: Action) -> str:
    if isinstance(action, Attribute):
        return action.path
    if isinstance(action, Driver):
        return f"driver of {action.function}"
    if isinstance(action, Mdev):
        return f"mdev {action.uuid}"
    return " ".join(action.argv)


def _add(error: HostError, text: str) -> None:
    error.message += f"; {text}"
    error.args = (error.message,)
