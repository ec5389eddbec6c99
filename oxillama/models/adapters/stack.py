"""The adapters of an engine, a request or a sequence: which, how strong, from which token on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from blake3 import blake3

from oxillama.base.config import checks
from oxillama.errors import ConfigError
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.weights.low_rank import Adapter, RowGroup, Stack


class LoraStack:
    """Adapters in the order in which they are added, each with its scale."""

    def __init__(self) -> None:
        self._items: tuple[tuple[LoadedLora, float], ...] = ()

    def push(self, lora: LoadedLora, scale: float = 1.0) -> None:
        """Adds an adapter. Raises ConfigError if the scale is no finite number."""
        checks.instance("lora", lora, LoadedLora)
        self._items += ((lora, float(checks.number("scale", scale))),)

    def pop(self) -> LoadedLora | None:
        """Removes and returns the last adapter; None if the stack is empty."""
        if not self._items:
            return None
        *rest, (lora, _) = self._items
        self._items = tuple(rest)
        return lora

    def rescale(self, scales: Sequence[float]) -> None:
        """Gives each adapter a scale, in order; one of scale 0 stays, and does not apply.

        Raises ConfigError if there are more or fewer scales than adapters, or one is no finite number.
        """
        if len(scales) != len(self._items):
            raise ConfigError(f"scales: expected {len(self._items)}, got {len(scales)}")
        checked = [float(checks.number("scale", scale)) for scale in scales]
        self._items = tuple((lora, scale) for (lora, _), scale in zip(self._items, checked))

    def clear(self) -> None:
        """Takes all adapters away."""
        self._items = ()

    @property
    def items(self) -> tuple[tuple[LoadedLora, float], ...]:
        """(adapter, scale), the first added first."""
        return self._items

    @property
    def scales(self) -> list[float]:
        """The scales, in the same order."""
        return [scale for _, scale in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[LoadedLora, float]]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"LoraStack({list(self._items)!r})"


@dataclass(frozen=True)
class Applied:
    """An adapter of a sequence.

    Attributes:
        lora: its file.
        adapter: the same in the layouts of the model.
        scale: of the user.
        start: position of the first token that it applies to.
    """

    lora: LoadedLora
    adapter: Adapter
    scale: float
    start: int = 0


class Adaptation:
    """The adapters of one sequence. A token's keys and values depend on those that apply to it.

    Attributes:
        applied: in the order in which they are added.
    """

    def __init__(self, applied: Sequence[Applied]) -> None:
        self.applied: tuple[Applied, ...] = tuple(applied)
        edges = sorted({0, *(item.start for item in self.applied)})
        self._segments = [self._segment(start, end) for start, end in pairwise([*edges, math.inf])]

    def _segment(self, start: float, end: float) -> tuple[int, float, Stack, int]:
        """(start, end, the adapters that apply between, a number of their own; 0 for none)."""
        active = [item for item in self.applied if item.start <= start]
        hashed = blake3()
        for item in active:
            hashed.update(item.lora.fingerprint)
            hashed.update(item.scale.hex().encode() + b" ")
        mark = int.from_bytes(hashed.digest(), "little") << 32 if active else 0
        return int(start), end, tuple((item.adapter, item.scale) for item in active), mark

    def groups(self, first: int, last: int, row: int) -> Iterator[RowGroup]:
        """The rows of a pass for the positions ``first`` to ``last``, of which the first is row ``row``."""
        for start, end, stack, _ in self._segments:
            begin, stop = max(first, start), int(min(last, end))
            if stack and begin < stop:
                yield RowGroup(row + begin - first, stop - begin, stack)

    def marked(self, tokens: Sequence[int]) -> list[int]:
        """Token ids that also tell the adapters apart which the tokens were run with.

        Tokens without adapters keep their ids: before an activated adapter, the pages are the model's
        alone.
        """
        found: list[int] = []
        for start, end, _, mark in self._segments:
            found += [mark | token for token in tokens[start : int(min(end, len(tokens)))]]
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Adaptation):
            return NotImplemented
        return [(start, mark) for start, _, _, mark in self._segments] == [
            (start, mark) for start, _, _, mark in other._segments
        ]

    __hash__: ClassVar[None]  # type: ignore[assignment]


def invocation_start(invocation: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Where ``invocation`` last occurs among ``tokens``; None where it does not."""
    n, wanted = len(invocation), list(invocation)
    for start in range(len(tokens) - n, -1, -1):
        if list(tokens[start : start + n]) == wanted:
            return start
    return None
