"""light.NamedTuple against the class that mypy takes it for."""
from __future__ import annotations

import copy
import pickle
import typing

import pytest

from kvm_gpu import light


class Light(light.NamedTuple):
    """A point."""
    x: int
    y: int = 2
    name: str | None = None

    def double(self) -> Light:
        return self._replace(x=2 * self.x)


class Real(typing.NamedTuple):
    """A point."""
    x: int
    y: int = 2
    name: str | None = None


@pytest.mark.parametrize(("values", "named"), [
    ((1,), {}), ((1, 5), {}), ((1, 5, "a"), {}), ((), {"x": 1}), ((1,), {"name": "b"}),
    ((), {"name": "c", "x": 9, "y": 0}),
])
def test_is_made_like_the_real_one(values: tuple[object, ...], named: dict[str, object]) -> None:
    ours, theirs = Light(*values, **named), Real(*values, **named)
    assert ours == tuple(theirs)
    assert (ours.x, ours.y, ours.name) == (theirs.x, theirs.y, theirs.name)
    assert repr(ours) == repr(theirs).replace("Real", "Light")
    assert hash(ours) == hash(theirs)
    assert (ours._fields, ours.__doc__) == (theirs._fields, theirs.__doc__)


@pytest.mark.parametrize(("values", "named"), [
    ((), {}), ((1, 2, "a", 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1}),
])
def test_refuses_what_the_real_one_refuses(values: tuple[object, ...], named: dict[str, object]) -> None:
    for kind in (Light, Real):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_is_immutable_and_has_methods() -> None:
    point = Light(3)
    assert point.double() == (6, 2, None)
    assert point._replace(y=4) == (3, 4, None)
    with pytest.raises(AttributeError):
        point.x = 4     # type: ignore[misc]
    with pytest.raises(AttributeError):
        point.other = 4     # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        point._replace(z=1)


def test_copies() -> None:
    point = Light(3, name="n")
    for same in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point)), Light._make(point)):
        assert same == point
        assert type(same) is Light
