"""Counts and times the calls of kernels by the engines that are loaded in a `with` block.

The kernels themselves are not changed: `_kernels.best` gives engines a `Kernels` whose modules wrap the same
functions and classes. A wrapped call takes some tenths of a microsecond longer (`KernelCalls.cost`).
"""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from oxillama import _kernels
from oxillama._kernels import Kernels

PRODUCTS = "linear"
"""The module whose calls are products with the weights."""


@dataclass(frozen=True)
class Product:
    """One matrix product of a call.

    Attributes
    ----------
    bytes : of the panels.
    panels : of 16 output rows, which threads share out.
    macs : multiply-adds.
    is_float : whether the weights are floats, which take 16 bits or more; those of codes take 9 at the most.
    """

    bytes: int
    panels: int
    macs: int
    is_float: bool


class KernelCalls:
    """Calls since the last `clear`.

    Attributes
    ----------
    counts, seconds : number and time of the calls, by module and name ("vector.rms_norm").
    products : every matrix product.
    cost : seconds that counting adds to a call, outside of `seconds`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.products: list[Product] = []
        self.cost: float = 0.0
        self.cost = self._measure_cost()

    def clear(self) -> None:
        """Forgets the calls so far."""
        self.counts.clear()
        self.seconds.clear()
        self.products.clear()

    def of(self, module: str) -> float:
        """Seconds of the calls of a module."""
        return sum(taken for name, taken in self.seconds.items() if name.startswith(f"{module}."))

    @property
    def in_kernels(self) -> float:
        """Seconds of all calls."""
        return sum(self.seconds.values())

    @property
    def added(self) -> float:
        """Seconds that counting added to the calls."""
        return self.cost * sum(self.counts.values())

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""
        clock, counts, seconds = time.perf_counter, self.counts, self.seconds

        @functools.wraps(work)
        def call(*args: Any, **how: Any) -> Any:
            start = clock()
            try:
                return work(*args, **how)
            finally:
                seconds[name] += clock() - start
                counts[name] += 1

        return call

    def timed_type(self, name: str, kind: type) -> type:
        """A subclass of a compiled class whose methods are counted; products are kept too."""
        methods: dict[str, Any] = {
            key: self.timed(f"{name}.{key}", value)
            for key, value in vars(kind).items()
            if callable(value) and not key.startswith("_") and not key.endswith("_bytes")
        }
        if name == f"{PRODUCTS}.Linear":
            apply = methods["apply"]

            def counted(linear: Any, x: Any, *args: Any, **how: Any) -> Any:
                done = apply(linear, x, *args, **how)
                self.products.append(product(linear, len(x)))
                return done

            methods["apply"] = counted
        return type(kind.__name__, (kind,), methods)

    def timed_groups(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`apply_groups`, whose products are kept too."""
        timed = self.timed(f"{PRODUCTS}.apply_groups", work)

        def call(linears: Sequence[Any], counts: Any, *args: Any, **how: Any) -> Any:
            done = timed(linears, counts, *args, **how)
            self.products += [product(linear, int(n)) for linear, n in zip(linears, counts)]
            return done

        return call

    def _measure_cost(self, n: int = 2000) -> float:
        timed, best = self.timed("none", int), float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(n):
                timed()
            best = min(best, time.perf_counter() - start - self.seconds["none"])
            self.clear()
        return best / n


class TimedModule:
    """The functions and classes of a compiled module, each counted."""

    def __init__(self, name: str, module: Any, calls: KernelCalls) -> None:
        self._name, self._module, self._calls = name, module, calls

    def __getattr__(self, key: str) -> Any:
        value, name = getattr(self._module, key), f"{self._name}.{key}"
        if isinstance(value, type):
            value = self._calls.timed_type(name, value)
        elif name == f"{PRODUCTS}.apply_groups":
            value = self._calls.timed_groups(value)
        elif callable(value):
            value = self._calls.timed(name, value)
        self.__dict__[key] = value
        return value


def product(linear: Any, n: int) -> Product:
    """What a compiled `Linear` multiplies with ``n`` rows of activations."""
    n_bytes = sum(panels.nbytes for panels in linear.panels)
    n_weights = linear.rows * linear.cols
    return Product(n_bytes, (linear.rows + 15) // 16, n * n_weights, n_bytes > 1.5 * n_weights)


def timed_kernels(kernels: Kernels, calls: KernelCalls) -> Kernels:
    """The same kernels, counted."""
    modules = {
        field.name: TimedModule(field.name, getattr(kernels, field.name), calls)
        for field in fields(kernels)
        if field.name != "target"
    }
    return Kernels(kernels.target, **modules)


@contextmanager
def counted_kernels() -> Iterator[KernelCalls]:
    """Counts the calls of engines that are loaded within the block, in this process."""
    plain, calls = _kernels.best, KernelCalls()
    counted = timed_kernels(plain(), calls)
    setattr(_kernels, "best", lambda: counted)  # noqa: B010
    try:
        yield calls
    finally:
        setattr(_kernels, "best", plain)  # noqa: B010
