"""The block formats of GGUF tensors, and how the kernels hold them. One table, many readers.

`setup.py`, the loader, the kernels, the tests, the benchmarks and the documentation iterate over
`FORMATS`; adding a row creates its tests. Ids and block sizes are those of the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) as the `gguf` package publishes them.

A tensor is held in memory in a *packed layout*: panels of 16 rows, interleaved so that lane r of a
vector belongs to row r. A layout fixes the width of a code and the shape of its scales; several
formats share one. A format whose ``layout`` is None can be listed and sized but not run yet.
"""

from __future__ import annotations

from dataclasses import dataclass

PANEL_ROWS = 16
"""Rows in a packed panel: the lanes of the logical vector (see docs/architecture.md)."""


@dataclass(frozen=True)
class Layout:
    """How packed panels of a format look, and which activations they are multiplied with.

    Attributes
    ----------
    name, id : the name, and the number the kernels know it by.
    activation : "f32", "q8_32" (int8, one f32 scale per 32 values) or
        "q8_256" (int8, one f32 scale per 256 values).
    """

    name: str
    id: int
    activation: str


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("f32", 0, "f32"),  # 32-bit floats
        Layout("f16", 1, "f32"),  # IEEE half floats
        Layout("bf16", 2, "f32"),  # the upper halves of 32-bit floats
        Layout("c8", 3, "q8_32"),  # blocks of 32: 8-bit codes, f16 scale
        Layout("c4", 4, "q8_32"),  # 4-bit codes
        Layout("c5", 5, "q8_32"),  # 5-bit codes
        Layout("c1", 6, "q8_32"),  # 1-bit codes
        Layout("t4", 7, "q8_32"),  # 4-bit codes into a table of 16 values
        Layout("e4", 8, "q8_32"),  # the same, another table, bf16 scale
        Layout("m4", 9, "q8_32"),  # 4-bit codes, f16 scale and minimum
        Layout("m5", 10, "q8_32"),  # 5-bit codes, f16 scale and minimum
        Layout("k2", 11, "q8_256"),  # blocks of 256: 2-bit codes, scale and minimum per 16
        Layout("k4", 12, "q8_256"),  # 4-bit codes, scale and minimum per 32
        Layout("k5", 13, "q8_256"),  # 5-bit codes, scale and minimum per 32
        Layout("k3", 14, "q8_256"),  # 3-bit codes, scale per 16
        Layout("k6", 15, "q8_256"),  # 6-bit codes, scale per 16
        Layout("kt", 16, "q8_256"),  # 4-bit codes into a table of 16 values, scale per 32
        Layout("g1", 17, "q8_256"),  # 3-bit codes into a table, scale per 16
        Layout("g2", 18, "q8_256"),  # the same, another table
        Layout("g3", 19, "q8_256"),  # 4-bit codes into a table, scale per 32
        Layout("g3s", 20, "q8_256"),  # the same, another table
        Layout("s2", 21, "q8_256"),  # 2-bit codes, f16 scale
        Layout("s8", 22, "q8_256"),  # 8-bit codes, f32 scale
    )
}


KV_TYPES: dict[str, int] = {
    kv_type: LAYOUTS[layout].id
    for kv_type, layout in (("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("q8_0", "c8"))
}
"""How keys and values can be kept, and the layout id by which the attention kernel knows it."""


@dataclass(frozen=True)
class Format:
    """One GGUF tensor format.

    Attributes
    ----------
    name : the name the field uses, e.g. "Q4_K".
    id : the number stored in GGUF files (`ggml_type`).
    block_len : elements in a block; a row is a whole number of blocks.
    block_bytes : bytes a block takes in the file.
    layout : name of the packed layout in `LAYOUTS`, or None where no kernel runs it.
    """

    name: str
    id: int
    block_len: int
    block_bytes: int
    layout: str | None = None

    @property
    def bits_per_weight(self) -> float:
        """Bits one element takes in the file, scales included."""
        return 8.0 * self.block_bytes / self.block_len

    def nbytes(self, n_elements: int) -> int:
        """Bytes that ``n_elements`` (a multiple of ``block_len``) take in the file."""
        return n_elements // self.block_len * self.block_bytes


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
        Format("NVFP4", 40, 64, 36),
        Format("Q1_0", 41, 128, 18, "c1"),
    )
}

WRITABLE: tuple[str, ...] = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
"""Formats that the quantizer can write."""

FORMAT_BY_ID: dict[int, Format] = {fmt.id: fmt for fmt in FORMATS.values()}
