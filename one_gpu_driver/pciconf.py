"""What oned lists as PCI devices of a host: pci.conf, read as its probe does.

A device has one master: what oned lists is asked for by PCI= and chosen by oned; what we give for GPU= is not there.
"""
from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from kvm_gpu.errors import HostError
from kvm_gpu.model import Function

CONF: Final = "etc/im/kvm-probes.d/pci.conf"    # below remotes on the front-end, below /var/tmp/one on a host
NOTHING: Final = "0:0"                          # the stock filter
KEY: Final = re.compile(r":(\w+):\s*(.*)")
FILTER: Final = re.compile(r"([0-9a-fA-F]*|\*)(:([0-9a-fA-F]*|\*)){1,3}")
ITEM: Final = re.compile(r"-\s+(.+)")


class Listing(NamedTuple):
    """`filters`: as lspci -d takes them. What pci.conf says of device names is left out: the names are lspci's."""
    filters: tuple[str, ...]
    addresses: tuple[str, ...]

    def lists(self, function: Function) -> bool:
        """Whether oned lists this PCI function, as far as we can tell."""
        if self.addresses and function.address.removeprefix("0000:") not in self.addresses:
            return False
        return any(_matches(pattern, function) for pattern in self.filters)


def read(file: Path) -> Listing:
    """Raises HostError where the file says something else than keys with words and lists of words."""
    values: dict[str, list[str]] = {}
    key = ""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise HostError(f"{file}: {error.strerror}") from None
    for number, raw in enumerate(lines, 1):
        line = _without_comment(raw).strip()
        if found := KEY.fullmatch(line):
            key = found[1]
            values[key] = _words(found[2])
        elif (found := ITEM.fullmatch(line)) and key:
            values[key] += _words(found[1])
        elif line not in ("", "---"):
            raise HostError(f"{file}:{number}: not understood: {line}", "compare it by hand with kvm-gpu inventory")
    filters = tuple(values.get("filter", [NOTHING]))
    for pattern in filters:
        if not FILTER.fullmatch(pattern):
            raise HostError(f"{file}: filter {pattern!r} is not vendor:device:class")
    return Listing(filters, tuple(values.get("short_address", ())))


def _without_comment(line: str) -> str:
    """In YAML a comment begins a line or follows a blank."""
    return re.sub(r"(^|\s)#.*", "", line)


def _words(text: str) -> list[str]:
    """"'10de:*,1002:*'" or "['10de:*', '1002:*']" -> two words."""
    return [word for part in text.strip("[] ").split(",") if (word := part.strip(" '\""))]


def _matches(pattern: str, function: Function) -> bool:
    """`pattern`: [vendor]:[device][:class[:prog-if]]."""
    wanted = [*pattern.lower().split(":"), "", "", ""][:4]
    vendor, device = function.ids.split(":")
    kind = f"{function.pci_class:06x}"
    return all(word in ("", "*") or int(word, 16) == int(have, 16)
               for word, have in zip(wanted, (vendor, device, kind[:4], kind[4:]), strict=True))
