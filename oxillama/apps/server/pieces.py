"""Values sent between processes: pickled in pieces, each of which is read in well below 1 ms.

`pickle.loads` keeps Python's lock until it is done. Large lists and dicts are therefore cut, and put together
again part by part, between which other threads run.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

LARGE = 1 << 16
"""Bytes of a piece, about; and bytes from which a body, or an answer, is a large one."""

PARTS = 2048
"""Values in a piece."""

SCALARS = {int, float, bool, type(None)}


def is_small(value: Any) -> bool:
    """Whether a value is of JSON's types or bytes alone, and so little that it is read or written at once."""
    left = [value]
    n_parts, n_bytes = 0, 0
    while left:
        each = left.pop()
        kind = type(each)
        if kind is str or kind is bytes:
            n_bytes += len(each)
        elif kind in (dict, list, tuple):
            n_parts += len(each)
            if n_parts > PARTS:
                return False
            parts = each.values() if kind is dict else each
            if set(map(type, parts)) - SCALARS:
                left += [part for part in parts if type(part) not in SCALARS]
        elif kind not in SCALARS:
            return False
        if n_bytes > LARGE:
            return False
    return True


Refer = Callable[[Any], Any]
"""A name for an object that the other process has already; None for any other object."""


class Cutter(pickle.Pickler):
    """Pickles a value without its large parts, which it adds to ``parts``: lists of pieces, or bytes."""

    def __init__(self, file: io.BytesIO, parts: list[Any], refer: Refer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.parts: list[Any] = parts
        self.refer = refer

    def persistent_id(self, value: Any) -> Any:
        """The index of a part; None for a value that is not cut out."""
        kind = type(value)
        if (kind is list or kind is dict) and not is_small(value):
            pieces: list[bytes] = []
            place = len(self.parts)
            self.parts.append((kind, pieces))
            items = tuple(value.items() if kind is dict else value)
            for group in groups(items):
                is_plain = len(group) > 1 or is_small(group)
                pieces.append(pickle.dumps(group, 5) if is_plain else self._pickled(group))
            return place
        if kind is bytes and len(value) >= LARGE:
            self.parts.append((bytes, [value]))
            return len(self.parts) - 1
        return self.refer(value)

    def _pickled(self, value: Any) -> bytes:
        file = io.BytesIO()
        Cutter(file, self.parts, self.refer).dump(value)
        return file.getvalue()


def groups(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The items in order, in groups that are small together, or a large item alone."""
    if len(items) <= 1 or is_small(items):
        yield items
    else:
        middle = len(items) // 2
        yield from groups(items[:middle])
        yield from groups(items[middle:])


class Joiner(pickle.Unpickler):
    """Unpickles a value that a `Cutter` wrote."""

    def __init__(self, data: bytes, parts: Sequence[tuple[type, list[bytes]]], find: Refer) -> None:
        super().__init__(io.BytesIO(data))
        self.parts: Sequence[tuple[type, list[bytes]]] = parts
        self.find: Refer = find

    def persistent_load(self, name: Any) -> Any:
        """The part at an index; ``find`` resolves other names."""
        if type(name) is not int:
            return self.find(name)
        kind, pieces = self.parts[name]
        if kind is bytes:
            return pieces[0]
        found: list[Any] = []
        for piece in pieces:
            found += Joiner(piece, self.parts, self.find).load()
        return dict(found) if kind is dict else found


def cut(value: Any, refer: Refer = lambda value: None) -> list[bytes]:
    """A value as pieces of bytes. Raises what pickling raises."""
    file, parts = io.BytesIO(), list[tuple[type, list[bytes]]]()
    Cutter(file, parts, refer).dump(value)
    layout = pickle.dumps([(kind, len(pieces)) for kind, pieces in parts])
    return [layout, file.getvalue(), *(piece for _, pieces in parts for piece in pieces)]


def joined(pieces: Sequence[bytes], find: Refer = lambda name: None) -> Any:
    """The value that `cut` has made pieces of. Raises what unpickling raises."""
    layout, data, *rest = pieces
    parts, at = [], 0
    for kind, n in pickle.loads(layout):
        parts.append((kind, rest[at : at + n]))
        at += n
    return Joiner(data, parts, find).load()


class Mapped(Sequence[Any]):
    """The values of a function for some items, each of which is made when it is written.

    Made objects take ten times the memory of the arrays that they are made of.
    """

    def __init__(self, function: Callable[[Any], Any], items: Collection[Any]) -> None:
        self._function = function
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._items)

    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]


def made(value: Any) -> list[Any]:
    """The values of a `Mapped`. Raises TypeError for another value, which JSON does not have."""
    if isinstance(value, Mapped):
        return list(value)
    raise TypeError(f"expected a value that JSON has, got {type(value).__name__}")


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=made)
"""Made once: a stream needs it for each token."""
