"""The command one-gpu: one short function a verb. Stdout carries the result, stderr the rest."""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvm_gpu.errors import GpuError, HostError
from kvm_gpu.site import open_site
from one_gpu_driver import changes, doctor, fleet, install, pciconf, retry, slotcheck, template
from one_gpu_driver.cloud import open_cloud
from one_gpu_driver.doctor import Finding

SYNC: Final = ("onehost", "sync", "--force")
AS_ONEADMIN: Final = f"as oneadmin: {' '.join(SYNC)}"
AS_ROOT: Final = "as root: systemctl restart opennebula"
UNFIT: Final = HostError.exit_code


def main(argv: list[str]) -> int:
    """The exit code of the command line `argv`."""
    given = _parser().parse_args(argv)
    try:
        return int(given.verb(given))
    except GpuError as failure:
        print(f"one-gpu: {failure.message}", *([f"Hint: {failure.hint}"] if failure.hint else []), sep="\n",
              file=sys.stderr)
        return failure.exit_code


# ---- verbs -----------------------------------------------------------------------------------------

def install_driver(given: argparse.Namespace) -> int:
    """Hosts get the new folder before oned looks for it there."""
    todo = install.install(given.root)
    _change(todo, given)
    _two_pools(given.root)
    if given.with_retry_hook and not given.dry_run:
        _add_hook()
    if todo:
        synced = given.sync and not given.dry_run
        if synced:
            _sync()
        _say_next(*([] if synced else [AS_ONEADMIN]), *([AS_ROOT] if install.restart_needed(todo) else []))
    return 0


def uninstall_driver(given: argparse.Namespace) -> int:
    """Hosts keep the folder until oned looks for it no more: without it no VM starts, and none can be stopped."""
    todo = install.uninstall(given.root)
    _change(todo, given)
    if given.with_retry_hook and not given.dry_run:
        _remove_hook()
    if todo:
        _say_next(*([AS_ROOT] if install.restart_needed(todo) else []), AS_ONEADMIN)
    return 0


def examine(given: argparse.Namespace) -> int:
    findings = [*_here(given.root), *(_everywhere() if _is_front_end(given.root) and not given.offline else ())]
    print(doctor.told(findings) or "Nothing is wrong.\n", end="")
    return UNFIT if findings else 0


def show_fleet(given: argparse.Namespace) -> int:
    hosts = open_cloud().hosts()
    sizes, trouble = fleet.by_host(hosts), fleet.troubles(hosts)
    if not given.hosts:
        sizes = fleet.summed(sizes)
    if given.json:
        print(fleet.as_json(sizes, trouble), end="")
        return 0
    print(fleet.shown(sizes), end="")
    for text in trouble:
        print(text, file=sys.stderr)
    return 0


def render_template(given: argparse.Namespace) -> int:
    print(template.render(given.kind, _wish(given)), end="")
    return 0


def push_template(given: argparse.Namespace) -> int:
    number = open_cloud().put_template(given.name, template.render(given.kind, _wish(given)))
    print(f"template {number}: {given.name}")
    return 0


def retry_start(_: argparse.Namespace) -> int:
    print(retry.retry(open_cloud(), sys.stdin.buffer.read()))
    return 0


# ---- installing ------------------------------------------------------------------------------------

def _change(todo: list[changes.Change], given: argparse.Namespace) -> None:
    for change in todo:
        print(changes.shown(change, given.root), end="")
        if not given.dry_run:
            changes.make(change)
    if not todo:
        print("Nothing to do.")


def _two_pools(root: Path) -> None:
    """Only a host knows what it gives out."""
    filters = pciconf.read(root / install.REMOTES / pciconf.CONF).filters
    if filters != (pciconf.NOTHING,):
        print(f"oned lists PCI devices: {', '.join(filters)}. No host may give these out by GPU: one-gpu doctor there")


def _say_next(*steps: str) -> None:
    for word, step in zip(("Now", "Then"), steps, strict=False):
        print(f"{word}, {step}")


def _sync() -> None:
    """It refuses to run as root."""
    command = ("runuser", "-u", "oneadmin", "--", *SYNC) if os.geteuid() == 0 else SYNC
    try:
        done = subprocess.run(command, check=False)
    except OSError as error:
        raise HostError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise HostError(f"{' '.join(command)}: exit code {done.returncode}", "run it again before oned is restarted")


def _add_hook() -> None:
    cloud = open_cloud()
    if retry.HOOK not in cloud.hooks():
        number = cloud.add_hook(template.fill("retry-hook", name=retry.HOOK, command=retry.COMMAND))
        print(f"hook {number}: {retry.HOOK}")


def _remove_hook() -> None:
    cloud = open_cloud()
    number = cloud.hooks().get(retry.HOOK)
    if number is not None:
        cloud.remove_hook(number)
        print(f"remove hook {number}: {retry.HOOK}")


# ---- examining -------------------------------------------------------------------------------------

def _here(root: Path) -> Iterator[Finding]:
    is_host = (root / doctor.SYNCED).exists()
    if _is_front_end(root):
        yield from doctor.front_end(root)
    if is_host:
        site = open_site("" if str(root) == "/" else str(root))
        view = site.fresh_view()
        yield from doctor.host(root, site.sysfs, view.host.boards)
        yield from slotcheck.findings(site, view)
    if not _is_front_end(root) and not is_host:
        yield Finding("here", "neither an OpenNebula front-end nor a KVM host of one", "")


def _is_front_end(root: Path) -> bool:
    return (root / install.CONF).exists()


def _everywhere() -> Iterator[Finding]:
    cloud = open_cloud()
    yield from doctor.cloud(cloud.hosts())
    yield from doctor.retry_hook(cloud.hooks())


# ---- the command line ------------------------------------------------------------------------------

def _wish(given: argparse.Namespace) -> template.Wish:
    sizes = tuple(given.sizes.split(",")) if given.sizes else ()
    if given.kind == "sizes" and not sizes:
        sizes = tuple(size.profile for size in fleet.summed(fleet.by_host(open_cloud().hosts())))
    return template.Wish(given.profile, given.offer, given.cards, given.numa, given.close, sizes, given.cpu,
                         given.vcpus, given.memory_mib)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="one-gpu", description="GPUs in an OpenNebula cloud")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb, words in (("install", install_driver, "put the driver beside OpenNebula's own"),
                              ("uninstall", uninstall_driver, "take it away again")):
        made = verbs.add_parser(name, help=words)
        made.set_defaults(verb=verb)
        made.add_argument("--dry-run", action="store_true", help="only show what would change")
        if verb is install_driver:
            made.add_argument("--sync", action="store_true", help="run onehost sync as well")
        made.add_argument("--with-retry-hook", action="store_true",
                          help="also the hook that schedules refused VMs again")
        _add_root(made)
    examined = verbs.add_parser("doctor", help="what is wrong here and in the cloud, and what helps")
    examined.set_defaults(verb=examine)
    examined.add_argument("--offline", action="store_true", help="do not ask oned")
    _add_root(examined)
    shown = verbs.add_parser("fleet", help="had, taken, free and sellable over all hosts")
    shown.set_defaults(verb=show_fleet)
    shown.add_argument("--hosts", action="store_true", help="a row for each host")
    shown.add_argument("--json", action="store_true")
    _add_templates(verbs)
    hook = verbs.add_parser("retry", help="what the hook runs: oned's VM on stdin")
    hook.set_defaults(verb=retry_start)
    return parser


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="prefix of all paths")


def _add_templates(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ways = verbs.add_parser("template", help="VM templates that ask for a GPU").add_subparsers(
        metavar="render|push", required=True)
    for name, verb, words in (("render", render_template, "print it"),
                              ("push", push_template, "make it in oned, or renew it there")):
        way = ways.add_parser(name, help=words)
        way.set_defaults(verb=verb)
        way.add_argument("kind", choices=template.KINDS)
        if name == "push":
            way.add_argument("--name", required=True, help="of the template")
        for option in ("--profile", "--offer", "--cpu"):
            way.add_argument(option)
        for option in ("--vcpus", "--memory-mib"):
            way.add_argument(option, type=int)
        way.add_argument("--cards", type=int, default=1)
        for option in ("--numa", "--close"):
            way.add_argument(option, default="preferred")
        way.add_argument("--sizes", metavar="A,B", help="instead of those of the fleet")
