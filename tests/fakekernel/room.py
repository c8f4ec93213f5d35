"""How much of a board is left, as its driver counts it: vGPUs of one size, mixed sizes, GPU instances, shares."""
from __future__ import annotations

from errno import EIO
from typing import Generic, NamedTuple, TypeVar

from tests.fakekernel.machine import ShareType, VgpuType
from tests.fakekernel.tree import refuse

Type = TypeVar("Type", bound="VgpuType | ShareType")


class Seat(NamedTuple, Generic[Type]):
    """Where one mdev or vGPU sits: first unit, and the GPU instance it draws from."""
    type: Type
    start: int
    instance: int | None = None


class Room(Generic[Type]):
    """`held` by user (a VF or an mdev's UUID). `slow_looks`: that often a freed seat still reads as taken."""

    def __init__(self, types: tuple[Type, ...]) -> None:
        self.types = types
        self.held: dict[str, Seat[Type]] = {}
        self.leaving: list[tuple[Seat[Type], int]] = []
        self.slow_looks = 0

    def seats(self, type: Type) -> list[Seat[Type]]:
        """Seats where one more of this type could go now."""
        raise NotImplementedError

    def most(self, type: Type) -> int:
        """How many more of this type fit."""
        return len(self.seats(type))

    def taken(self) -> list[Seat[Type]]:
        return [*self.held.values(), *(seat for seat, _ in self.leaving)]

    def take(self, user: str, type: Type) -> None:
        """Raises EIO where it does not fit."""
        seats = self.seats(type)
        if not seats:
            raise refuse(EIO, f"{type.name} does not fit")
        self.held[user] = seats[0]

    def give(self, user: str) -> None:
        seat = self.held.pop(user)
        if self.slow_looks:
            self.leaving.append((seat, self.slow_looks))

    def look(self) -> None:
        self.leaving = [(seat, looks - 1) for seat, looks in self.leaving if looks > 1]


class ShareRoom(Room[ShareType]):
    """GVT-g and mtty: every type takes its units from one total."""

    def __init__(self, types: tuple[ShareType, ...], units: int) -> None:
        super().__init__(types)
        self.units = units

    def seats(self, type: ShareType) -> list[Seat[ShareType]]:
        used = sum(seat.type.units for seat in self.taken())
        return [Seat(type, used + n * type.units) for n in range((self.units - used) // type.units)]


class VgpuRoom(Room[VgpuType]):
    """An NVIDIA board: one frame-buffer size by default, any while `mixed`, GPU instances while `mig` is on.
    Source: NVIDIA vGPU user guide, "Valid Time-Sliced Virtual GPU Configurations on a Single GPU"."""

    def __init__(self, types: tuple[VgpuType, ...]) -> None:
        super().__init__(types)
        self.fb_mb = max((type.fb_mb for type in types), default=0)
        self.mixed = False
        self.mig = False
        self.instances: dict[int, int] = {}     # GPU instance id -> compute slices

    def seats(self, type: VgpuType) -> list[Seat[VgpuType]]:
        if self.mig:
            return self._in_instances(type) if type.slices else []
        if type.slices:
            return []
        return self._aligned(type) if self.mixed else self._of_one_size(type)

    def _of_one_size(self, type: VgpuType) -> list[Seat[VgpuType]]:
        taken = self.taken()
        if any(seat.type.fb_mb != type.fb_mb for seat in taken):
            return []
        starts = {seat.start for seat in taken}
        free = [n * type.fb_mb for n in range(type.max_instance) if n * type.fb_mb not in starts]
        return [Seat(type, start) for start in free]

    def _aligned(self, type: VgpuType) -> list[Seat[VgpuType]]:
        taken = self.taken()

        def is_free(start: int) -> bool:
            return all(start + type.fb_mb <= seat.start or seat.start + seat.type.fb_mb <= start for seat in taken)

        starts = range(0, self.fb_mb - type.fb_mb + 1, type.fb_mb)
        return [Seat(type, start) for start in starts if is_free(start)]

    def _in_instances(self, type: VgpuType) -> list[Seat[VgpuType]]:
        """Free places in GPU instances of this type's shape; an instance holds one frame-buffer size."""
        free = []
        for instance, slices in sorted(self.instances.items()):
            inside = [seat for seat in self.taken() if seat.instance == instance]
            if slices == type.slices and all(seat.type.fb_mb == type.fb_mb for seat in inside):
                starts = {seat.start for seat in inside}
                places = [n * type.fb_mb for n in range(type.per_instance) if n * type.fb_mb not in starts]
                free += [Seat(type, start, instance) for start in places]
        return free
