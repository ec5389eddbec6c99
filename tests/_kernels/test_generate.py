"""What the build writes for the kernels: from the tables, and as the tables are now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oxillama import _kernels
from oxillama._kernels import generate
from oxillama.base.formats import IN_MEMORY, LAYOUTS, Format, Layout

KERNELS = Path(_kernels.__file__).parent


def written(folder: Path, formats: dict[str, Format], layouts: dict[str, Layout]) -> dict[str, str]:
    """The files by name."""
    for name in ("packing", "linear"):
        (folder / name).mkdir(exist_ok=True)
    generate.write(folder, formats, layouts)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.px*")}


def test_the_kernels_were_built_from_the_tables_as_they_are(tmp_path: Path) -> None:
    for name, text in written(tmp_path, IN_MEMORY, LAYOUTS).items():
        assert (KERNELS / name).read_text() == text, f"{name} is out of date: build again"


def test_a_format_is_a_row_and_a_body(tmp_path: Path) -> None:
    files = written(tmp_path, {**IN_MEMORY, "X4": Format("X4", 99, 32, 18, "c4")}, LAYOUTS)
    assert "    X4 = 99\n" in files["packing/formats.pxd"]
    dispatch = files["packing/dispatch.pxd"]
    assert (
        "    elif format_id == X4:\n        block_pack(L_C4, 32, 18, unpack_x4, row, cols, out)\n" in dispatch
    )
    assert "block_dequantize(L_C4, 32, 18, unpack_x4, blocks, n, out)" in dispatch


def test_a_layout_is_a_row(tmp_path: Path) -> None:
    new = Layout("z3", 27, "q8_256", 3, subs=16, values=tuple(range(-8, 8)), unit=0.5)
    files = written(tmp_path, IN_MEMORY, {**LAYOUTS, "z3": new})
    facts = files["packing/formats.pxd"]
    assert "    L_Z3 = 27\n    N_LAYOUTS = 28\n" in facts
    assert f"OX_VALUES_Z3[16] = {{\n        {', '.join(str(56 + i) for i in range(16))}}};" in facts
    for function, value in (("unit_of", "0.5"), ("code_bits", "3"), ("has_subs_of_16", "True")):
        body = facts.partition(f" {function}(")[2].partition("cdef")[0]
        assert re.search(rf"\bL_Z3\)?:\n        return {value}\n", body), function
    assert "run_z3(T, job)" in files["linear/dispatch.pxi"]


@pytest.mark.parametrize("values", [(), tuple(range(16)), (-65, *range(15))])
def test_tables_of_7_bits_are_biased(values: tuple[int, ...]) -> None:
    assert generate.is_biased(Layout("z", 0, "q8_32", 4, values=values)) == (
        values != () and min(values) >= -64
    )


def test_files_that_do_not_change_keep_their_time(tmp_path: Path) -> None:
    written(tmp_path, IN_MEMORY, LAYOUTS)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.px*")}
    written(tmp_path, IN_MEMORY, LAYOUTS)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.px*")}
