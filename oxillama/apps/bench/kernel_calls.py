"""Counts and times kernel calls of the engines that are loaded in a `with` block.

The kernels are not changed: `_kernels.best` gives engines a `Kernels` whose modules wrap the same
functions and classes. Wrapping adds some tenths of a microsecond to a call (`KernelCalls.cost`).
"""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from oxillama import _kernels
from oxillama._kernels import Kernels

PRODUCTS = "linear"
"""The kernel module of the products with weight matrices."""


@dataclass(frozen=True)
class Product:
    """A matrix product of a call.

    Attributes:
        bytes: size of the weight panels.
        panels: number of panels of 16 output rows, which are distributed over threads.
        macs: number of multiply-adds.
        is_float: whether the weights are floats of 16 or more bits, not quantized to at most 9 bits.
    """

    bytes: int
    panels: int
    macs: int
    is_float: bool


class KernelCalls:
    """Kernel calls since the last `clear`.

    Attributes:
        counts, seconds: number and total time of calls, by module and name ("vector.rms_norm").
        products: every matrix product.
        cost: seconds that counting adds to a call, not included in `seconds`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.products: list[Product] = []
        self.cost: float = 0.0
        self.cost = self._measure_cost()

    def clear(self) -> None:
        """Forget all calls."""
        self.counts.clear()
        self.seconds.clear()
        self.products.clear()

    def of(self, module: str) -> float:
        """Seconds spent in the calls of a module."""
        return sum(taken for name, taken in self.seconds.items() if name.startswith(f"{module}."))

    @property
    def in_kernels(self) -> float:
        """Seconds spent in all calls."""
        return sum(self.seconds.values())

    @property
    def added(self) -> float:
        """Seconds that counting has added to the calls."""
        return self.cost * sum(self.counts.values())

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of a function that counts and times its calls."""
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
        """A subclass of a compiled class with counted methods; also records products."""
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
        """A counted `apply_groups`; also records products."""
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
    """Wraps a compiled module: its functions and classes are counted."""

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
    """The product of a compiled `Linear` with ``n`` rows of activations."""
    n_bytes = sum(panels.nbytes for panels in linear.panels)
    n_weights = linear.rows * linear.cols
    return Product(n_bytes, (linear.rows + 15) // 16, n * n_weights, n_bytes > 1.5 * n_weights)


def timed_kernels(kernels: Kernels, calls: KernelCalls) -> Kernels:
    """The kernels with all calls counted."""
    modules: dict[str, Any] = {
        field.name: TimedModule(field.name, getattr(kernels, field.name), calls)
        for field in fields(kernels)
        if field.name not in ("target", "tile_tokens", "unpacks_quick")
    }
    return replace(kernels, **modules)


@contextmanager
def counted_kernels() -> Iterator[KernelCalls]:
    """Count the kernel calls of engines that are loaded inside the block, in this process."""
    plain, calls = _kernels.best, KernelCalls()
    counted = timed_kernels(plain(), calls)
    setattr(_kernels, "best", lambda: counted)  # noqa: B010
    try:
        yield calls
    finally:
        setattr(_kernels, "best", plain)  # noqa: B010
