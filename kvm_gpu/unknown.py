"""Telling a wrong request from a full host: names and addresses that nothing here, and no table, has. Cold path."""
from __future__ import annotations

from difflib import get_close_matches

from kvm_gpu import pci
from kvm_gpu.errors import HostError, RequestError
from kvm_gpu.sysfs import DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from kvm_gpu.model import Host, Profile, Request
    from kvm_gpu.site import Site


def check_known(site: Site, request: Request, host: Host) -> None:
    """Raises RequestError for a profile or an address that is not merely taken but unknown."""
    for want in request.wants:
        if want.profile is not None and not _is_profile(site, host, want.profile):
            raise RequestError(f"VM {request.vm.id}: {want.profile} is no profile of this host or of any GPU we know",
                               _similar(want.profile, {profile.name for profile in profiles(host, usable=True)}))
        if want.address is not None and want.address not in addresses(host):
            raise RequestError(f"VM {request.vm.id}: {_what_is(site, host, want.address)}{_where(host, want.model)}",
                               "`kvm-gpu inventory` lists what can be given")


def profiles(host: Host, usable: bool = False) -> list[Profile]:
    """Of all boards; with `usable` without those whose every slot has trouble, as the console's card."""
    layouts = [layout for board in host.boards for layout in board.layouts
               if not usable or not all(slot.trouble for slot in layout.slots)]
    return [profile for layout in layouts for cell in layout.cells for profile in cell.profiles]


def addresses(host: Host) -> frozenset[str]:
    """Every name by which a slot can be asked for, boards and their functions included."""
    slots = [slot for board in host.boards for layout in board.layouts for slot in layout.slots]
    return frozenset({board.address for board in host.boards}
                     | {function.address for board in host.boards for function in board.functions}
                     | {slot.name for slot in slots} | {function for slot in slots for function in slot.functions})


def _is_profile(site: Site, host: Host, name: str) -> bool:
    known = {word for profile in profiles(host) for word in (profile.name, profile.type_id) if word}
    known |= site.tables().names() | {board.model + "-vf" for board in host.boards}     # VFs that are switched off
    return name.casefold() in {word.casefold() for word in known}


def _similar(name: str, known: set[str]) -> str:
    found = get_close_matches(name, sorted(known), 3, 0.5)
    return f"did you mean {' or '.join(found)}?" if found else f"this host has {', '.join(sorted(known)) or 'no GPU'}"


def _what_is(site: Site, host: Host, address: str) -> str:
    """What stands at an address that no board has, or where the same bus address is in another PCI domain."""
    try:
        function = pci.read_function(site.sysfs, address)
    except HostError:
        same = _elsewhere(host, address)
        return f"{address}: not found" + (f"; did you mean {same}?" if same else "")
    word = pci.CLASS_WORDS.get(function.pci_class >> 8, f"a device of class {function.pci_class >> 8:04x}")
    return f"{address} ({DEVICES}{address}) is {word} {function.ids}, not one of the GPUs that are ours to give"


def _where(host: Host, model: Optional[str]) -> str:
    found = [board.address for board in host.boards if model and board.model.casefold() == model.casefold()]
    return f"; {model} is at {' and '.join(found)}" if found else ""


def _elsewhere(host: Host, address: str) -> Optional[str]:
    tail = address.partition(":")[2]
    return next((known for known in sorted(addresses(host)) if tail and known.partition(":")[2] == tail), None)
