"""The cluster as Proxmox VE's API tells it. proxmoxer is imported here alone, when it is needed."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvm_gpu.errors import BusyError, HostError, RequestError
from pve_gpu_hook.mapping import NODE

TOKEN: Final = "etc/pve/priv/kvm-gpu.token"     # only root can read this folder; every node of the cluster has it
CA: Final = "etc/pve/pve-root-ca.pem"
API: Final = "localhost:8006"
TIMEOUT_S: Final = 60
TOKEN_FORM: Final = re.compile(r"([^!\s]+@[^!\s]+)!([^=\s]+)=(\S+)")
# What others did meanwhile. Source: assert_if_modified in PVE::Tools, PVE::API2::Cluster::Mapping::PCI.
CHANGED: Final = ("detected modified configuration", "already defined")


class Pci(NamedTuple):
    """A PCI function as its node lists it: what a mapping is compared with at every start."""
    ids: str                        # "10de:25b6"
    subsystem: str | None
    iommugroup: int | None
    mdev: bool                      # has mdev_supported_types, or NVIDIA's folder for vendor VFIO


class Mapping(NamedTuple):
    """A resource mapping. `map`: property strings, one for each device of each node, in the order of preference."""
    id: str
    description: str
    mdev: bool
    map: tuple[str, ...]


class Node(NamedTuple):
    name: str
    address: str | None             # None: not in a cluster
    online: bool


class Guest(NamedTuple):
    """A VM, wherever in the cluster it is."""
    vmid: int
    node: str
    name: str
    running: bool
    tags: tuple[str, ...]


class Cluster:
    """Every method raises HostError where the API cannot be reached or refuses, BusyError where others changed the same
    thing meanwhile. `user`: who we are there."""

    def __init__(self, host: str, token: str, ca: Path) -> None:
        try:
            import proxmoxer  # type: ignore[import-untyped]
            import proxmoxer.backends.https  # type: ignore[import-untyped]
        except (ImportError, SystemExit):       # the latter where requests is missing
            raise HostError("the Python packages proxmoxer and requests are not installed",
                            "apt install python3-proxmoxer python3-requests") from None
        form = TOKEN_FORM.fullmatch(token)
        if form is None:
            raise RequestError("the API token is not like root@pam!gpu=12345678-...")
        user, name, secret = form.groups()
        self.user = f"{user}!{name}"
        self._failures = (proxmoxer.ResourceException, OSError)     # what requests raises is an OSError
        self._host = host
        self._api = proxmoxer.ProxmoxAPI(host, user=user, token_name=name, token_value=secret, verify_ssl=str(ca),
                                         timeout=TIMEOUT_S)

    # ---- mappings ----------------------------------------------------------------------------------

    def mappings(self) -> dict[str, Mapping]:
        """All PCI mappings that the token may see, by id."""
        return {row["id"]: _mapping(row) for row in self._ask("get", "cluster/mapping/pci")}

    def mapping(self, id: str) -> tuple[Mapping, str] | None:
        """One mapping, with the digest of the file that all are in; None where there is none."""
        rows = (row for row in self._ask("get", "cluster/mapping/pci") if row["id"] == id)
        return next(((_mapping(row), str(row["digest"])) for row in rows), None)

    def create_mapping(self, new: Mapping) -> None:
        self._ask("post", "cluster/mapping/pci", id=new.id, **_values(new))

    def update_mapping(self, new: Mapping, digest: str) -> None:
        self._ask("put", f"cluster/mapping/pci/{new.id}", digest=digest, **_values(new))

    def delete_mapping(self, id: str) -> None:
        self._ask("delete", f"cluster/mapping/pci/{id}")

    def complaints(self, node: str) -> dict[str, tuple[str, ...]]:
        """What the node itself finds wrong with its devices of each mapping, by mapping."""
        rows = self._ask("get", "cluster/mapping/pci", **{"check-node": node})
        found = {row["id"]: tuple(check["message"].strip() for check in row.get("checks", ())
                                  if check["severity"] == "error") for row in rows}
        return {id: messages for id, messages in found.items() if messages}

    # ---- nodes -------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """By name."""
        rows = (row for row in self._ask("get", "cluster/status") if row["type"] == "node")
        return tuple(sorted(Node(row["name"], row.get("ip"), bool(row.get("online"))) for row in rows))

    def hardware(self, node: str) -> dict[str, Pci]:
        """The node's PCI functions by address, bridges and memory controllers left out."""
        return {row["id"]: _pci(row) for row in self._ask("get", f"nodes/{node}/hardware/pci")}

    def snippets(self, node: str, storage: str) -> tuple[str, ...] | None:
        """Volume ids of the node's snippets; None where the storage may hold none."""
        content = self._ask("get", f"nodes/{node}/storage/{storage}/status")["content"].split(",")
        if "snippets" not in content:
            return None
        rows = self._ask("get", f"nodes/{node}/storage/{storage}/content", content="snippets")
        return tuple(sorted(row["volid"] for row in rows))

    # ---- VMs ---------------------------------------------------------------------------------------

    def guests(self) -> tuple[Guest, ...]:
        """By vmid."""
        rows = self._ask("get", "cluster/resources", type="vm")
        return tuple(sorted(_guest(row) for row in rows if row["type"] == "qemu"))

    def guest(self, vmid: int) -> Guest:
        """Raises RequestError."""
        for guest in self.guests():
            if guest.vmid == vmid:
                return guest
        raise RequestError(f"VM {vmid}: no such VM in the cluster, or the token may not see it")

    def config(self, guest: Guest) -> dict[str, str]:
        """Its configuration as the next start will have it; `digest` among the keys."""
        return {key: str(value) for key, value in self._ask("get", _path(guest)).items()}

    def set_config(self, guest: Guest, digest: str, values: dict[str, str], delete: tuple[str, ...] = ()) -> None:
        gone = {"delete": ",".join(delete)} if delete else {}
        self._ask("put", _path(guest), digest=digest, **values, **gone)

    def create_vm(self, node: str, vmid: int, values: dict[str, str]) -> None:
        self._ask("post", f"nodes/{node}/qemu", vmid=vmid, **values)

    def _ask(self, method: str, path: str, **parameters: Any) -> Any:
        try:
            return getattr(self._api(path), method)(**parameters)
        except self._failures as error:
            if any(words in str(error) for words in CHANGED):
                raise BusyError(f"{path}: changed by somebody else meanwhile", "try again") from None
            raise HostError(f"{self._host}: {method} {path}: {error}") from None


def open_cluster(root: Path) -> Cluster:
    """With the token and the certificate that the cluster's nodes share; elsewhere named by PVE_GPU_TOKEN and
    PVE_GPU_CA (files) and PVE_GPU_API (host:port). Raises RequestError."""
    file = Path(os.environ.get("PVE_GPU_TOKEN") or root / TOKEN)
    try:
        token = file.read_text("utf-8").strip()
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}", "make an API token and put USER!NAME=SECRET into this file: "
                           "see the guide for Proxmox admins") from None
    return Cluster(os.environ.get("PVE_GPU_API") or API, token, Path(os.environ.get("PVE_GPU_CA") or root / CA))


def this_node(root: Path) -> str:
    """Raises HostError."""
    link = root / NODE.lstrip("/")
    try:
        return os.readlink(link).rpartition("/")[2]
    except OSError as error:
        raise HostError(f"{link}: {error.strerror}", "run it on a node of Proxmox VE") from None


def _mapping(row: dict[str, Any]) -> Mapping:
    return Mapping(row["id"], row.get("description", ""), bool(int(row.get("mdev") or 0)), tuple(row["map"]))


def _values(mapping: Mapping) -> dict[str, Any]:
    """PVE wants the whole list each time."""
    return {"description": mapping.description, "mdev": int(mapping.mdev), "map": list(mapping.map)}


def _pci(row: dict[str, Any]) -> Pci:
    vendor, device = row.get("subsystem_vendor"), row.get("subsystem_device")
    return Pci(_ids(row["vendor"], row["device"]), _ids(vendor, device) if vendor and device else None,
               row["iommugroup"] if row["iommugroup"] >= 0 else None, bool(row.get("mdev")))


def _ids(vendor: str, device: str) -> str:
    return f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}"


def _guest(row: dict[str, Any]) -> Guest:
    tags = tuple(tag for tag in re.split(r"[;, ]+", row.get("tags") or "") if tag)
    return Guest(row["vmid"], row["node"], row.get("name", ""), row.get("status") == "running", tags)


def _path(guest: Guest) -> str:
    return f"nodes/{guest.node}/qemu/{guest.vmid}/config"
