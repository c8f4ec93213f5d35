"""A Proxmox VE API as far as pve-gpu asks: mappings, hardware, VM configurations. https, and with a memory.

It refuses what the real one refuses, in its words. Source: PVE::API2::Cluster::Mapping::PCI, PVE::Mapping::PCI,
PVE::API2::Hardware::PCI, PVE::API2::Qemu, PVE::SysFSTools.
"""
from __future__ import annotations

import hashlib
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "root@pam!gpu=5b3a3ee4-4c1d-4a4e-8f2a-0a2d6d1f3c55"
USER = TOKEN.partition("=")[0]
MAP_KEYS = {"node", "id", "subsystem-id", "path", "iommugroup", "description"}
MAPPING_KEYS = {"description", "mdev", "live-migration-capable", "map"}
NEEDED = {"node", "id", "path"}
ROOT_ONLY = {"affinity", "args", "hookscript", "hugepages"}
HIDDEN = ("0x05", "0x06", "0x0b")           # pci-class-blacklist: memory controllers, bridges, processors
VERIFICATION = "Parameter verification failed."
MODIFIED = "detected modified configuration - file changed by other user? Try again.\n"


class Refused(Exception):
    """`reason`: of the status line; PVE puts the message of a die there."""

    def __init__(self, status: int, reason: str, **errors: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.errors = status, reason, errors


class FakePve:
    """`nodes`: the /sys of each node, by name. `vms`: (node, configuration) by vmid. `before_write`: run once, before
    the next mapping is written, as another node would."""

    def __init__(self, nodes: dict[str, Path]) -> None:
        self.nodes = nodes
        self.mappings: dict[str, dict[str, Any]] = {}
        self.vms: dict[int, tuple[str, dict[str, str]]] = {}
        self.running: set[int] = set()
        self.locked: set[int] = set()
        self.offline: set[str] = set()
        self.snippets: dict[str, list[str] | None] = {name: [] for name in nodes}
        self.calls: list[tuple[str, str]] = []
        self.iommu = True
        self.before_write: Any = None
        self.address = ""

    def answer(self, method: str, path: str, given: dict[str, Any]) -> Any:
        self.calls.append((method, path))
        for pattern, verbs in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and method in verbs:
                return verbs[method](self, *found.groups(), **given)
        raise Refused(501, f"Method '{method} /{path}' not implemented")

    # ---- mappings ----

    def digest(self) -> str:
        return hashlib.sha1(json.dumps(self.mappings, sort_keys=True).encode()).hexdigest()

    def list_mappings(self, **given: str) -> Any:
        rows = [{"id": id, "digest": self.digest(), **mapping} for id, mapping in self.mappings.items()]
        if node := given.get("check-node"):
            for row in rows:
                row["checks"] = list(self._checks(row, node))
        return rows

    def _checks(self, row: dict[str, Any], node: str) -> Iterator[dict[str, str]]:
        entries = [fields for fields in map(properties, row["map"]) if fields["node"] == node]
        if not entries:
            yield {"severity": "warning", "message": f"No mapping for node {node}."}
        devices = {device["id"]: device for device in self.hardware(node)}
        for entry in entries:
            if wrong := wrong_with({**entry, "mdev": str(int(row.get("mdev", 0)))}, devices):
                yield {"severity": "error", "message": f"Invalid configuration: {wrong}\n"}

    def create_mapping(self, id: str, **given: Any) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]+", id):
            raise Refused(400, VERIFICATION, id=f"invalid format - invalid configuration ID '{id}'")
        self._meanwhile()
        self._check_mapping(given)
        if id in self.mappings:
            raise Refused(500, f"create hardware mapping failed: pci ID '{id}' already defined")
        self.mappings[id] = given

    def update_mapping(self, id: str, digest: str | None = None, **given: Any) -> None:
        self._meanwhile()
        self._check_mapping(given)
        if digest is not None and digest != self.digest():
            raise Refused(500, f"update hardware mapping failed: {MODIFIED}")
        if id not in self.mappings:
            raise Refused(500, f"update hardware mapping failed: pci ID '{id}' does not exist")
        self.mappings[id].update(given)

    def _meanwhile(self) -> None:
        step, self.before_write = self.before_write, None
        if step:
            step()

    def delete_mapping(self, id: str) -> None:
        self.mappings.pop(id, None)

    def _check_mapping(self, given: dict[str, Any]) -> None:
        for key in given.keys() - MAPPING_KEYS:
            raise Refused(400, VERIFICATION, **{key: "property is not defined in schema and the schema does not allow "
                                                     "additional properties"})
        if not given.get("map"):
            raise Refused(400, VERIFICATION, map="missing value for required option 'map'")
        given["map"] = [given["map"]] if isinstance(given["map"], str) else given["map"]
        for entry in map(properties, given["map"]):
            if not entry.keys() >= NEEDED or entry.keys() - MAP_KEYS:
                raise Refused(400, VERIFICATION, map="invalid format - format error")

    # ---- nodes ----

    def status(self) -> Any:
        return [{"type": "cluster", "name": "lab", "quorate": 1},
                *({"type": "node", "name": name, "ip": f"192.0.2.{number}", "online": int(name not in self.offline)}
                  for number, name in enumerate(self.nodes, 1))]

    def hardware(self, node: str, **given: str) -> list[dict[str, Any]]:
        folder = self.nodes[node] / "sys/bus/pci/devices"
        rows = (device_row(device) for device in sorted(folder.iterdir()))
        return [row if self.iommu else {**row, "iommugroup": -1} for row in rows
                if not row["class"].startswith(HIDDEN)]

    def storage(self, node: str, storage: str) -> Any:
        return {"content": "iso,vztmpl,backup" + (",snippets" if self.snippets[node] is not None else "")}

    def content(self, node: str, storage: str, content: str) -> Any:
        return [{"volid": f"{storage}:{content}/{name}"} for name in self.snippets[node] or ()]

    # ---- VMs ----

    def resources(self, type: str) -> Any:
        return [{"type": "qemu", "id": f"qemu/{vmid}", "vmid": vmid, "node": node, "name": config.get("name", ""),
                 "status": "running" if vmid in self.running else "stopped", "tags": config.get("tags", "")}
                for vmid, (node, config) in self.vms.items()] + [
                {"type": "lxc", "id": "lxc/900", "vmid": 900, "node": next(iter(self.nodes)), "status": "stopped"}]

    def config(self, node: str, vmid: str) -> Any:
        _, config = self._vm(node, vmid)
        return {**config, "digest": hashlib.sha1(json.dumps(config, sort_keys=True).encode()).hexdigest()}

    def set_config(self, node: str, vmid: str, digest: str, delete: str = "", **given: str) -> None:
        _, config = self._vm(node, vmid)
        gone = [key for key in delete.split(",") if key]
        self._check_root({**config, **given}, [*given, *gone])
        if int(vmid) in self.locked:
            raise Refused(500, "VM is locked (backup)")
        if digest != self.config(node, vmid)["digest"]:
            raise Refused(500, MODIFIED)
        for key in gone:
            config.pop(key, None)
        config.update(given)
        if "description" in given:      # lines of the file: no blank ones at its end, a newline after the last
            config["description"] = given["description"].rstrip("\n") + "\n"

    def create_vm(self, node: str, vmid: str, **given: str) -> str:
        if int(vmid) in self.vms:
            raise Refused(500, f"unable to create VM {vmid} - VM {vmid} already exists on node '{node}'")
        self._check_root(given, list(given))
        self.vms[int(vmid)] = (node, given)
        return f"UPID:{node}:000003E8:00001B58:6B0D4A12:qmcreate:{vmid}:{USER}:"

    def _check_root(self, config: dict[str, str], keys: list[str]) -> None:
        for key in keys:
            if key in ROOT_ONLY:
                raise Refused(500, f"only root can set '{key}' config")
            if key.startswith("hostpci") and "mapping=" not in config.get(key, ""):
                raise Refused(500, f"only root can set '{key}' config for non-mapped devices")

    def _vm(self, node: str, vmid: str) -> tuple[str, dict[str, str]]:
        known = self.vms.get(int(vmid))
        if known is None or known[0] != node:
            raise Refused(500, f"Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist")
        return known


MAPPINGS, VM = "cluster/mapping/pci", "nodes/([^/]+)/qemu"
ROUTES = (
    (MAPPINGS, {"GET": FakePve.list_mappings, "POST": FakePve.create_mapping}),
    (MAPPINGS + "/([^/]+)", {"PUT": FakePve.update_mapping, "DELETE": FakePve.delete_mapping}),
    ("cluster/status", {"GET": FakePve.status}),
    ("cluster/resources", {"GET": FakePve.resources}),
    ("nodes/([^/]+)/hardware/pci", {"GET": FakePve.hardware}),
    ("nodes/([^/]+)/storage/([^/]+)/status", {"GET": FakePve.storage}),
    ("nodes/([^/]+)/storage/([^/]+)/content", {"GET": FakePve.content}),
    (VM, {"POST": FakePve.create_vm}),
    (VM + "/([^/]+)/config", {"GET": FakePve.config, "PUT": FakePve.set_config}),
)


def properties(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(","))


def wrong_with(entry: dict[str, str], devices: dict[str, dict[str, Any]]) -> str | None:
    path = entry["path"] if "." in entry["path"] else entry["path"] + ".0"
    if path not in devices:
        return f"pci device '{path}' not found"
    row = devices[path]
    expected = {"id": ids(row, ""), "iommugroup": str(row["iommugroup"]), "mdev": str(row.get("mdev", 0)),
                "subsystem-id": ids(row, "subsystem_") if "subsystem_vendor" in row else None}
    differs = (name for name, value in sorted(expected.items()) if entry.get(name) != value)
    return next((f"'{name}' does not match ({expected[name]} != {entry.get(name)})" for name in differs), None)


def device_row(device: Path) -> dict[str, Any]:
    """A device as PVE::SysFSTools::lspci tells it."""
    names = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device")
    row: dict[str, Any] = {name: (device / name).read_text().strip() for name in names if (device / name).exists()}
    group = device / "iommu_group"
    mdev = (device / "mdev_supported_types").is_dir() or (device / "nvidia").is_dir()
    return {"id": device.name, **row, "iommugroup": int(group.readlink().name) if group.is_symlink() else -1,
            **({"mdev": 1} if mdev else {})}


def ids(row: dict[str, Any], part: str) -> str:
    return f"{row[part + 'vendor'][2:]}:{row[part + 'device'][2:]}"


# ---- serving ---------------------------------------------------------------------------------------

class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values if len(values) > 1 else values[0] for name, values in self._given(url.query).items()}
        status, reason, body = 200, "OK", {}
        try:
            if self.headers["Authorization"] != f"PVEAPIToken={TOKEN}":
                raise Refused(401, "invalid token value!")
            body = {"data": self.server.pve.answer(self.command, url.path.removeprefix("/api2/json/"), given)}
        except Refused as refused:
            status, reason = refused.status, refused.reason.replace("\n", " ").strip()
            body = {"data": None, **({"errors": refused.errors} if refused.errors else {})}
        data = json.dumps(body).encode()
        self.send_response(status, reason)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_DELETE = do_GET

    def _given(self, query: str) -> dict[str, list[str]]:
        form = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        return {**parse_qs(query), **parse_qs(form, keep_blank_values=True)}

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    pve: FakePve

    def handle_error(self, *_: object) -> None:
        """A client that does not trust the certificate hangs up."""


@contextmanager
def serving(pve: FakePve, certificate: Path) -> Iterator[FakePve]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.pve, pve.address = pve, f"localhost:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield pve
        finally:
            server.shutdown()
            thread.join()


def make_certificate(folder: Path) -> Path:
    """Key and self-signed certificate for localhost, as a new cluster has one for its nodes."""
    key, file = folder / "key.pem", folder / "pve.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                    "-keyout", key, "-out", file], check=True, capture_output=True)
    file.write_text(key.read_text() + file.read_text())
    return file
