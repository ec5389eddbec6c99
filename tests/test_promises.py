"""Pages that promise: each paragraph, list item and row of a table names the tests that show what it says.

`tests/promises/PAGE.toml` has the first words of each of them, in the order of the page, and the names of its
tests; none where it promises nothing. A promise that is added to a page fails here until a test shows it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDER = Path(__file__).parent / "promises"
PAGES = sorted(path.stem for path in FOLDER.glob("*.toml"))
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="an installed package has no documentation"
)


def blocks(page: str) -> Iterator[str]:
    """The paragraphs, list items and rows of a page, each in one line; without headings and code."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = line.startswith(("- ", "| ", "|-", "#", "!["))
        if lines and (begins or not line):
            yield " ".join(lines)
            lines = []
        if line and not line.startswith(("|-", "#", "![", "| | |", "| ![")):
            lines.append(line.strip())


def told(page: str) -> list[str]:
    """The blocks without the heads of tables, and without what marks a list item or a cell."""
    found = list(blocks(page))
    heads = {"| path | |", "| name | the library's name |", "| status | |", "| word | default | |"}
    heads |= {"| what | limit | where | beyond it |"}
    return [block.removeprefix("- ").removeprefix("| ") for block in found if block not in heads]


def promises(page: str) -> dict[str, list[str]]:
    return tomllib.loads((FOLDER / f"{page}.toml").read_text(encoding="utf-8"))


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the tests of a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_of_a_page_names_its_tests(page: str) -> None:
    given = list(promises(page))
    for block, words in zip(told(page), given):
        assert block.startswith(words)
    assert len(given) == len(told(page))


@pytest.mark.parametrize("page", PAGES)
def test_the_named_tests_are_there(page: str) -> None:
    names = [name for tests in promises(page).values() for name in tests]
    missing = [name for name in names if name.partition("::")[2] not in names_in(name.partition("::")[0])]
    assert not missing and len(names) > 50
