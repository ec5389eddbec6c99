"""The pages about the server name every path, every field that has no effect, and every option."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from oxillama.apps.server.options import HARMLESS, OTHER_NAMES
from oxillama.apps.server.routes import ROUTES
from oxillama.base.config.server import ServerConfig
from tests.support.paths import DOCS

PAGES = sorted(DOCS.glob("server*.md"))
if not PAGES:
    pytest.skip("only the package was unpacked", allow_module_level=True)
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


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
