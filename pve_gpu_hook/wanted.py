"""What a VM asks of us, as a Request: each hostpciN on one of our boards is a want, limited to its alternatives.

The tag gpu-offer-NAME adds the wishes of an offer: NUMA, closeness, CPUs.
"""
from __future__ import annotations

from kvm_gpu.errors import RequestError
from kvm_gpu.mechanisms.mdev import TYPES, suffix
from kvm_gpu.model import Request, Vm, Want
from kvm_gpu.request import check, from_offer, shown
from kvm_gpu.sysfs import DEVICES
from pve_gpu_hook import guest
from pve_gpu_hook.mapping import first
from pve_gpu_hook.tags import OFFER, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.model import Board, Host, Offer, PciAddress
    from kvm_gpu.sysfs import Sysfs
    from pve_gpu_hook.mapping import Alternative, HostPci
    from pve_gpu_hook.qmconf import Conf

    Owners = Mapping[PciAddress, Board]
else:
    from kvm_gpu.light import NamedTuple

MEDIATED: Final = ("mdev", "nvidia_vfio")


class Asked(NamedTuple):
    """A hostpciN of ours. `alternatives`: those on our boards, by the function of ours in them, in Proxmox's order.
    `others`: alternatives that are not ours. `uuid`: of the mdev that Proxmox VE would make."""
    device: HostPci
    want: Want
    uuid: Optional[str]
    alternatives: dict[PciAddress, Alternative]
    others: tuple[Alternative, ...]

    def among(self, barred: Collection[PciAddress]) -> Want:
        """The want without these addresses."""
        left = tuple(address for address in self.alternatives if address not in barred)
        return self.want if self.want.address else self.want._replace(among=left)


def asked(sysfs: Sysfs, host: Host, vm: str, devices: tuple[HostPci, ...]) -> tuple[Asked, ...]:
    """Those of our boards; functions of one card that are asked for one by one count once. Raises RequestError,
    HostError."""
    owners = {address: board for board in host.boards for address in _addresses(board)}
    found: list[Asked] = []
    cards: set[PciAddress] = set()
    for device in devices:
        ours = _ours(device, owners)
        if not ours:
            continue
        boards = {owners[address].address for address in ours if _is_physical(owners[address], address)}
        if len(device.alternatives) == 1 and device.mdev is None and boards:
            if boards <= cards:
                continue
            cards |= boards
        found.append(_asked(sysfs, vm, device, owners, ours))
    return tuple(found)


def request(vm: str, conf: Conf, wants: tuple[Want, ...], uuids: tuple[Optional[str], ...], offers: tuple[Offer, ...],
            pools: tuple[str, ...]) -> Request:
    """`pools`: the resource pools of the VM; offers may be enabled for them. Raises RequestError, OwnershipError where
    the offer is not for this VM."""
    who = Vm(vm, None, pools)
    wishes = _offer(conf, offers, who)
    try:
        nodes = guest.nodes(conf)
    except ValueError as error:
        raise RequestError(f"VM {vm}: its configuration: {error}") from None
    made = Request(who, wants, nodes) if wishes is None else wishes._replace(wants=wants, guest=nodes)
    return check(made._replace(uuids=uuids if any(uuids) else ()))


# ---- devices ---------------------------------------------------------------------------------------

def _ours(device: HostPci, owners: Owners) -> dict[PciAddress, Alternative]:
    """Raises RequestError where one alternative is several of our boards."""
    found = {}
    for alternative in device.alternatives:
        here = [first(one) for one in alternative if first(one) in owners]
        if len({owners[address].address for address in here}) > 1:
            raise RequestError(f"{device}: {' and '.join(here)} at once are two GPUs", "make a mapping entry for each")
        if here:
            found[here[0]] = alternative
    return found


def _asked(sysfs: Sysfs, vm: str, device: HostPci, owners: Owners, ours: dict[PciAddress, Alternative]) -> Asked:
    others = tuple(one for one in device.alternatives if one not in ours.values())
    boards = [owners[address] for address in ours]
    uuid = None
    if device.mdev is None:
        want = _function(device, ours, boards)
    else:
        want = Want(_profile(boards, device.mdev))
        if sysfs.exists(DEVICES + next(iter(ours)) + TYPES):
            uuid = f"{device.number:08}-0000-0000-0000-{int(vm):012}"     # Source: generate_mdev_uuid in PVE
            ours = {address: one for address, one in ours.items()
                    if sysfs.exists(f"{DEVICES}{address}{TYPES}/{device.mdev}")}
            if not ours:
                raise RequestError(f"{device}: no device of it has the type {shown(device.mdev)}")
    alone = len(device.alternatives) == 1
    return Asked(device, want._replace(address=next(iter(ours))) if alone else want, uuid, ours, others)


def _function(device: HostPci, ours: Collection[PciAddress], boards: list[Board]) -> Want:
    """A card or a VF as it is. Raises RequestError for a VF that needs a type."""
    kinds = {"whole" if _is_physical(board, address) else "vf" for address, board in zip(ours, boards, strict=True)}
    if "vf" in kinds and any(layout.mechanism in MEDIATED for board in boards for layout in board.layouts):
        raise RequestError(f"{device}: its devices are cut into vGPUs, and no MDev Type is chosen",
                           "choose one under Hardware > PCI Device")
    models = {board.model for board in boards}
    return Want(mechanism=kinds.pop() if len(kinds) == 1 else None, model=models.pop() if len(models) == 1 else None)


def _profile(boards: list[Board], mdev: str) -> str:
    """"nvidia-713" -> "A16-4Q"; the type's number where no board knows it."""
    number = suffix(mdev)
    names = (profile.name for board in boards for layout in board.layouts for cell in layout.cells
             for profile in cell.profiles if profile.type_id == number)
    return next(names, number)


def _is_physical(board: Board, address: PciAddress) -> bool:
    return any(function.address == address for function in board.functions)


def _addresses(board: Board) -> set[PciAddress]:
    """All by which Proxmox VE may know a part of the board."""
    slots = [slot for layout in board.layouts for slot in layout.slots]
    return {function.address for function in board.functions}.union(*(slot.functions for slot in slots))


# ---- wishes ----------------------------------------------------------------------------------------

def _offer(conf: Conf, offers: tuple[Offer, ...], who: Vm) -> Optional[Request]:
    """A tag is in lower case where the cluster does not tell cases apart."""
    names = [tag[len(OFFER):] for tag in split(conf.get("tags", "")) if tag.startswith(OFFER)]
    if not names:
        return None
    if len(names) > 1:
        raise RequestError(f"VM {who.id}: several tags {OFFER}NAME: {', '.join(map(shown, names))}", "leave one")
    sold = [offer for offer in offers if offer.name.lower() == names[0].lower()]
    if not sold:
        raise RequestError(f"VM {who.id}: no offer {shown(names[0])} on this host",
                           f"offers: {', '.join(offer.name for offer in offers) or 'none'}")
    wishes = from_offer(sold[0], who)
    if wishes.keep:     # nothing calls us when a VM is destroyed: what it keeps would stay kept
        raise RequestError(f"VM {who.id}: offer {sold[0].name} keeps its device for a VM that is off, which is not "
                           "for Proxmox VE: it does not tell us when such a VM ends")
    return wishes
