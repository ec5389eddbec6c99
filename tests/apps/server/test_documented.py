"""docs/server*.md: their tables and figures are the server's, and they name all that it has."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields

import pytest

from oxillama.apps.server.options import HARMLESS, OF_THE_MODEL, OPTIONS, OTHER_NAMES, SEVERAL
from oxillama.apps.server.routes import ROUTES
from oxillama.base.config.server import ServerConfig
from tests.support.paths import DOCS, ROOT

PAGES = sorted(DOCS.glob("server*.md"))
TOOL = ROOT / "tools" / "make_fields.py"
pytestmark = pytest.mark.skipif(not PAGES, reason="an installed package has no documentation")
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def rows(head: str) -> list[list[str]]:
    """The cells of the table below a head, row by row."""
    _, _, rest = TEXT.partition(f"{head}\n|---")
    assert rest, head
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_paths() -> None:
    listed = set()
    for method, paths in re.findall(r"^\| `(GET|POST|HEAD|DELETE) (\S+`(?:, `\S+`)*)", TEXT, re.MULTILINE):
        listed |= {(method, path) for path in re.findall(r"[^`, ]+", paths)}
    assert listed == {(each.method, each.path.replace(":path", "")) for each in ROUTES}


def test_fields() -> None:
    for name in (*HARMLESS, *OTHER_NAMES):
        assert f"`{name}`" in TEXT, name


def test_options_of_the_server() -> None:
    special = {
        "api_keys": "--api-key", "admin_keys": "--admin-key", "cors_origins": "--cors-origin",
        "allowed_hosts": "--allowed-host", "page": "--no-page", "metrics": "--no-metrics",
        "slots": "--no-slots", "model_tags": "--tags", "pull_mmproj": "--no-pull-mmproj",
    }  # fmt: skip
    unsaid = {"port", "model_name"}
    for field in fields(ServerConfig):
        flag = special.get(field.name, "--" + field.name.replace("_", "-"))
        assert field.name in unsaid or flag in TEXT, flag


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
