"""The command line of pve-gpu."""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pve_gpu_hook.wish import PAGES


def parser(verbs: dict[str, Any]) -> argparse.ArgumentParser:
    """`verbs`: the function of each verb, by name."""
    made = argparse.ArgumentParser(prog="pve-gpu", description="GPUs in a Proxmox VE cluster", allow_abbrev=False)
    made.add_argument("--root", type=Path, metavar="DIR", help="prefix of all paths")
    ways = made.add_subparsers(metavar="VERB", required=True)
    for add in (_mapping, _assign, _hook, _template):
        add(ways, verbs)
    _verb(ways, verbs, "notes", "tell in each VM's notes and tags what it holds")
    shown = _verb(ways, verbs, "fleet", "had, taken, free and sellable over all nodes")
    shown.add_argument("--nodes", action="store_true", help="a row for each node")
    shown.add_argument("--json", action="store_true")
    _verb(ways, verbs, "doctor", "what is wrong here and in the cluster, and what helps")
    return made


def _mapping(ways: Any, verbs: dict[str, Any]) -> None:
    below = _group(ways, "mapping", "resource mappings of this node's boards", "sync")
    sync = _verb(below, verbs, "mapping sync", "make them list exactly the devices that there are")
    sync.add_argument("profiles", nargs="*", metavar="PROFILE", help="only these; all of the node where none is named")
    sync.add_argument("--refresh", action="store_true", help="create and remove none: for the boot")
    _add_yes(sync)


def _assign(ways: Any, verbs: dict[str, Any]) -> None:
    made = _verb(ways, verbs, "assign", "give a VM its GPUs by mapping, and what goes with them")
    made.add_argument("vmid", type=int, metavar="VMID")
    _add_wish(made)
    _add_yes(made)


def _hook(ways: Any, verbs: dict[str, Any]) -> None:
    below = _group(ways, "hook", "the hookscript of VMs", "install|remove")
    for name, words in (("hook install", "put the hook on this node, and set it for VMs"),
                        ("hook remove", "take it from VMs, and from this node when no VM has it any more")):
        made = _verb(below, verbs, name, words)
        made.add_argument("vmids", type=int, nargs="*", metavar="VMID")
        made.add_argument("--tag", help="all VMs with this tag")
        _add_yes(made)


def _template(ways: Any, verbs: dict[str, Any]) -> None:
    below = _group(ways, "template", "configurations of VMs with GPUs", "render|create")
    for name, words in (("template render", "print it"), ("template create", "make the VM on this node")):
        made = _verb(below, verbs, name, words)
        if name == "template create":
            made.add_argument("vmid", type=int, metavar="VMID")
            _add_yes(made)
        made.add_argument("--name", required=True, help="of the VM")
        made.add_argument("--cores", type=int, default=4)
        made.add_argument("--memory-mib", type=int, default=8192)
        made.add_argument("--ostype", default="l26", help="l26, win11, ...")
        _add_wish(made)


def _group(ways: Any, name: str, words: str, below: str) -> Any:
    return ways.add_parser(name, help=words, allow_abbrev=False).add_subparsers(metavar=below, required=True)


def _verb(ways: Any, verbs: dict[str, Any], name: str, words: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = ways.add_parser(name.split()[-1], help=words, description=words,
                                                    allow_abbrev=False)
    made.set_defaults(verb=verbs[name])
    return made


def _add_wish(made: argparse.ArgumentParser) -> None:
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--profile", help="a size, A16-4Q")
    what.add_argument("--offer", metavar="NAME", help="of this host's offers.toml")
    made.add_argument("--cards", type=int, default=1, metavar="N", help="so many of the profile")
    made.add_argument("--numa", action="store_true", help="the guest sees one NUMA node, on that of its devices")
    made.add_argument("--host-node", type=int, metavar="N", help="that one instead of the best one now")
    made.add_argument("--hugepages", choices=PAGES, help="MiB; implies --numa")


def _add_yes(made: argparse.ArgumentParser) -> None:
    made.add_argument("--yes", action="store_true", help="do not ask")
