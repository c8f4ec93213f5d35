"""What people and programs are told: whole texts, whole objects."""
import json
import re
import subprocess
import sys
from collections import namedtuple
from time import mktime

import pytest

from kvm_gpu import jsonout, render, tables
from kvm_gpu.errors import HostError
from kvm_gpu.ledgerrows import Claim, Event
from kvm_gpu.model import (
    Attribute,
    Board,
    Cell,
    Command,
    Decision,
    Device,
    Driver,
    Function,
    Hold,
    Host,
    Layout,
    Mdev,
    NumaNode,
    Pages,
    Placement,
    Profile,
    Reason,
    Refusal,
    Request,
    Slot,
    Use,
    Vm,
    Want,
)

Row = namedtuple("Row", "board model mechanism numa_node profile total taken free sellable foreign stuck retiring "
                        "not_restored stranded_mib why")

PF, VF = "0000:41:00.0", "0000:41:00.4"
TYPE = f"/sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"
PROFILES = (Profile("A16-4Q", "713", 4096, 4096, (0, 4096)), Profile("A16-8Q", "714", 8192, 8192, (0,)))
LAYOUT = Layout("nvidia_vfio", "nvidia_vfio", (Slot(VF, (VF,), f"/sys/bus/pci/devices/{VF}", ("board",)),),
                (Cell("board", True, PROFILES),))
WHOLE = Layout("whole", "whole", (Slot(PF, (PF,), f"/sys/bus/pci/devices/{PF}", ("board",)),),
               (Cell("board", True, (Profile("a16", None, 16384, 1, (0,)),)),), known=False)
BOARD = Board(PF, "1-2", "a16", "nvidia", 1, "device", ("pci0000:40",),
              (Function(PF, "10de:25b6", 0x030200, "nvidia", 31),), (LAYOUT, WHOLE))
BROKEN = Board("0000:c1:00.0", None, "unknown", None, None, "unknown", (), (), (), ("numa_node: EIO",))
NODE = NumaNode(1, ((8, 24), (9, 25)), 65536, 60000, (Pages(2048, 0, 0), Pages(1048576, 64, 56)), (10,))
HOST = Host("b007", (NODE,), (BOARD, BROKEN))

REQUEST = Request(Vm("one-42", "ann", ("staff",)), (Want("A16-4Q"),))
DEVICE = Device(Hold(VF, PF, "nvidia_vfio", "board", "A16-4Q", 0, 4096, "one-42", "starting"), "nvidia_vfio", (VF,))
USE = Use("one-42", 0, 1, ((0, (8,)), (1, (24,))), (8, 24), 8192, 1048576)
ACTION = Attribute(TYPE, "713", "0", "0")
PLACED = Decision(REQUEST, HOST, "c1a1", Placement((DEVICE,), (USE,), warnings=("not exclusive",)), None, (ACTION,))
REFUSED = Decision(REQUEST, HOST, None, None, Refusal((Reason(PF, "full: held by one-7"),), "stop one-7"))
CLAIM = Claim("c1a1", "one-42", "ann", ("staff",), "active", False, "b007", None, None,
              int(mktime((2026, 3, 1, 12, 0, 0, 0, 0, -1))))
ROW = Row(PF, "a16", "nvidia_vfio", 1, "A16-4Q", 4, 2, 2, 1, 0, 0, 0, 0, 0, None)


def test_inventory():
    assert render.inventory(HOST) == (
        "BOARD         MODEL    NODE  DRIVER  LAYOUT       SLOTS  ALSO   TROUBLE\n"
        "0000:41:00.0  a16         1  nvidia  nvidia_vfio      1  whole  -\n"
        "0000:c1:00.0  unknown     -  -       -                -  -      numa_node: EIO\n"
        "\n"
        "NODE  CPUS       MEMORY     FREE       HUGE PAGES\n"
        "   1  8-9,24-25  65536 MiB  60000 MiB  56 of 64 x 1 GiB\n")


def test_a_host_without_gpus():
    assert render.inventory(HOST._replace(boards=())).startswith("No GPU on this host.\n\nNODE")
    assert render.capacity(()) == "Nothing to give on this host.\n"


def test_capacity_leaves_out_columns_that_say_nothing():
    full = ROW._replace(profile="A16-8Q", total=2, taken=0, free=0, sellable=0, why="runs A16-4Q")
    assert render.capacity((ROW, full)) == (
        "BOARD         MODEL  NODE  MECHANISM    PROFILE  TOTAL  TAKEN  FREE  SELLABLE  WHY\n"
        "0000:41:00.0  a16       1  nvidia_vfio  A16-4Q       4      2     2         1  -\n"
        "0000:41:00.0  a16       1  nvidia_vfio  A16-8Q       2      0     0         0  runs A16-4Q\n"
        "\n"
        "The rows of one board are alternatives: do not add them up.\n")


def test_a_narrow_terminal_breaks_no_address(monkeypatch):
    monkeypatch.setattr(tables.posix, "isatty", lambda descriptor: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    why = "its PCI domain has more than 16 bits, which no hypervisor takes"
    row = ROW._replace(board="10000:00:02.0", mechanism="vf", why=why)
    drawn = [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", render.capacity((row,))).splitlines()]
    assert drawn[:3] == [
        "BOARD          MODEL  NODE  MECHANISM  PROFILE  TOTAL  TAKEN  FREE  SELLABLE  WHY",
        "10000:00:02.0  a16       1  vf         A16-4Q       4      2     2         1  its PCI domain has more than 16",
        " " * 78 + "bits, which no hypervisor takes"]


def test_a_dumb_terminal_gets_whole_lines(monkeypatch):
    monkeypatch.setattr(tables.posix, "isatty", lambda descriptor: True)
    monkeypatch.setenv("TERM", "dumb")
    assert render.capacity((ROW._replace(why="w" * 200),)).splitlines()[1].endswith("w" * 200)


def test_placed():
    assert render.decision(PLACED) == (
        "VM one-42 has claim c1a1:\n"
        "  0000:41:00.4: A16-4Q (nvidia_vfio), node 1\n"
        "  guest node 0: 8192 MiB in pages of 1 GiB on node 1, vCPU 0 on CPU 8, vCPU 1 on CPU 24\n"
        f"  {TYPE} = 713\n"
        "Warning: not exclusive\n")
    assert render.decision(PLACED._replace(claim=None)).startswith("VM one-42 would get:\n")


def test_vcpus_that_share_their_cpus_are_told_together():
    """As on a host of 128: not the same list for each vCPU."""
    shared = USE._replace(pins=tuple((vcpu, (*range(64), *range(128, 192))) for vcpu in range(32)), page_kib=None)
    told = render.show(CLAIM, (), (shared,), ())
    assert told.splitlines()[1:] == ["  guest node 0: 8192 MiB on node 1, vCPU 0-31 on CPU 0-63,128-191"]


def test_none_left_is_not_unknown():
    full, unread = NODE._replace(free_mib=0, pages=()), NODE._replace(id=2, cores=(), free_mib=None, pages=())
    assert render.inventory(HOST._replace(boards=(), nodes=(full, unread))) == (
        "No GPU on this host.\n"
        "\n"
        "NODE  CPUS       MEMORY     FREE   HUGE PAGES\n"
        "   1  8-9,24-25  65536 MiB  0 MiB  -\n"
        "   2  -          65536 MiB  -      -\n")


def test_refused():
    assert render.decision(REFUSED) == (
        "VM one-42: 1 x A16-4Q: refused on this host\n"
        "  0000:41:00.0: full: held by one-7\n"
        "Hint: stop one-7\n")


def test_claims():
    assert render.claims([(CLAIM, (DEVICE,))]) == (
        "VM      OWNER  STATE   SLOTS         PROFILES  SINCE                CLAIM\n"
        "one-42  ann    active  0000:41:00.4  A16-4Q    2026-03-01 12:00:00  c1a1\n")
    assert render.claims([]) == "No claims.\n"


def test_show():
    uuid = "4b20d080-1b54-4048-85b3-a6a62d165c01"
    assert render.show(CLAIM._replace(user=None, note="unverified"), (DEVICE._replace(uuid=uuid),), (),
                       (Mdev(uuid, "/sys/x/nvidia-711"), Driver(VF, None, "vfio-pci"),
                        Command(("tool", "-x"), (), "tool -l"))) == (
        "VM one-42: claim c1a1, active since 2026-03-01 12:00:00\n"
        f"  0000:41:00.4: A16-4Q (nvidia_vfio), mdev {uuid}\n"
        f"  mdev {uuid} of /sys/x/nvidia-711\n"
        "  0000:41:00.4 bound to no driver\n"
        "  run tool -x\n"
        "Note: unverified\n")


def test_names_cannot_steer_a_terminal():
    event = Event(CLAIM.since, None, "x\x1b[2Jy", "claim", "[bold]:smile:")
    assert render.events((event,)) == (
        "TIME                 VM      EVENT  DETAIL\n"
        "2026-03-01 12:00:00  x?[2Jy  claim  [bold]:smile:\n")


def test_done_and_error():
    assert render.done(()) == "Nothing to do.\n"
    assert render.done(("one", "two")) == "one\ntwo\n"
    assert render.error(HostError("no sysfs", "mount it")) == "kvm-gpu: no sysfs\nHint: mount it\n"
    assert render.error(HostError("no sysfs")) == "kvm-gpu: no sysfs\n"


def test_tables_say_that_rich_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(HostError, match="rich") as caught:
        render.events((Event(0, None, None, "restore", None),))
    assert caught.value.hint == "apt install python3-rich, or use --json"


def test_rich_is_imported_for_tables_alone():
    code = ("import sys; from kvm_gpu import render; render.done(()); before = 'rich' in sys.modules;"
            "from kvm_gpu.ledgerrows import Event; render.events((Event(0, None, None, 'x', None),));"
            "print(before, 'rich' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == (
        "False True\n")


# ---- JSON ------------------------------------------------------------------------------------------

SLOT = {"board": PF, "slot": VF, "mechanism": "nvidia_vfio", "profile": "A16-4Q", "uuid": None}
CPUS = [{"guest_node": 0, "host_node": 1, "vcpu": 0, "pcpus": [8]},
        {"guest_node": 0, "host_node": 1, "vcpu": 1, "pcpus": [24]}]
MEMORY = [{"guest_node": 0, "host_node": 1, "mib": 8192, "page_kib": 1048576}]
ACTIONS = [{"action": "attribute", "path": TYPE, "value": "713", "before": "0", "through": "0"}]
LISTED = {"claim": "c1a1", "vm": "one-42", "owner": "ann", "state": "active", "keep": False, "slots": [SLOT],
          "since": CLAIM.since, "verified_at": None, "note": None}

JSON = {
    "placed": (jsonout.decision(PLACED), {
        "format": "kvm-gpu/1", "vm": "one-42", "owner": "ann", "claim": "c1a1", "decision": "placed",
        "slots": [{**SLOT, "numa_node": 1}], "cpus": CPUS, "memory": MEMORY, "warnings": ["not exclusive"],
        "reasons": [], "hint": "", "actions": ACTIONS}),
    "refused": (jsonout.decision(REFUSED), {
        "format": "kvm-gpu/1", "vm": "one-42", "owner": "ann", "claim": None, "decision": "refused",
        "slots": [], "cpus": [], "memory": [], "warnings": [],
        "reasons": [{"candidate": PF, "why": "full: held by one-7"}], "hint": "stop one-7", "actions": []}),
    "capacity": (jsonout.capacity((ROW,)), {"format": "kvm-gpu/1", "rows": [ROW._asdict()]}),
    "claims": (jsonout.claims([(CLAIM, (DEVICE,))]), {"format": "kvm-gpu/1", "claims": [LISTED]}),
    "show": (jsonout.show(CLAIM, (DEVICE,), (USE,), (ACTION,)), {
        "format": "kvm-gpu/1", **LISTED, "cpus": CPUS, "memory": MEMORY, "actions": ACTIONS}),
    "events": (jsonout.events((Event(7, "c1a1", "one-42", "claimed", None),)), {
        "format": "kvm-gpu/1",
        "events": [{"time": 7, "claim": "c1a1", "vm": "one-42", "event": "claimed", "detail": None}]}),
    "done": (jsonout.done(("freed",)), {"format": "kvm-gpu/1", "done": ["freed"]}),
    "inventory": (jsonout.inventory(Host("b007", (NODE,), (BROKEN,))), {
        "format": "kvm-gpu/1",
        "nodes": [{"id": 1, "cores": [[8, 24], [9, 25]], "mem_mib": 65536, "free_mib": 60000,
                   "pages": [{"size_kib": 2048, "total": 0, "free": 0}, {"size_kib": 1048576, "total": 64, "free": 56}],
                   "distances": [10]}],
        "boards": [{"address": "0000:c1:00.0", "identity": None, "model": "unknown", "partitioner": None,
                    "numa_node": None, "numa_source": "unknown", "pci_path": [], "functions": [], "layouts": [],
                    "trouble": ["numa_node: EIO"]}]}),
    "error": (jsonout.error(HostError("no sysfs", "mount it")),
              {"error": {"code": "host", "message": "no sysfs", "hint": "mount it"}}),
}


@pytest.mark.parametrize("case", JSON)
def test_json(case):
    text, expected = JSON[case]
    assert json.loads(text) == expected
    assert text.count("\n") == 1
    assert text.endswith("\n")
