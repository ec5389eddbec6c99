"""Formats that share a number in files, and differ in their blocks: the size of a tensor tells which it has.

The number 42 is Q2_0: blocks of 64 weights in 18 bytes, or in older files blocks of 128 weights in 34 bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from oxillama.base.formats import FORMAT_BY_ID, VARIANT, Format

Fail = Callable[[str, str, int], NoReturn]
"""Raises an error: a message, the name of a tensor, and where its data begin."""


class Placed(Protocol):
    """A tensor, and where its data begin."""

    @property
    def format(self) -> Format: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...
    @property
    def n_elements(self) -> int: ...


def tell_apart(tensors: Mapping[str, Placed], alignment: int, size: int, fail: Fail) -> dict[str, Format]:
    """The formats of the tensors whose number has several: those whose blocks end where the data do.

    Data end where the next tensor begins, or with the file of ``size`` bytes. A small tensor may fit two
    formats, because of the padding: it has the one that all others of its number have. Calls ``fail`` if a
    tensor fits none, or if nothing tells two apart.
    """
    ends = sorted({info.offset for info in tensors.values()} | {size})
    fitting: dict[str, tuple[Format, ...]] = {}
    for name, info in tensors.items():
        other = FORMAT_BY_ID.get(VARIANT + info.format.id)
        if other is not None and info.shape[0] % other.block_len == 0:
            both = (info.format, other)
            end = ends[min(bisect_right(ends, info.offset), len(ends) - 1)]
            fitting[name] = _of_size(name, info, both, max(0, end - info.offset), alignment, fail)
    known = {formats[0] for formats in fitting.values() if len(formats) == 1}
    chosen = {}
    for name, formats in fitting.items():
        found = formats if len(formats) == 1 else tuple(f for f in formats if f in known)
        if len(found) != 1:
            either = " or ".join(f.name for f in formats)
            fail(f"expected a size that tells {either}, got one that fits both", name, tensors[name].offset)
        chosen[name] = found[0]
    return chosen


def _of_size(
    name: str, info: Placed, formats: tuple[Format, ...], room: int, alignment: int, fail: Fail
) -> tuple[Format, ...]:
    """The formats whose data fill so many bytes, with or without padding."""
    sizes = {fmt: fmt.nbytes(info.n_elements) for fmt in formats}
    fits = tuple(f for f, n in sizes.items() if room in (n, -(-n // alignment) * alignment))
    if not fits:
        wanted = " or ".join(f"{n} bytes of data ({fmt.name})" for fmt, n in sizes.items())
        fail(f"expected {wanted}, got {room}", name, info.offset)
    return fits
