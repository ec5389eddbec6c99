"""Messages of errors: short, whatever a file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxillama import errors
from oxillama.apps import cli
from oxillama.errors import MOST_CHARACTERS, OxiLlamaError, in_short
from tests.support.tiny_file import write_tiny_model

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OxiLlamaError)]
LONG = "x" * (MOST_CHARACTERS + 50)


@pytest.mark.parametrize("text", ["", "a", LONG[: MOST_CHARACTERS - 1], LONG[:MOST_CHARACTERS]])
def test_a_short_text_stays(text: str) -> None:
    assert in_short(text) == text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not errors.PositionBeyondEnd])
def test_a_long_message_is_cut(kind: type[OxiLlamaError]) -> None:
    more = (LONG,) if kind is errors.ModelFingerprintMismatch else ()
    text = str(kind(f"begins {LONG} ends", *more))
    assert len(text) < MOST_CHARACTERS + 100 and "characters left out) ... " in text


def test_a_long_text_of_a_file_is_shown_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", metadata={"llama.rope.scaling.type": LONG * 100})
    assert cli.main(["info", str(model)]) == 1
    shown = capsys.readouterr()
    assert len(shown.out) < 3 * MOST_CHARACTERS and len(shown.err) < 2 * MOST_CHARACTERS
    assert "llama.rope.scaling.type: expected one of " in shown.err
