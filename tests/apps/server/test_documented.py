"""docs/server*.md: their tables and figures are the server's."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.app import create_app
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.options import OF_THE_MODEL, OPTIONS, OTHER_NAMES, SEVERAL
from oxillama.base.config.server import ServerConfig
from tests.support.paths import DOCS, ROOT

PAGE = DOCS / "server.md"
PAGES = sorted(DOCS.glob("server*.md"))
TOOL = ROOT / "tools" / "make_fields.py"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no documentation")
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
HERE = "/page/{version}/{file}"


def rows(head: str) -> list[list[str]]:
    """The cells of the table below a head, row by row."""
    _, _, rest = TEXT.partition(f"{head}\n|---")
    assert rest, head
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_paths_are_those_of_the_server() -> None:
    told = set()
    tables = TEXT.split("| path | |\n")[1:]
    assert len(tables) == 2
    for line in (line for part in tables for line in part.partition("\n\n")[0].splitlines()[1:]):
        method, _, path = names(line.partition(" | ")[0])[0].partition(" ")
        paths = [path, *names(line.partition(" | ")[0])[1:]]
        told |= {(method, path) for path in paths}
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        app = create_app(Models([Hosted("a", engine)], ServerConfig()), ServerConfig())
        here = {
            (method, HERE if path.startswith("/page/{version}") else path.replace(":path}", "}"))
            for path, methods in ((route.path, route.methods) for route in app.routes)  # type: ignore[attr-defined]
            for method in methods - ({"HEAD"} if path != "/" else set())
        }
    assert told == here


def test_other_names_of_options_are_those_of_the_table() -> None:
    known = {*OPTIONS, *SEVERAL, *OF_THE_MODEL}
    table = rows("| name | the library's name |")
    assert {name for row in table for name in names(row[0])} <= known
    assert {*OTHER_NAMES} - {*OF_THE_MODEL} <= {name for row in table for name in names(row[0])}
    for others, own, *_ in table:
        targets = [name for name in names(own) if name in OPTIONS]
        for i, name in enumerate(names(others)):
            if name in OTHER_NAMES:
                assert OTHER_NAMES[name] == (targets[i] if len(targets) == len(names(others)) else targets[0])


def test_the_page_of_fields_is_that_of_the_tables() -> None:
    spec = importlib.util.spec_from_file_location("make_fields", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert not tool.stale(), "run tools/make_fields.py"


def test_the_defaults_are_those_of_the_options() -> None:
    defaults = {field.name: field.default for field in fields(ServerConfig)}
    given = re.findall(r"`--([a-z-]+)` \(([\d,]+)\)", TEXT)
    assert len(given) > 4
    for flag, value in given:
        assert defaults[flag.replace("-", "_")] == float(value.replace(",", "")), flag
