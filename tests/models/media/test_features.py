"""Features of requests with pictures in their prompts: the same bits as without, or as one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.gguf.model_file import ModelFile
from tests.support.adapters import adapter_of
from tests.support.media import bits, logits_of, opened, picture, prompt, started
from tests.support.serving import AsManyAsMayBe, Guesses, use_drafter
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import Running
from tests.support.waiting import stopped

CLOSED = {"type": "object", "additionalProperties": False}
LONG = 40
N_VOCAB = 330
"""Ids that a drafter guesses; the model has a few more."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model that guesses, and takes no pictures."""
    return write_tiny_model(tmp_path_factory.mktemp("draft") / "draft.gguf", ends=False)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """An adapter of every matrix of the text model."""
    path = tmp_path_factory.mktemp("lora") / "lora.gguf"
    data = (folder / "text.gguf").read_bytes()
    path.write_bytes(adapter_of(ModelFile.open(data), Running(data).model, 2, 0))
    return path


def test_drafts(kind: str, folder: Path) -> None:
    """Drafted tokens behind a picture, right and wrong ones, change no bit."""
    with opened(folder, kind) as engine:
        use_drafter(engine.model, AsManyAsMayBe())
        given = prompt(engine, 1)
        alone = started(engine, given, max_tokens=LONG)
        tokens = alone.result().tokens
        guesses = Guesses(given.tokens, tokens, 0.8, N_VOCAB)
        engine.model.feature("drafters").loaded["guesses"] = guesses
        stream = started(engine, given, speculate="guesses", max_tokens=LONG)
        done = stream.result()
        assert done.tokens == tokens
        assert done.speculation is not None
        assert done.speculation.accepted > 0
        assert done.speculation.drafted > done.speculation.accepted
        assert (logits_of(stream) == logits_of(alone)).all()
        assert engine.model.check_integrity() is None


@pytest.mark.parametrize("way", ["lookup", "draft"])
def test_drafts_of_texts_and_of_another_model(way: str, engine: InferenceEngine, draft: Path) -> None:
    """A model that drafts takes no pictures; it is not asked about their rows."""
    wanted = bits(engine, prompt(engine, 1), max_tokens=LONG)
    speculate = draft if way == "draft" else way
    assert (bits(engine, prompt(engine, 1), max_tokens=LONG, speculate=speculate) == wanted).all()


@pytest.mark.parametrize(
    "rule",
    [
        {"choices": ("a cat", "a camel")},
        {"regex": "(the|a) (fox|cat) [0-9]{3}"},
        {"json_schema": {"properties": {"n": {"type": "boolean"}}, **CLOSED, "required": ["n"]}},
        {"grammar": 'root ::= "yes" | "no"'},
    ],
)
def test_structured_output(rule: dict[str, Any], engine: InferenceEngine) -> None:
    """The rule holds, and drafts, tokens that follow at once and a snapshot change no bit of a text."""
    given, options = prompt(engine, 1), {"max_tokens": 40, **rule}
    text = engine.generate(given, temperature=0, **options)
    kept = {"temperature": 0, "keep_logits": True, **options}
    streams = [engine.stream(given, **kept) for _ in range(2)]
    assert [stream.result().text for stream in streams] == [text, text]
    assert engine.generate(given, temperature=0, speculate="lookup", **options) == text
    if "choices" in rule:
        assert text in rule["choices"]
    elif "json_schema" in rule:
        assert list(json.loads(text)) == ["n"]
    elif "grammar" in rule:
        assert text in ("yes", "no")
    else:
        assert text[-3:].isdigit()


def test_adapters(kind: str, folder: Path, engine: InferenceEngine, lora: Path) -> None:
    """Adapters change the rows after a picture; prompts with different adapters share no pages."""
    plain = bits(engine, prompt(engine, 1))
    wanted = bits(engine, prompt(engine, 1), adapters=(lora, 2.0))
    assert (plain != wanted).any()
    assert (bits(engine, prompt(engine, 1), adapters=(lora, 2.0)) == wanted).all()  # cached
    assert (bits(engine, prompt(engine, 1)) == plain).all()
    slight = bits(engine, prompt(engine, 1), adapters=(lora, 1e-6))  # its rows are those of the picture, too
    np.testing.assert_allclose(slight[0], plain[0], atol=1e-2)
    with opened(folder, kind, adapters=(lora, 2.0), prefill_chunk_size=5) as other:
        assert (bits(other, prompt(other, 1)) == wanted).all()


def test_adapters_beside_each_other(kind: str, folder: Path, engine: InferenceEngine, lora: Path) -> None:
    """The engine has nothing cached, so the rows of pictures run in one pass."""
    stacks: list[Any] = [(), (lora, 2.0), (lora, 0.5), ()]
    wanted = [bits(engine, prompt(engine, 2), adapters=stack) for stack in stacks]
    with opened(folder, kind) as other:
        given = prompt(other, 2)
        with stopped(other):
            streams = [started(other, given, adapters=stack) for stack in stacks]
        for stream, rows in zip(streams, wanted, strict=True):
            assert (logits_of(stream) == rows).all()


def test_forks(engine: InferenceEngine) -> None:
    """Forks of a session behind a picture go their own ways, with the bits of whole prompts."""
    one = prompt(engine, 3, text="the <__media__> fox")
    other = engine.model.feature("media").prompt("<__media__> said", [picture(56, 28, 4)])
    with engine.session() as session:
        session.prefill(one)
        with session.fork() as fork:
            rows = fork.logits(other)
            tokens = fork.tokens
            with pytest.raises(ConfigError, match="the ends of a medium"):
                fork.rewind(one.embeddings.spans[0].start + 1)
        more = session.logits([5, 6, 7])
    with engine.session() as session:
        session.prefill(one)
        assert (session.logits(other) == rows).all()
        assert session.tokens == tokens
    with engine.session() as session:
        session.prefill(one)
        assert (session.logits([5, 6, 7]) == more).all()


def test_all_at_once(folder: Path, lora: Path) -> None:
    """Drafts, a rule and an adapter of one request with a picture, beside others."""
    with opened(folder, "gemma3", prefill_chunk_size=7) as engine:
        options: dict[str, Any] = {"regex": "(ab|ba){6}", "adapters": (lora, 2.0), "max_tokens": 30}
        wanted = engine.generate(prompt(engine, 1), temperature=0, **options)
        given = [prompt(engine, 1), prompt(engine, 2), "once upon a time"]
        streams = [engine.stream(each, temperature=0, speculate="lookup", **options) for each in given]
        assert streams[0].result().text == wanted
        assert len(wanted) == 12
        for stream in streams[1:]:
            stream.result()
        assert engine.model.check_integrity() is None
