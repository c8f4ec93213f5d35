"""The state hook on BOOT_FAILURE: a VM that was refused for want of a GPU is scheduled again, at most LIMIT times.

Of oned's recoveries only delete-recreate leads back to the scheduler (`retry` starts on the same host again, and
`resched` wants a running VM), and it makes the VM's disks anew. So it is done only where nothing can be lost: where the
VM has not run since its disks were made. A powered-off VM that was moved fails in the same state, and is left alone.
"""
from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from time import sleep
from typing import Any, Final
from xml.parsers import expat

from kvm_gpu.errors import RequestError
from one_gpu_driver.cloud import Cloud
from one_gpu_driver.refused import NO_GPU

HOOK: Final = "kvm-gpu-retry"
COMMAND: Final = "/var/lib/one/remotes/hooks/kvm-gpu/retry"
LIMIT: Final = 3
WAIT_S: Final = 30              # until the hosts' attributes show what the failed starts found
# Source: include/VirtualMachine.h, include/VMActions.h.
ACTIVE: Final = 3
BOOT_FAILURE: Final = 36
DELETE_RECREATE: Final = 14


def retry(cloud: Cloud, message: bytes, wait: Callable[[float], object] = sleep) -> str:
    """What was done, in words. `message`: oned's base64 of the VM's XML. Raises RequestError, HostError."""
    number = vm_number(message)
    seen = cloud.vm(number)
    if why := why_not(seen):
        return f"VM {number}: {why}"
    wait(WAIT_S)
    now = cloud.vm(number)
    if why_not(now) or len(records(now)) != len(records(seen)):
        return f"VM {number}: somebody else went on with it"
    cloud.recreate(number)
    return f"VM {number}: scheduled again, {len(records(now))} of {LIMIT}"


def why_not(vm: Any) -> str | None:
    """Why this VM is left as it is; None if it may be recreated."""
    earlier = [record.ACTION for record in records(vm)[:-1]]
    if (vm.STATE, vm.LCM_STATE) != (ACTIVE, BOOT_FAILURE):
        return "its start has not failed"
    if NO_GPU not in str((vm.USER_TEMPLATE or {}).get("ERROR", "")):
        return "its start failed for another reason"
    if any(action != DELETE_RECREATE for action in earlier):
        return "it may have run before: its disks are not thrown away"
    if len(earlier) >= LIMIT:
        return f"was scheduled again {LIMIT} times"
    return None


def records(vm: Any) -> list[Any]:
    """Its history, in order: one record for each placement on a host."""
    return [] if vm.HISTORY_RECORDS is None else sorted(vm.HISTORY_RECORDS.HISTORY, key=lambda record: int(record.SEQ))


def vm_number(message: bytes) -> int:
    """/VM/ID of the hook's message. Raises RequestError."""
    path: list[str] = []
    found: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: path.append(name)
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = lambda text: found.append(text) if path == ["VM", "ID"] else None
    try:
        parser.Parse(base64.b64decode(message, validate=False), True)
        return int("".join(found))
    except (binascii.Error, expat.ExpatError, ValueError):
        raise RequestError("stdin is not the base64 of a VM, as oned gives it to a hook") from None
