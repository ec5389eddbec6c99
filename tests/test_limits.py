"""The page of limits: figures are constants of the files that it names, options have the defaults it gives.

The tests of each room show what happens beyond a limit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import oxillama
from oxillama.base.config import EngineConfig, GenerationOptions
from oxillama.base.config.server import ServerConfig
from tests.support.paths import ROOT

PAGE, PACKAGE = ROOT / "docs" / "limits.md", Path(oxillama.__file__).parent
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no documentation")
SCALES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6}
FIGURE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?:\^(\d+))?(?: (KiB|MiB|GiB|MB)\b)?")
IN_SCRIPT = re.compile(r"(?<!\w)(\d[\d_]*(?:\.\d+)?)(?: *(\*\*|<<) *(\d+))?")
FOLLOW: dict[str, set[float]] = {
    "work of one mask or token": {0.1},  # seconds, measured
    "name of a slot's file": {200, 9},  # a first character and 199 of a pattern
    "levels of lists and quotes": {38},  # two less than those of emphasis
    "rows of a batch job that run": {128},  # twice max_sequences
    "lines that run again": {32},  # the rows that run at a time over the blocks of an actor
}
"""By beginnings of rows: figures that follow from others, or that are no constants."""


def rows() -> Iterator[list[str]]:
    """The cells of each row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "what":
            yield cells


def value(digits: str) -> float:
    return float(digits.replace(",", "").replace("_", ""))


def figures(text: str) -> set[float]:
    """The numbers of a cell, in bytes where they have a unit of bytes."""
    text = re.sub("`[^`]*`", "", text)
    found = [(value(m[1]), int(m[2] or 1), SCALES.get(m[3], 1)) for m in FIGURE.finditer(text)]
    return {number**power * scale for number, power, scale in found}


def constants(path: Path) -> set[float]:
    """The numbers that stand in a source, also as products, powers and shifts of numbers."""
    text = path.read_text(encoding="utf-8")
    found: set[float] = set()
    if path.suffix != ".py":
        for m in IN_SCRIPT.finditer(text):
            number, n = value(m[1]), int(m[3] or 1)
            found.add(number * 2**n if m[2] == "<<" else number**n)
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Constant, ast.BinOp)):
            try:
                number = eval(compile(ast.Expression(node), path.name, "eval"), {"__builtins__": {}})
            except (NameError, TypeError, ValueError):
                continue
            if isinstance(number, (int, float)):
                found.add(float(number))
    return found


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0][:40])
def test_figures_are_those_of_the_files(row: list[str]) -> None:
    what, limit, where, _ = row
    files = [PACKAGE / name for name in re.findall(r"`([\w/]+\.\w+)`", where)]
    known = {number for path in files for number in constants(path)}
    follow: set[float] = next((numbers for name, numbers in FOLLOW.items() if what.startswith(name)), set())
    assert not files or figures(limit) - follow <= known


def test_options_have_the_defaults_of_the_page() -> None:
    options = {
        name: field.default
        for config in (ServerConfig, GenerationOptions, EngineConfig)
        for name, field in config.__dataclass_fields__.items()
    }
    n = 0
    for what, limit, where, _ in rows():
        if "run_tools" in what:  # which has a timeout of its own
            continue
        for name, default in re.findall(r"`(\w+)` \(([^)]*)\)", limit):
            if where == "option" and name in options and (numbers := figures(default)):
                assert numbers == {options[name]}, name
                n += 1
    assert n > 10
