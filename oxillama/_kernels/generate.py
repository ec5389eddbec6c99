"""Writes the Cython files that depend on the tables of `oxillama.base.formats`. Run by setup.py.

Three files, which are not under version control:

- ``packing/formats.pxd``: ids and sizes of the formats, ids and properties of the layouts.
- ``packing/dispatch.pxd``: a branch for each format that calls the ``unpack_...`` function of ``unpack.pxd``.
- ``linear/dispatch.pxi``: a function for each layout.

The branches pass constants, so that the compiler specializes a function body for each format or layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

HEADER = '"""{} Written by generate.py from the tables of formats.py."""\n'
BIAS = 64  # added to tables whose values lie in -64..63: codes of 7 bits multiply faster


def enum(comment: str, ids: Mapping[str, int]) -> str:
    """A ``cdef enum`` of names and numbers."""
    return "\n".join([f"cdef enum:  # {comment}", *(f"    {name} = {n}" for name, n in ids.items()), ""])


def answers(head: str, doc: str, key: str, values: Mapping[str, Any], default: Any) -> str:
    """An inline function from an id to a value; ids whose value is the default get no branch."""
    of: dict[Any, list[str]] = {}
    for name, value in values.items():
        if value != default:
            of.setdefault(value, []).append(name)
    lines = [f"cdef inline {head}(const int {key}) noexcept nogil:", f'    """{doc}"""']
    for value, names in of.items():
        ids = ", ".join(names)
        test = f"{key} in ({ids})" if len(names) > 1 else f"{key} == {ids}"
        indent = " " * len(f"    if {key} in (")
        lines += [*wrap(f"    if {test}:", 110, subsequent_indent=indent), f"        return {value}"]
    return "\n".join([*lines, f"    return {default}", ""])


def branches(head: str, doc: str, key: str, calls: Iterable[tuple[str, str]]) -> str:
    """An inline function that makes one of the calls (name of an id, call)."""
    lines = [head, f'    """{doc}"""']
    for i, (name, call) in enumerate(calls):
        lines += [f"    {'el' if i else ''}if {key} == {name}:", f"        {call}"]
    return "\n".join([*lines, ""])


def is_biased(layout: Any) -> bool:
    """Whether a layout's table is stored with ``BIAS`` added to its values."""
    return bool(layout.values) and all(-BIAS <= v < BIAS for v in layout.values)


def has_halves(layout: Any) -> bool:
    """Whether a layout has a scale for each half of a block of 32, and no scale for the block."""
    return bool(layout.subs == 16 and layout.block_len == 32)


def value_tables(layouts: Iterable[Any]) -> str:
    """The tables that codes are looked up in, as C arrays."""
    tables = []
    for layout in layouts:
        values = ", ".join(str(v + BIAS if is_biased(layout) else v) for v in layout.values)
        tables += [
            f"    static const signed char OX_VALUES_{layout.name.upper()}[16] = {{",
            f"        {values}}};",
        ]
    names = [f'    const int8_t* VALUES_{i.name.upper()} "OX_VALUES_{i.name.upper()}"' for i in layouts]
    return "\n".join(["cdef extern from *:", '    """', *tables, '    """', *names, ""])


def formats_pxd(formats: Mapping[str, Any], layouts: Mapping[str, Any]) -> str:
    """``packing/formats.pxd``."""
    rows = [f for f in formats.values() if f.layout]

    def fact(head: str, doc: str, of: Callable[[Any], Any], default: Any) -> str:
        return answers(head, doc, "layout", {f"L_{x.name.upper()}": of(x) for x in layouts.values()}, default)

    def size(head: str, doc: str, of: Callable[[Any], Any]) -> str:
        return answers(head, doc, "format_id", {f.name: of(f) for f in rows}, 0)

    excess = {x.name: BIAS if is_biased(x) else x.excess for x in layouts.values()}
    return "\n\n".join(
        [
            HEADER.format("Formats and layouts."),
            "from libc.stdint cimport int8_t\n",
            enum("format ids, as stored in GGUF files", {f.name: f.id for f in rows}),
            enum("layout ids", {f"L_{x.name.upper()}": x.id for x in layouts.values()})
            + f"    N_LAYOUTS = {len(layouts)}\n",
            value_tables([x for x in layouts.values() if x.values]),
            size("int format_block_len", "Elements of a block in a file.", lambda f: f.block_len),
            size("int format_block_bytes", "Bytes of a block in a file.", lambda f: f.block_bytes),
            fact(
                "int form_of",
                "Columns per activation scale: 0 for floats, 32 or 256.",
                lambda x: 0 if x.block_len == 1 else x.block_len,
                0,
            ),
            fact("int code_bits", "Bits of a code; 0 for floats.", lambda x: x.bits, 0),
            fact(
                "int unpacked_from",
                "Full tiles of tokens from which on the first one unpacks the codes for all; 0: never.",
                lambda x: x.unpacked_from,
                0,
            ),
            fact(
                "bint is_measured",
                "`unpacked_from` holds on machines where `tuning` finds unpacked codes faster.",
                lambda x: x.bits == 4 and x.subs > 0 and (not x.values or is_biased(x)),
                False,
            ),
            fact(
                "int scale_bytes",
                "Bytes of a scale of a block, of a scale of half a block, or of a float.",
                lambda x: 4 if x.scale == "f32" else 2,
                2,
            ),
            fact(
                "bint is_bf16",
                "A block's scale, or a float, is a bf16.",
                lambda x: x.scale == "bf16",
                False,
            ),
            fact(
                "const int8_t* table_of",
                "The 16 values of codes, with 64 added if biased; NULL: codes are values.",
                lambda x: f"VALUES_{x.name.upper()}" if x.values else "NULL",
                "NULL",
            ),
            fact("bint has_biased_table", "The table's values have 64 added.", is_biased, False),
            fact(
                "bint has_signed_codes",
                "Codes, or the table's values, are signed bytes.",
                lambda x: x.bits == 8 or (bool(x.values) and not is_biased(x)),
                False,
            ),
            fact(
                "int code_excess",
                "The constant added to codes, or to the table's values: value = code - excess.",
                lambda x: excess[x.name],
                0,
            ),
            fact(
                "float unit_of",
                "Power of two by which a block's scale is multiplied.",
                lambda x: x.unit,
                1.0,
            ),
            fact(
                "bint is_row",
                "Rows of bytes that packing rounds, with the sums of the codes beside the scales.",
                lambda x: x.span > 0,
                False,
            ),
            fact("int span_of", "The most columns of such a row with one scale.", lambda x: x.span, 0),
            fact(
                "bint is_pairs",
                "Floats that are multiplied in pairs of columns, with activations rounded to bf16.",
                lambda x: x.activation == "bf16",
                False,
            ),
            fact("bint has_minima", "A block has a minimum.", lambda x: x.minima, False),
            fact(
                "bint has_halves",
                "Each half of a block of 32 has a scale of one byte, and the block has none.",
                has_halves,
                False,
            ),
            fact(
                "bint has_subs",
                "Sub-blocks have integer scales.",
                lambda x: x.subs > 0 and not has_halves(x),
                False,
            ),
            fact(
                "bint has_subs_of_16",
                "Sub-blocks with integer scales have 16 columns.",
                lambda x: x.subs == 16 and not has_halves(x),
                False,
            ),
        ]
    )


def packing_dispatch(formats: Mapping[str, Any], layouts: Mapping[str, Any]) -> str:
    """``packing/dispatch.pxd``."""
    rows = [f for f in formats.values() if f.layout]
    floats = [f for f in rows if layouts[f.layout].bits == 0]
    wholes = [f for f in rows if layouts[f.layout].span]
    bodies = [f for f in rows if f not in floats and f not in wholes]

    def calls(verb: str, arguments: str) -> list[tuple[str, str]]:
        return [(f.name, f"float_{verb}(L_{f.layout.upper()}, {arguments})") for f in floats] + [
            (
                f.name,
                f"block_{verb}(L_{f.layout.upper()}, {f.block_len}, {f.block_bytes}, "
                f"unpack_{f.name.lower()}, {arguments})",
            )
            for f in bodies
        ]

    names = "".join(f"    unpack_{f.name.lower()},\n" for f in bodies)
    return "\n\n".join(
        [
            HEADER.format("A branch for each format."),
            "from libc.stdint cimport uint8_t\n\n"
            "from oxillama._kernels.packing.blocks cimport (\n"
            "    block_dequantize, block_pack, float_dequantize, float_pack, row_pack)\n"
            "from oxillama._kernels.packing.formats cimport *\n"
            f"from oxillama._kernels.packing.unpack cimport (\n{names})\n",
            branches(
                "cdef inline void dequantize_blocks(int format_id, const uint8_t* blocks, Py_ssize_t n,\n"
                "                                   float* out) noexcept nogil:",
                "n blocks as floats.",
                "format_id",
                calls("dequantize", "blocks, n, out"),
            ),
            branches(
                "cdef inline void pack_rows(int format_id, const uint8_t** row, Py_ssize_t cols, "
                "uint8_t* out) noexcept nogil:",
                "16 rows (those past the end are zeros) as one panel.",
                "format_id",
                calls("pack", "row, cols, out")
                + [(f.name, f"row_pack(L_{f.layout.upper()}, row, cols, out)") for f in wholes],
            ),
        ]
    )


def linear_dispatch(layouts: Mapping[str, Any]) -> str:
    """``linear/dispatch.pxi``. A function for each layout, another for its unpacked codes, one for AMX: gcc's
    time grows with the square of a function's size, and a large one keeps sums in memory."""
    kinds = {1: "float", 32: "block", 256: "super"}
    calls = {
        x: f"{'row' if layout.span else kinds[layout.block_len]}_layout(L_{x.upper()}, "
        for x, layout in layouts.items()
    }
    bodies = [
        f"cdef void run_{x}(int T, const Job* job) noexcept nogil:\n    {call}T, job)\n"
        for x, call in calls.items()
    ]
    unpacked = {x: layout for x, layout in layouts.items() if layout.unpacked_from}
    bodies += [
        f"cdef void run_{x}_unpacked(const Job* job) noexcept nogil:\n"
        f"    {kinds[layout.block_len]}_tiles(L_{x.upper()}, True, OX_TILE, job)\n"
        for x, layout in unpacked.items()
    ]
    amx = {
        x: "row_tiles" if layout.span else "super_tile" if layout.block_len == 256 else "block_tile"
        for x, layout in layouts.items()
        if layout.span or (layout.bits and (layout.subs > 0) == (layout.block_len == 256))
    }
    bodies += [
        f"cdef void run_{x}_amx(bint two, const Job* job) noexcept nogil:\n"
        f"    if OX_AMX and two:\n        amx_{kind}(L_{x.upper()}, 1, job)\n"
        f"    elif OX_AMX:\n        amx_{kind}(L_{x.upper()}, 0, job)\n"
        for x, kind in amx.items()
    ]
    return "\n\n".join(
        [
            HEADER.format("A function for each layout.").replace('"""', "# ", 1).replace('"""', ""),
            "from oxillama._kernels.linear.amx_tiles cimport amx_block_tile, amx_row_tiles, amx_super_tile\n"
            "from oxillama._kernels.linear.tiles cimport (\n"
            "    block_layout, block_tiles, float_layout, row_layout, super_layout, super_tiles)\n",
            *bodies,
            branches(
                "cdef void run_unpacked(int layout, const Job* job) noexcept nogil:",
                "Some panels of a matrix, unpacked, times a full tile of tokens.",
                "layout",
                ((f"L_{x.upper()}", f"run_{x}_unpacked(job)") for x in unpacked),
            ),
            branches(
                "cdef void run_amx(int layout, bint two, const Job* job) noexcept nogil:",
                "Some panels of a matrix times 16 tokens, or 32, in the tile registers of AMX.",
                "layout",
                ((f"L_{x.upper()}", f"run_{x}_amx(two, job)") for x in amx),
            ),
            branches(
                "cdef void run_job(int layout, int T, const Job* job) noexcept nogil:",
                "Some panels of a matrix times a tile of T tokens.",
                "layout",
                ((f"L_{x.upper()}", f"run_{x}(T, job)") for x in layouts),
            ),
        ]
    )


def write(kernels: Path, formats: Mapping[str, Any], layouts: Mapping[str, Any]) -> None:
    """Writes the files below the folder of the kernels; leaves a file alone whose text would not change."""
    for name, text in (
        ("packing/formats.pxd", formats_pxd(formats, layouts)),
        ("packing/dispatch.pxd", packing_dispatch(formats, layouts)),
        ("linear/dispatch.pxi", linear_dispatch(layouts)),
    ):
        path = kernels / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
