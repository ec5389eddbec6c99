"""The page about others' tests gives each reason for which a test of llama-server's is expected to fail."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.paths import DOCS

PAGE, LIST = DOCS / "server-suite.md", DOCS.parent / "tools" / "server_suite" / "changes.toml"
if not PAGE.is_file() or not LIST.is_file():
    pytest.skip("only the package was unpacked", allow_module_level=True)
CHANGES = tomllib.loads(LIST.read_text(encoding="utf-8"))


def test_each_reason_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for entry in (*CHANGES["deviation"], *CHANGES.get("left_out", [])):
        assert f"| {entry['why']} |" in text, entry["why"]
        for test in entry["tests"]:
            assert f"`{test.partition('::')[2].partition('[')[0]}`" in text, test
