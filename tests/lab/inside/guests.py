"""Virtual machines in the lab, run by its libvirt. Their firmware is a few bytes of ours: booting takes minutes."""
from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROM_BYTES = 65536
RESET_VECTOR = ROM_BYTES - 16       # F000:FFF0, where an x86 CPU begins
HALT = bytes.fromhex("f4 eb fd")    # again: hlt; jmp again
POWER_OFF = bytes.fromhex(          # q35: PMBASE is 0x600; enable it; write S5 to PM1a_CNT
    "ba f80c  66b8 40f80080  66ef  ba fc0c  66b8 01060000  66ef"
    "ba f80c  66b8 44f80080  66ef  ba fc0c  b0 80  ee"
    "ba 0406  b8 0020  ef  f4")
DOMAIN = """<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>{mib}</memory>
  <memoryBacking>
    <hugepages/>
  </memoryBacking>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <loader readonly='yes' type='rom'>{rom}</loader>
  </os>
  <cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <memballoon model='none'/>{hostdev}
  </devices>
</domain>
"""

HOSTDEV = """
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x{}' bus='0x{}' slot='0x{}' function='0x{}'/>
      </source>
    </hostdev>"""


def domain(name: str, mib: int = 64, turns_off: bool = False, hostdev: str | None = None) -> bytes:
    """As a user defines it: huge pages, no pins, no device, or one given by hand. Its guest sleeps for ever, or turns
    itself off."""
    given = "" if hostdev is None else HOSTDEV.format(*re.split("[:.]", hostdev))
    return DOMAIN.format(name=name, mib=mib, rom=rom(turns_off), hostdev=given).encode()


def rom(turns_off: bool = False) -> Path:
    """Firmware: the code at the segment's start, and a jump to it at the reset vector."""
    file = Path("/tmp/off.rom" if turns_off else "/tmp/halt.rom")
    jump = b"\xe9" + (-(RESET_VECTOR + 3) & 0xffff).to_bytes(2, "little")
    code = POWER_OFF if turns_off else HALT
    file.write_bytes(code.ljust(RESET_VECTOR, b"\0") + jump.ljust(16, b"\0"))
    return file


def virsh(*argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["virsh", "-q", *argv], input=stdin, capture_output=True, timeout=60, check=False)


def create(xml: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    """`virsh create`, as OpenNebula starts its VMs."""
    return virsh("create", "/dev/stdin", *options, stdin=xml)


def libvirt_version() -> tuple[int, ...]:
    return tuple(map(int, virsh("--version").stdout.split(b".")))


def pid(name: str) -> int:
    """Of the domain's QEMU."""
    return int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())


def running() -> list[str]:
    return virsh("list", "--name").stdout.decode().split()


def destroy_all() -> None:
    for name in running():
        virsh("destroy", name)


def wait_for(what: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
