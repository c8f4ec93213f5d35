"""The command pve-gpu: one short function a verb. Stdout carries the result, stderr the rest.

A verb shows what it would change, and asks before it does.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvm_gpu.errors import GpuError, HostError, NoCapacity
from kvm_gpu.site import Site, open_site
from pve_gpu_hook import assign, doctor, fleet, hookinstall, mappingsync, notes, template, vmchange
from pve_gpu_hook.cluster import Cluster, open_cluster, this_node
from pve_gpu_hook.commandline import parser
from pve_gpu_hook.vmchange import VmChange
from pve_gpu_hook.wish import Wish

UNFIT: Final = HostError.exit_code


def main(argv: list[str]) -> int:
    """The exit code of the command line `argv`."""
    given = parser(VERBS).parse_args(argv)
    given.root = given.root or Path(os.environ.get("KVM_GPU_ROOT") or "/")
    try:
        return int(given.verb(given))
    except GpuError as failure:
        lines = [f"pve-gpu: {failure.message}"]
        if isinstance(failure, NoCapacity):
            lines += [f"  {reason.candidate}: {reason.why}" for reason in failure.refusal.reasons]
        print(*lines, *([f"Hint: {failure.hint}"] if failure.hint else []), sep="\n", file=sys.stderr)
        return failure.exit_code


# ---- verbs -----------------------------------------------------------------------------------------

def sync_mappings(given: argparse.Namespace) -> int:
    cluster, node = open_cluster(given.root), this_node(given.root)
    plan = mappingsync.plan(_site(given), cluster, node, given.profiles, given.refresh)
    for change in plan.changes:
        print(mappingsync.shown(change, node), end="")
    _complain([f"{slot} is left out: {why}" for slot, why in plan.left])
    _complain(plan.complaints)
    if _agreed(given, bool(plan.changes)):
        for change in plan.changes:
            mappingsync.make(cluster, node, change)
    return UNFIT if plan.complaints else 0


def assign_devices(given: argparse.Namespace) -> int:
    cluster = open_cluster(given.root)
    change = assign.assign(_site(given), cluster, this_node(given.root), given.vmid, _wish(given))
    changes = [change] if change else []
    _show(changes)
    return _make(cluster, changes) if _agreed(given, bool(changes)) else 0


def install_hook(given: argparse.Namespace) -> int:
    cluster, is_there = open_cluster(given.root), hookinstall.has_link(given.root)
    changes, complaints = hookinstall.install(cluster, hookinstall.chosen(cluster, given.vmids, given.tag))
    complaints += hookinstall.missing(cluster, this_node(given.root))
    if not is_there:
        print(f"make /{hookinstall.LINK}, a link to {hookinstall.PROGRAM}")
    _show(changes)
    _complain(complaints)
    if _agreed(given, not is_there or bool(changes)):
        if not is_there:
            hookinstall.make_link(given.root)
        return _make(cluster, changes) or (UNFIT if complaints else 0)
    return UNFIT if complaints else 0


def remove_hook(given: argparse.Namespace) -> int:
    """The snippet goes with the last VM of the cluster that has it."""
    cluster = open_cluster(given.root)
    changes = hookinstall.remove(cluster, hookinstall.chosen(cluster, given.vmids, given.tag))
    _show(changes)
    is_last = hookinstall.has_link(given.root) and not hookinstall.users(cluster) - {
        change.guest.vmid for change in changes}
    if is_last:
        print(f"remove /{hookinstall.LINK}: no VM has it any more")
    if not _agreed(given, bool(changes) or is_last):
        return 0
    code = _make(cluster, changes)
    if is_last and not code:
        hookinstall.remove_link(given.root)
    return code


def render_template(given: argparse.Namespace) -> int:
    print(template.render(_site(given), _frame(given), _wish(given)), end="")
    return 0


def create_vm(given: argparse.Namespace) -> int:
    text = template.render(_site(given), _frame(given), _wish(given))
    cluster, node = open_cluster(given.root), this_node(given.root)
    print(f"VM {given.vmid} on {node}", *text.splitlines(), sep="\n    + ")
    if not _agreed(given, True):
        return 0
    return _say_roots(template.create(cluster, node, given.vmid, template.values(text)))


def tell_notes(given: argparse.Namespace) -> int:
    site = _site(given)
    now = notes.held(site)
    if notes.is_told(site, now):
        return 0
    cluster = open_cluster(given.root)
    changes = notes.changes(cluster, this_node(given.root), now)
    for change in changes:
        print(vmchange.shown(change), end="")
    failures = notes.write(cluster, changes)
    if not failures:
        notes.note_told(site, now)
    _complain(failures)
    return UNFIT if failures else 0


def show_fleet(given: argparse.Namespace) -> int:
    sizes, trouble = fleet.read(_site(given), given.root, this_node(given.root), open_cluster(given.root).nodes())
    if not given.nodes:
        sizes = fleet.summed(sizes)
    if given.json:
        print(fleet.as_json(sizes, trouble), end="")
        return 0
    print(fleet.shown(sizes), end="")
    _complain(trouble)
    return 0


def examine(given: argparse.Namespace) -> int:
    node, site, cluster = this_node(given.root), _site(given), open_cluster(given.root)
    findings = [*doctor.this_node(given.root, node), *doctor.mappings(site, cluster, node), *doctor.nodes(cluster),
                *doctor.guests(cluster)]
    print(doctor.told(findings) or "Nothing is wrong.\n", end="")
    return UNFIT if findings else 0


VERBS: Final = {
    "mapping sync": sync_mappings, "assign": assign_devices, "hook install": install_hook, "hook remove": remove_hook,
    "template render": render_template, "template create": create_vm, "notes": tell_notes, "fleet": show_fleet,
    "doctor": examine,
}


# ---- changing --------------------------------------------------------------------------------------

def _show(changes: Iterable[VmChange]) -> None:
    for change in changes:
        print(vmchange.shown(change), end="")
        if change.roots() and not vmchange.is_root():
            print(f"    only root@pam may set: {', '.join(change.roots())}")


def _make(cluster: Cluster, changes: Iterable[VmChange]) -> int:
    return _say_roots([command for change in changes for command in vmchange.make(cluster, change)])


def _agreed(given: argparse.Namespace, anything: bool) -> bool:
    """Whether the change that was shown shall be made."""
    if not anything:
        print("Nothing to do.")
    elif given.yes:
        return True
    elif sys.stdin.isatty():
        return input("Do it? [y/N] ").strip().lower() in ("y", "yes")
    else:
        print("Nothing was changed; --yes does it.")
    return False


def _say_roots(commands: Iterable[str]) -> int:
    """What is left to do is no success."""
    left = list(commands)
    _complain(left)
    return UNFIT if left else 0


def _complain(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


# ---- what goes in ----------------------------------------------------------------------------------

def _site(given: argparse.Namespace) -> Site:
    return open_site("" if str(given.root) == "/" else str(given.root))


def _wish(given: argparse.Namespace) -> Wish:
    return Wish(given.profile, given.offer, given.cards, given.numa, given.host_node, given.hugepages)


def _frame(given: argparse.Namespace) -> template.Frame:
    return template.Frame(given.name, given.cores, given.memory_mib, given.ostype)
