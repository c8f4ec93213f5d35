"""Domains and placements for the tests of domain XML."""
from pathlib import Path

from kvm_gpu.model import Device, Hold, Placement, Use

DATA = Path(__file__).parent / "data"
OPENNEBULA = {file.stem: file.read_bytes() for file in sorted((DATA / "opennebula").glob("*.xml"))
              if not file.stem.endswith((".vm", "-gpu-slot"))}     # a slot is a device to OpenNebula alone
BY_HAND = {file.stem: file.read_bytes() for file in sorted((DATA / "domains").glob("*.xml"))}
BY_HAND["cdata-crlf"] = BY_HAND["cdata"].replace(b"\n", b"\r\n")
SAMPLES = {**OPENNEBULA, **BY_HAND}


def device(mechanism, *functions, uuid=None, bar_mib=None):
    hold = Hold(functions[0] if functions else "mtty#0", "0000:41:00.0", mechanism, "board", "profile", 0, 1, "vm",
                "starting")
    return Device(hold, mechanism, functions, uuid, bar_mib)


WHOLE = device("whole", "0000:41:00.0", "0000:41:00.1", "0000:41:00.2", "0000:41:00.3", bar_mib=288)
VF = device("vf", "0000:c1:02.1", bar_mib=256)
NVIDIA_VFIO = device("nvidia_vfio", "0000:81:00.5")
MDEV = device("mdev", uuid="6f1c7a5e-1111-4222-8333-444455556666")
BIG = device("whole", "0000:b1:00.0", bar_mib=(64 << 10) + 32)

PINNED = Use("vm", 0, 1, ((0, (8, 9)), (1, (10, 11))), (), 2048, 2048)
NODES = (Use("vm", 0, 0, ((0, (2,)), (1, (3,))), (2, 3), 8192, None),
         Use("vm", 1, 1, ((4, (18,)), (7, (19,))), (18, 19), 24576, None))
PLACEMENTS = {
    "whole": Placement((WHOLE,), ()),
    "vf": Placement((VF,), ()),
    "nvidia_vfio": Placement((NVIDIA_VFIO,), ()),
    "mdev": Placement((MDEV,), ()),
    "all": Placement((WHOLE, VF, NVIDIA_VFIO, MDEV), ()),
    "tuned": Placement((VF,), (PINNED,), (12, 13), "strict"),
    "big": Placement((BIG, MDEV), (PINNED,), (), "preferred"),
    "nodes": Placement((WHOLE, BIG), NODES, (0,), "preferred"),
}
