"""Sessions with pictures go on with whole prompts: what both begin with is not run again, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.engine.features.media.prompt import MediaPrompt
from oxillama.models.media.encoder import MediaEncoder
from oxillama.sessions.going_on import go_on
from tests.support.media import TEXT, opened, picture, prompt

MORE = f"{TEXT} <__media__> and went"


def said(engine: InferenceEngine, session: Any, given: Any) -> tuple[np.ndarray, int]:
    """float32 (tokens, vocab), the logits of the text behind a whole prompt, and how many tokens it ran."""
    go_on(session, given)
    generation = session.stream(temperature=0, max_tokens=5, keep_logits=True)
    generation.result()
    return np.stack(generation.logits), len(given) - generation.usage.cached_tokens


def alone(engine: InferenceEngine, given: Any) -> np.ndarray:
    with engine.session() as session:
        return said(engine, session, given)[0]


def test_a_conversation_with_pictures(engine: InferenceEngine) -> None:
    """More text, another second picture, another first one, none, and a picture again."""
    steps = [
        (prompt(engine, *seeds, text=text), differs)
        for seeds, text, differs in (
            ((1,), TEXT, None),
            ((1, 2), MORE, None),
            ((1, 3), MORE, 1),
            ((4, 3), MORE, 0),
            ((), "the little fox said hello", None),
            ((1,), TEXT, None),
        )
    ]
    with engine.session() as session:
        for given, differs in steps:
            found, n_run = said(engine, session, given)
            assert (found == alone(engine, given)).all()
            if differs is not None:  # the first picture that the session does not have there
                assert len(given) - n_run == given.embeddings.spans[differs].start
        assert said(engine, session, steps[-1][0])[1] == 1
        assert engine.model.check_integrity() is None


def test_a_picture_at_the_end_is_run_as_a_whole(engine: InferenceEngine) -> None:
    """Its last row is wanted again, and rows that see each other run together."""
    whole = prompt(engine, 1)
    span = whole.embeddings.spans[0]
    given = MediaPrompt(whole.tokens[: span.end], whole.embeddings)
    with engine.session() as session:
        wanted, _ = said(engine, session, given)
        again, n_run = said(engine, session, given)
        assert (again == wanted).all()
        assert n_run == span.end - span.start


def test_a_restored_session_needs_no_encoder(
    kind: str, folder: Path, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings of a snapshot are those of its pictures in later prompts, if they are of the projector."""
    given = prompt(engine, 1, 2, text=MORE)
    with engine.session() as session:
        session.prefill(given)
        data = session.snapshot()
        wanted, _ = said(engine, session, given)
    encoded: list[Any] = []
    steps = MediaEncoder.steps
    monkeypatch.setattr(MediaEncoder, "steps", lambda *of: encoded.append(of) or steps(*of))  # type: ignore[func-returns-value]
    with opened(folder, kind) as other, other.restore(data) as session:
        media = other.model.feature("media")
        media.keep(session.embeddings)
        found, n_run = said(other, session, prompt(other, 1, 2, text=MORE))
        assert (found == wanted).all()
        assert n_run == 1
        assert encoded == []
        media.encode(picture(56, 28, 3))
        assert len(encoded) == 1
    with opened(folder, kind) as other, other.restore(data) as session:
        monkeypatch.setattr(MediaEncoder, "content", b"another")
        other.model.feature("media").keep(session.embeddings)
        prompt(other, 1)
        assert len(encoded) == 2
