"""The cloud as OpenNebula's API tells it. pyone is imported here alone, when it is needed."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvm_gpu.errors import HostError, RequestError

ENDPOINT: Final = "http://localhost:2633/RPC2"
ONEADMINS: Final = Path("/var/lib/one/.one/one_auth")
TIMEOUT_S: Final = 30
MINE: Final = -3                # pool filter: what belongs to the user who asks
ALL: Final = -1
# Source: include/Host.h. Others are starting, in trouble, disabled or off: nothing new is placed there.
PLACES_NEW: Final = frozenset({1, 2})


class CloudHost(NamedTuple):
    """`attributes`: text by name; for a vector a table, or a list of them. `pci`: addresses of what oned lists as PCI
    devices."""
    name: str
    cluster: str
    places_new: bool
    attributes: dict[str, Any]
    pci: tuple[str, ...]


class Cloud:
    """Every method raises HostError where oned cannot be reached or refuses."""

    def __init__(self, endpoint: str, session: str) -> None:
        try:
            import pyone  # type: ignore[import-untyped]
        except ImportError:
            raise HostError("the Python package pyone is not installed", "pip install pyone") from None
        self._endpoint = endpoint
        self._failures = (pyone.OneException, OSError)
        self._server = pyone.OneServer(endpoint, session=session, timeout=TIMEOUT_S)

    def hosts(self) -> tuple[CloudHost, ...]:
        """All hosts by name."""
        return tuple(sorted((_host(host) for host in self._ask("hostpool.info").HOST), key=lambda host: host.name))

    def vm(self, number: int) -> Any:
        """pyone's VM."""
        return self._ask("vm.info", number)

    def recreate(self, number: int) -> None:
        """onevm recover --recreate: the VM is pending again, with new disks."""
        self._ask("vm.recover", number, 4)

    def put_template(self, name: str, text: str) -> int:
        """The id of the user's template of that name: a new one, or the old one with these attributes in place of those
        of the same names. Other attributes stay: disks, networks, context."""
        pool = self._ask("templatepool.info", MINE, ALL, ALL)
        known = [template.ID for template in pool.VMTEMPLATE if name == template.NAME]
        if known:
            self._ask("template.update", known[0], text, 1)
            return int(known[0])
        return int(self._ask("template.allocate", f'NAME = "{name}"\n{text}'))

    def hooks(self) -> dict[str, int]:
        """Ids by name."""
        return {hook.NAME: hook.ID for hook in self._ask("hookpool.info").HOOK}

    def add_hook(self, text: str) -> int:
        return int(self._ask("hook.allocate", text))

    def remove_hook(self, number: int) -> None:
        self._ask("hook.delete", number)

    def _ask(self, method: str, *arguments: object) -> Any:
        call = self._server
        for name in method.split("."):
            call = getattr(call, name)
        try:
            return call(*arguments)
        except self._failures as error:
            raise HostError(f"{self._endpoint}: one.{method}: {error}") from None


def open_cloud() -> Cloud:
    """As OpenNebula's own tools: ONE_XMLRPC, else this host; ONE_AUTH, else ~/.one/one_auth, else oneadmin's. Raises
    RequestError."""
    own = Path.home() / ".one/one_auth"
    file = Path(os.environ.get("ONE_AUTH") or (own if own.exists() else ONEADMINS))
    try:
        session = file.read_text("utf-8").strip()
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}", "run it as oneadmin, or set ONE_AUTH") from None
    return Cloud(os.environ.get("ONE_XMLRPC") or ENDPOINT, session)


def _host(host: Any) -> CloudHost:
    devices = host.HOST_SHARE.PCI_DEVICES
    listed = () if devices is None else devices.PCI
    return CloudHost(host.NAME, host.CLUSTER, host.STATE in PLACES_NEW, dict(host.TEMPLATE or {}),
                     tuple(_address(device.ADDRESS) for device in listed))


def _address(text: str) -> str:
    """oned's "0000:c1:02:0" -> "0000:c1:02.0"."""
    device, _, function = text.rpartition(":")
    return f"{device}.{function}"
