"""Recorded results: every table is whole and on the page, and a report becomes a table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import DOCS

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

from benchmarks import results
from oxillama.apps.bench.machine import describe_machine
from oxillama.apps.bench.report import Metric, Row, report

SUBJECTS = sorted(path.stem for path in results.FOLDER.glob("*.json"))
PAGES = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_table_is_whole(subject: str) -> None:
    tables = results.read(subject)
    assert tables
    for table in tables:
        assert table["title"] and table["rows"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"])
        for row in table["rows"]:
            assert len(row) == len(table["columns"]), row
            for cell in row:
                assert isinstance(cell, str) or len(cell) == 3, cell
                if not isinstance(cell, str):
                    median, low, high = map(float, cell)
                    assert low <= median <= high, row


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_file_is_written_as_it_stands(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (results.FOLDER / f"{subject}.json").read_text(encoding="utf-8")
    tables = results.read(subject)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.write(subject, tables)
    assert (tmp_path / f"{subject}.json").read_text(encoding="utf-8") == text


def test_each_subject_is_shown_on_one_page() -> None:
    linked = [found[1] for text in PAGES.values() for found in results.LINK.finditer(text)]
    assert sorted(linked) == SUBJECTS
    assert sum(text.count("/results/") for text in PAGES.values()) == len(linked) + 1, (
        "the method names the folder"
    )


def test_the_site_shows_tables_in_the_place_of_links() -> None:
    text = PAGES[DOCS / "measuring.md"]
    drawn = results.drawn(text)
    assert not results.LINK.search(drawn)
    n_tables = sum(len(results.read(found[1])) for found in results.LINK.finditer(text))
    assert n_tables > 30
    assert len(re.findall(r"^\|---", drawn, re.M)) == n_tables + len(re.findall(r"^\|---", text, re.M))
    assert "| 1.1B Q4_0 | 284 | 125 | 2.25 [2.19 - 2.31] | 2.0 |" in drawn


def test_a_table_in_markdown() -> None:
    table = {
        "title": "T",
        "machine": "M.",
        "notes": None,
        "columns": ["a", "b"],
        "rows": [["x|y", ["1", "0.5", "2"]]],
    }
    shown = "**T**\n\nM.\n\n| a | b |\n|---|---|\n| x\\|y | 1 [0.5 - 2] |"
    assert results.markdown(table) == shown


def test_a_report_becomes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = Metric("decode", "tokens/s", True)
    measured = [Row("m.gguf", metric, {"oxillama": [10.0, 11.0, 12.0], "llama.cpp": [5.0, 5.5, 6.0]})]
    machine: dict[str, Any] = {**describe_machine(), "engines": {"oxillama": "1"}, "others_share": 0.0}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report("end-to-end", {"threads": 2}, machine, measured)), encoding="utf-8")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for title in ("first", "second"):
        assert results.main(["subject", str(path), title]) == 0
    first, second = results.read("subject")
    assert (first["title"], second["title"]) == ("first", "second")
    assert first["command"] == "python -m benchmarks end-to-end" and first["notes"] == "threads 2"
    assert first["columns"] == ["model", "metric", "oxillama", "llama.cpp", "oxillama / llama.cpp"]
    assert first["rows"] == [
        [
            "m.gguf",
            "decode, tokens/s",
            ["11.0", "10.5", "11.5"],
            ["5.50", "5.25", "5.75"],
            ["2.00", "2.00", "2.00"],
        ]
    ]
    assert results.main(["subject"]) == 2
    assert "usage" in capsys.readouterr().err
