"""Records do what frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from oxillama.frozen import frozen


@frozen()
class Pair:
    a: int
    b: Any = None
    note: str = field(default="", compare=False)
    kept: str = field(default="", hash=False, repr=False)


@frozen(kw_only=True)
class Single:
    a: Any


@frozen()
class Other:
    a: Any


@frozen()
class Nothing:
    pass


@frozen(repr=False)
class Silent:
    a: int

    def __hash__(self) -> int:
        return 5


@dataclass(frozen=True)
class Usual:
    a: int
    b: Any = None
    note: str = field(default="", compare=False)
    kept: str = field(default="", hash=False, repr=False)


VALUES = [(1,), (1, None, "x"), (1, 2), (1, 2, "", "k"), (1, 2, "y", "k"), (2,), (1.0,)]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_they_compare_as_dataclasses_do(one: Any, other: Any) -> None:
    assert (Pair(*one) == Pair(*other)) is (Usual(*one) == Usual(*other))
    assert (Pair(*one) != Pair(*other)) is (Usual(*one) != Usual(*other))
    assert (hash(Pair(*one)) == hash(Pair(*other))) is (hash(Usual(*one)) == hash(Usual(*other)))


def test_objects_of_two_classes_differ() -> None:
    assert Single(a=1) != Other(1)
    assert Single(a=1) == Single(a=1)
    assert hash(Other(1)) == hash(Other(1))
    assert Other(1) != (1,)
    nan = float("nan")
    assert Other(nan) == Other(nan)  # the same object
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


def test_what_cannot_be_hashed_is_an_error() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Other([]))
    assert hash(Silent(1)) == 5
    assert Silent(1) == Silent(1)


def test_they_say_what_dataclasses_say() -> None:
    assert repr(Pair(1, "x")) == repr(Usual(1, "x")).replace("Usual", "Pair")
    assert repr(Silent(1)).startswith("<")
    loop = Other([])
    loop.a.append(loop)
    assert repr(loop) == "Other(a=[...])"


def test_they_cannot_be_changed() -> None:
    pair = Pair(1)
    with pytest.raises(FrozenInstanceError):
        pair.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del pair.a
    assert replace(pair, a=2) == Pair(2)  # type: ignore[type-var]
    assert [each.name for each in fields(Pair)] == ["a", "b", "note", "kept"]  # type: ignore[arg-type]
    assert copy.deepcopy(pair) == pickle.loads(pickle.dumps(pair)) == pair
    with pytest.raises(TypeError):
        Single(1)  # type: ignore[call-arg,misc]
