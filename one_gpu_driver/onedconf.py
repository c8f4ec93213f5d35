"""The one word of oned.conf that leads to our driver: the folder in the ARGUMENTS of the VM_MAD whose NAME is kvm.

The NAME stays, since oned and its tools key on it. Every other byte of the file stays, too.
"""
from __future__ import annotations

import re

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

STOCK: Final = "kvm"
OURS: Final = "kvm-gpu"
# Source: share/etc/oned.conf; the options with a value are those that one_vmm_exec passes to GetoptLong.
DRIVER: Final = re.compile(r"^[ \t]*VM_MAD[ \t]*=[ \t]*\[(?P<body>[^\]]*)\]", re.MULTILINE)
NAME: Final = re.compile(r"^[^#\n]*?\bNAME\s*=\s*\"?kvm\"?\s*(?=,|#|$)", re.MULTILINE)
ARGUMENTS: Final = re.compile(r"^[^#\n]*?\bARGUMENTS\s*=\s*\"(?P<words>[^\"]*)\"", re.MULTILINE)
VALUED: Final = ("-r", "-t", "-l", "-d", "-s", "-w", "--retries", "--threads", "--local", "--delegate", "--shell",
                 "--timeout")


def folder(text: str) -> str:
    """The driver folder that oned.conf names for the VM_MAD kvm. Raises HostError where there is not exactly one."""
    start, end = _place(text)
    return text[start:end]


def with_folder(text: str, word: str) -> str:
    """The same oned.conf with another driver folder. Raises HostError."""
    start, end = _place(text)
    return text[:start] + word + text[end:]


def _place(text: str) -> tuple[int, int]:
    """Where the folder's word stands."""
    drivers = [found for found in DRIVER.finditer(text) if NAME.search(found["body"])]
    if len(drivers) != 1:
        raise HostError(f"oned.conf: {len(drivers)} VM_MAD with NAME = \"kvm\", expected one")
    found = ARGUMENTS.search(drivers[0]["body"])
    start = 0 if found is None else drivers[0].start("body") + found.start("words")
    places = [] if found is None else _plain_words(found["words"], start)
    if len(places) != 1:
        raise HostError(f"oned.conf: {len(places)} driver folders in the ARGUMENTS of the VM_MAD kvm, expected one")
    return places[0]


def _plain_words(arguments: str, start: int) -> list[tuple[int, int]]:
    """Places of the words that are neither options nor their values: "-t 15 -r 0 kvm -p" has one."""
    places, option = [], ""
    for word in re.finditer(r"\S+", arguments):
        if word[0].startswith("-"):
            option = word[0]
        else:
            if option not in VALUED:
                places.append((start + word.start(), start + word.end()))
            option = ""
    return places
