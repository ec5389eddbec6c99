"""The block formats of GGUF tensors, and how the kernels hold them. One table, many readers.

The loader, the tests, the benchmarks and the documentation iterate over `FORMATS`; the build writes the
kernels' copy of the table (`_kernels/generate.py`). Adding a row creates its tests. Ids and block sizes come
from the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) as the `gguf`
package publishes them.

A tensor is held in memory in a *packed layout*: panels of 16 rows, interleaved so that lane r of a
vector belongs to row r. A layout fixes the width of a code and the shape of its scales; several
formats share one. A format without a ``layout`` can be listed and sized but not run yet.
"""

from __future__ import annotations

from dataclasses import dataclass

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 16 values of IQ4_NL and IQ4_XS (ggml-common.h: kvalues_iq4nl)."""


def signed(*magnitudes: int) -> tuple[int, ...]:
    """8 magnitudes, or fewer and zeros, then their negatives: 16 values."""
    values = magnitudes + (0,) * (8 - len(magnitudes))
    return values + tuple(-v for v in values)


@dataclass(frozen=True)
class Layout:
    """How packed panels of a format look, and which activations they are multiplied with.

    Attributes:
        name, id: the name, and the number the kernels know it by.
        activation: "f32", "bf16", "q8_32" (int8, one f32 scale per 32 values), "q8_256" (int8, one f32 scale
            per 256 values), "q8_row" (int8, one f32 scale per row) or "q8_128" (as "q8_row", per 128 values).
        bits: of a code: 1, 2, 3, 4, 5, 6 or 8; 0 for floats.
        excess: value = code - excess, unless there is a table. Codes of 1 bit are doubled first.
        subs: columns of a sub-block with a scale of its own, an integer in blocks of 256: 16, 32, or 0 for
            none.
        minima: a block has a minimum beside the scale.
        values: 16 values that codes of up to 4 bits stand for, or ().
        unit: power of two that a block's scale is multiplied with.
        scale: type of a block's scale, or of a float: "f16", "bf16" or "f32"; of halves of a block "e5m3".
    """

    name: str
    id: int
    activation: str
    bits: int = 0
    excess: int = 0
    subs: int = 0
    minima: bool = False
    values: tuple[int, ...] = ()
    unit: float = 1.0
    scale: str = "f16"

    @property
    def block_len(self) -> int:
        """Columns of which a row is a multiple: of a block, 1 for floats, 32 for spans."""
        return {"f32": 1, "bf16": 1, "q8_32": 32, "q8_256": 256}.get(self.activation, 32)

    @property
    def span(self) -> int:
        """The most columns with one scale, in layouts whose rows are rounded in memory; 0 for others."""
        return {"q8_row": LONGEST_ROW, "q8_128": 128}.get(self.activation, 0)

    @property
    def unpacked_from(self) -> int:
        """Full tiles of tokens from which on the first one unpacks the codes to bytes for all; 0: never.

        Measured with AVX-512 and AVX2 on Zen 5 and Emerald Rapids. Where a shift and a mask are all it takes,
        bytes are not faster: they are more to read.
        """
        plain = self.bits in (1, 2, 4) and not self.values
        if self.bits in (0, 8) or (plain and (self.activation == "q8_32" or not self.subs)):
            return 0
        return 8 if self.activation == "q8_32" else 16 if self.bits == 4 and plain else 4


LONGEST_ROW = 133_120
"""Columns of a W8A8 matrix, at most: sums of so many products of up to 127 x 127 fit 32 bits."""


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("f32", 0, "f32", scale="f32"),  # 32-bit floats
        Layout("f16", 1, "f32"),  # IEEE half floats
        Layout("bf16", 2, "bf16", scale="bf16"),  # the upper halves of 32-bit floats
        Layout("c8", 3, "q8_32", 8),
        Layout("c4", 4, "q8_32", 4, excess=8),
        Layout("c5", 5, "q8_32", 5, excess=16),
        Layout("c1", 6, "q8_32", 1, excess=1),
        Layout("t4", 7, "q8_32", 4, values=IQ4_VALUES),
        Layout("e4", 8, "q8_32", 4, values=signed(0, 1, 2, 3, 4, 6, 8, 12), scale="bf16"),
        Layout("m4", 9, "q8_32", 4, minima=True),
        Layout("m5", 10, "q8_32", 5, minima=True),
        Layout("k2", 11, "q8_256", 2, subs=16, minima=True),
        Layout("k4", 12, "q8_256", 4, subs=32, minima=True),
        Layout("k5", 13, "q8_256", 5, subs=32, minima=True),
        Layout("k3", 14, "q8_256", 3, excess=4, subs=16),
        Layout("k6", 15, "q8_256", 6, excess=32, subs=16),
        Layout("kt", 16, "q8_256", 4, subs=32, values=IQ4_VALUES),
        # the grids' values: of IQ1 8 * (-1, 0, 1) + 1, then 8 * (-1, 0, 1) - 1; of the others magnitudes
        Layout("g1", 17, "q8_256", 3, subs=16, values=(-7, 1, 9, 0, -9, -1, 7, *(0,) * 9), unit=0.125),
        Layout("g2", 18, "q8_256", 3, subs=16, values=(8, 25, 43, 0, -8, -25, -43, *(0,) * 9), unit=0.125),
        Layout("g3", 19, "q8_256", 4, subs=32, values=signed(4, 12, 20, 28, 36, 44, 52, 62), unit=0.25),
        Layout("g3s", 20, "q8_256", 4, subs=32, values=signed(1, 3, 5, 7, 9, 11, 13, 15)),
        Layout("s2", 21, "q8_256", 2, excess=1),
        Layout("s8", 22, "q8_256", 8, scale="f32"),
        Layout("r8", 23, "q8_row", 8, scale="f32"),  # a scale for each row
        Layout("c2", 24, "q8_32", 2, excess=1),
        Layout("n4", 25, "q8_32", 4, subs=16, values=signed(0, 1, 2, 3, 4, 6, 8, 12), scale="e5m3"),
        Layout("b8", 26, "q8_128", 8, scale="f32"),  # a scale for each 128 columns of a row
    )
}


_KV = {"f32": "f32", "f16": "f16", "bf16": "bf16", "q8_0": "c8", "q5_1": "m5", "q5_0": "c5"}
_KV |= {"q4_1": "m4", "q4_0": "c4", "iq4_nl": "t4"}

KV_LAYOUTS: dict[str, Layout] = {kv_type: LAYOUTS[layout] for kv_type, layout in _KV.items()}
"""How keys or values can be kept, and what is stored of a number."""

KV_TYPES: dict[str, int] = {kv_type: layout.id for kv_type, layout in KV_LAYOUTS.items()}
"""The same, with the layout id by which the attention kernel knows it."""

KV_PAIRS: dict[str, tuple[str, str]] = {
    **{kv_type: (kv_type, kv_type) for kv_type in KV_TYPES},
    **{f"{keys}:{values}": (keys, values) for keys in KV_TYPES for values in KV_TYPES if keys != values},
}
"""Every ``kv_type`` of an engine: one type for both, or KEYS:VALUES; the types of keys and of values."""


@dataclass(frozen=True)
class Format:
    """A GGUF tensor format.

    Attributes:
        name: the name the field uses, e.g. "Q4_K".
        id: the kernels' number; its lower 16 bits are the number in GGUF files (`ggml_type`).
        block_len: elements in a block; a row is a whole number of blocks.
        block_bytes: bytes a block takes in the file.
        layout: name of the packed layout in `LAYOUTS`, or None where no kernel runs it.
        most: the largest magnitude that a block can hold when it is written.
    """

    name: str
    id: int
    block_len: int
    block_bytes: int
    layout: str | None = None
    most: float = 65504.0

    @property
    def file_id(self) -> int:
        """The number stored in GGUF files."""
        return self.id & 0xFFFF

    @property
    def bits_per_weight(self) -> float:
        """Bits one element takes in the file, scales included."""
        return 8.0 * self.block_bytes / self.block_len

    def nbytes(self, n_elements: int) -> int:
        """Bytes that ``n_elements`` (a multiple of ``block_len``) take in the file."""
        return n_elements // self.block_len * self.block_bytes


LARGEST = float.fromhex("0x1.fffffep+127")
"""The largest float32."""

VARIANT = 1 << 17
"""Added to the id of a format that has the number of another in files."""

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format("F32", 0, 1, 4, "f32"),
        Format("F16", 1, 1, 2, "f16"),
        Format("Q4_0", 2, 32, 18, "c4"),
        Format("Q4_1", 3, 32, 20, "m4"),
        Format("Q5_0", 6, 32, 22, "c5"),
        Format("Q5_1", 7, 32, 24, "m5"),
        Format("Q8_0", 8, 32, 34, "c8"),
        Format("Q8_1", 9, 32, 36, "c8"),
        Format("Q2_K", 10, 256, 84, "k2"),
        Format("Q3_K", 11, 256, 110, "k3"),
        Format("Q4_K", 12, 256, 144, "k4"),
        Format("Q5_K", 13, 256, 176, "k5"),
        Format("Q6_K", 14, 256, 210, "k6"),
        Format("Q8_K", 15, 256, 292, "s8"),
        Format("IQ2_XXS", 16, 256, 66, "g2"),
        Format("IQ2_XS", 17, 256, 74, "g2"),
        Format("IQ3_XXS", 18, 256, 98, "g3"),
        Format("IQ1_S", 19, 256, 50, "g1"),
        Format("IQ4_NL", 20, 32, 18, "t4"),
        Format("IQ3_S", 21, 256, 110, "g3s"),
        Format("IQ2_S", 22, 256, 82, "g2"),
        Format("IQ4_XS", 23, 256, 136, "kt"),
        Format("I8", 24, 1, 1),
        Format("I16", 25, 1, 2),
        Format("I32", 26, 1, 4),
        Format("I64", 27, 1, 8),
        Format("F64", 28, 1, 8),
        Format("IQ1_M", 29, 256, 56, "g1"),
        Format("BF16", 30, 1, 2, "bf16"),
        Format("TQ1_0", 34, 256, 54, "s2"),
        Format("TQ2_0", 35, 256, 66, "s2"),
        Format("MXFP4", 39, 32, 17, "e4"),
        Format("NVFP4", 40, 64, 36, "n4", most=2688.0),  # 6 times the largest scale
        Format("Q1_0", 41, 128, 18, "c1"),
        Format("Q2_0", 42, 64, 18, "c2"),
        Format("Q2_0_G128", VARIANT + 42, 128, 34, "c2"),
    )
}

WRITABLE: tuple[str, ...] = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
    "Q2_0", "Q2_0_G128", "NVFP4",
)  # fmt: skip
"""Formats that the quantizer can write."""

W8A8 = Format("W8A8", 1 << 16, 32, 128, "r8", most=LARGEST)
W8A8_128 = Format("W8A8_128", 1 << 18, 32, 128, "b8", most=LARGEST)

ROUNDED: dict[str, Format] = {"w8a8": W8A8, "w8a8-128": W8A8_128}
"""By ``compute``, rows of float32 that packing rounds to int8. Files do not have these formats."""

IN_MEMORY: dict[str, Format] = {**FORMATS, **{fmt.name: fmt for fmt in ROUNDED.values()}}
"""Formats that matrices in memory can have, packed."""

FORMAT_BY_ID: dict[int, Format] = {fmt.id: fmt for fmt in FORMATS.values()}

FLOATS = ("F32", "F16", "BF16")

PACKED_SUFFIX = ".packed"
"""Suffix of the names of files that hold the packed matrices of a model."""
