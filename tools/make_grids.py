"""Writes oxillama/_kernels/packing/grids.bin: the grids of the IQ1, IQ2 and IQ3 formats.

A grid is a list of short rows of codes; a block refers to rows by their numbers. The grids are constants of
the formats (ggml-common.h, https://github.com/ggml-org/ggml); the `gguf` package publishes them as
hexadecimal digits. The file holds the grids one after another, lowest bits first:

    IQ2_XXS 256, IQ2_XS 512, IQ2_S 1024 rows of 8 codes of 2 bits: the magnitudes 8, 25, 43
    IQ1_S 2048 (and IQ1_M) rows of 8 codes of 2 bits: -1, 0, 1
    IQ3_XXS 256, IQ3_S 512 rows of 4 codes of 4 bits: the 8 magnitudes, in order
"""

from __future__ import annotations

from pathlib import Path

from gguf import quants

OUT = Path(__file__).parents[1] / "oxillama" / "_kernels" / "packing" / "grids.bin"
GRIDS = (quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ1_S, quants.IQ3_XXS, quants.IQ3_S)


def grid_bytes() -> bytes:
    """The contents of the file."""
    return b"".join(bytes.fromhex(grid.grid_hex.decode()) for grid in GRIDS)


if __name__ == "__main__":
    OUT.write_bytes(grid_bytes())
