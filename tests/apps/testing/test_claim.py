"""``oxillama fingerprint --check``: the bits of small models beside a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oxillama.apps.cli import main
from oxillama.apps.testing import claim
from oxillama.base.contract import CONTRACT

FEW = ("the draft model", "llama, Q4_K, keys and values in q8_0", "llama of experts, Q3_K")


def test_the_table_has_each_model_once_and_each_its_own_bits() -> None:
    table = json.loads(claim.TABLE.read_text(encoding="utf-8"))
    assert list(table["logits"]) == claim.names() and len(claim.SHAPES) == 11
    assert len(set(table["logits"].values())) == len(claim.names())
    assert table["contract"] == CONTRACT, "python -m oxillama.apps.testing.claim writes it anew"


def test_this_machine_has_the_bits_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claim, "names", lambda: list(FEW))
    assert main(["fingerprint", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("  equal") for line in lines[:3]] == [True] * 3
    assert lines[3].startswith("3 of 3 models have the bits of the table (")


@pytest.mark.slow
def test_this_machine_has_the_bits_of_the_whole_table() -> None:
    assert all(set(found) == {expected} for _, expected, found in claim.checked(claim.names()))


def test_other_bits_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = json.loads(claim.TABLE.read_text(encoding="utf-8"))
    table["logits"]["llama, F32"] = "0" * 64
    monkeypatch.setattr(claim, "TABLE", tmp_path / "table.json")
    claim.TABLE.write_text(json.dumps(table))
    monkeypatch.setattr(claim, "names", lambda: ["llama, F32"])
    assert main(["fingerprint", "--check"]) == 1
    out = capsys.readouterr().out
    assert "OTHER: expected 0000000000000000, got " in out and "0 of 1 models" in out


def test_a_check_takes_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    for rest in (["model.gguf", "--check"], ["--check", "--threads", "1"], []):
        assert main(["fingerprint", *rest]) == 2
    assert capsys.readouterr().err.count("expected no other argument") == 2
