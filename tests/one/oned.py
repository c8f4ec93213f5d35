"""oned's XML-RPC, as far as one-gpu asks: answers are [True, value, 0] or [False, message, code]."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

SESSION = "oneadmin:secret"
AUTHENTICATION, NO_EXISTS, ACTION = 0x0100, 0x0400, 0x0800


class Oned:
    """`calls`: what was asked, without the session. `vms`: by id, a list of XML that one.vm.info tells one after the
    other, the last of them again and again."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.hosts: list[str] = []
        self.vms: dict[int, list[str]] = {}
        self.templates: dict[str, int] = {}
        self.hooks: dict[str, int] = {}
        self.endpoint = ""

    def _dispatch(self, method: str, arguments: tuple[object, ...]) -> list[object]:
        session, *rest = arguments
        self.calls.append((method, *rest))
        if session != SESSION:
            return [False, "[one.x] User couldn't be authenticated, aborting.", AUTHENTICATION]
        return getattr(self, method.replace(".", "_"))(*rest)

    def one_hostpool_info(self) -> list[object]:
        return [True, f"<HOST_POOL>{''.join(self.hosts)}</HOST_POOL>", 0]

    def one_vm_info(self, number: int) -> list[object]:
        if number not in self.vms:
            return [False, f"[one.vm.info] Error getting virtual machine [{number}].", NO_EXISTS]
        told = self.vms[number]
        return [True, told.pop(0) if len(told) > 1 else told[0], 0]

    def one_vm_recover(self, number: int, operation: int) -> list[object]:
        return [True, number, 0]

    def one_templatepool_info(self, owner: int, start: int, end: int) -> list[object]:
        known = "".join(f"<VMTEMPLATE><ID>{number}</ID><NAME>{name}</NAME></VMTEMPLATE>"
                        for name, number in self.templates.items())
        return [True, f"<VMTEMPLATE_POOL>{known}</VMTEMPLATE_POOL>", 0]

    def one_template_allocate(self, text: str) -> list[object]:
        return [True, 7, 0]

    def one_template_update(self, number: int, text: str, merge: int) -> list[object]:
        return [True, number, 0]

    def one_hookpool_info(self) -> list[object]:
        known = "".join(f"<HOOK><ID>{number}</ID><NAME>{name}</NAME></HOOK>" for name, number in self.hooks.items())
        return [True, f"<HOOK_POOL>{known}</HOOK_POOL>", 0]

    def one_hook_allocate(self, text: str) -> list[object]:
        return [True, 3, 0]

    def one_hook_delete(self, number: int) -> list[object]:
        return [True, number, 0]


class _Quiet(SimpleXMLRPCRequestHandler):
    rpc_paths = ("/RPC2",)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Oned]:
    oned = Oned()
    with SimpleXMLRPCServer(("127.0.0.1", 0), _Quiet, allow_none=True) as server:
        server.register_instance(oned)
        oned.endpoint = f"http://127.0.0.1:{server.server_address[1]}/RPC2"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield oned
        finally:
            server.shutdown()
            thread.join()


def host(name: str, attributes: str = "", state: int = 2, pci: tuple[str, ...] = ()) -> str:
    """`attributes`: XML below TEMPLATE."""
    devices = "".join(f"<PCI><ADDRESS>{address}</ADDRESS></PCI>" for address in pci)
    return (f"<HOST><ID>0</ID><NAME>{name}</NAME><STATE>{state}</STATE><CLUSTER>default</CLUSTER>"
            f"<HOST_SHARE><PCI_DEVICES>{devices}</PCI_DEVICES></HOST_SHARE><TEMPLATE>{attributes}</TEMPLATE></HOST>")


def gpus(*pools: tuple[str, str, int, int, int, int], boards: str = "", trouble: str = "") -> str:
    """Host attributes as our probe prints them. Pool: profile, model, total, taken, free, sellable."""
    names = ("PROFILE", "MODEL", "TOTAL", "TAKEN", "FREE", "SELLABLE")
    vectors = ["".join(f"<{name}>{value}</{name}>" for name, value in zip(names, pool, strict=True)) for pool in pools]
    return (f"<GPU_BOARDS>{boards}</GPU_BOARDS><GPU_TROUBLE>{escape(trouble)}</GPU_TROUBLE>"
            + "".join(f"<GPU_POOL>{vector}</GPU_POOL>" for vector in vectors))


def vm(number: int, error: str, earlier: tuple[int, ...] = (), state: int = 3, lcm_state: int = 36) -> str:
    """A VM; `earlier`: the ACTION that ended each placement before the present one."""
    records = "".join(f"<HISTORY><OID>{number}</OID><SEQ>{seq}</SEQ><ACTION>{action}</ACTION></HISTORY>"
                      for seq, action in enumerate((*earlier, 0)))
    return (f"<VM><ID>{number}</ID><STATE>{state}</STATE><LCM_STATE>{lcm_state}</LCM_STATE>"
            f"<USER_TEMPLATE><ERROR>{escape(error)}</ERROR></USER_TEMPLATE>"
            f"<HISTORY_RECORDS>{records}</HISTORY_RECORDS></VM>")
