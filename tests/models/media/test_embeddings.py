"""Embeddings of prompts with pictures: hidden states behind them, the same bits in any batch and chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.text.chat.prompt import chat_text
from tests.support.media import TEXT, WIDTH, opened, picture, prompt
from tests.support.tiny_file import write_tiny_model

MODES = ("last", "mean", "max", "cls")


@pytest.mark.parametrize("mode", MODES)
def test_in_any_batch_and_chunk(mode: str, kind: str, folder: Path, engine: InferenceEngine) -> None:
    prompts = [prompt(engine, 1), prompt(engine, 2), prompt(engine, 1, 2, text=f"{TEXT} <__media__> and")]
    wanted = [engine.embed(each, pooling=mode) for each in prompts]
    if mode != "cls":  # the first token sees no picture
        assert (wanted[0] != wanted[1]).any()
        assert (wanted[0] != wanted[2]).any()
    found = engine.embed_batch([*prompts, "a text beside them", prompts[0]], pooling=mode)
    for one, other in zip(found, [*wanted, engine.embed("a text beside them", pooling=mode), wanted[0]]):
        assert (one == other).all()
    with opened(folder, kind, prefill_chunk_size=5) as other_engine:
        again = other_engine.embed_batch([prompt(other_engine, 1), prompt(other_engine, 2)], pooling=mode)
        assert (again == np.stack(wanted[:2])).all()


def test_the_last_state_gives_the_logits(engine: InferenceEngine) -> None:
    """Which a session has behind the same prompt."""
    given = prompt(engine, 3)
    with engine.session() as session:
        logits = session.prefill(given)
    matrix = engine.model.file.data("output.weight").view(np.float32).reshape(-1, engine.model.spec.n_embd)
    np.testing.assert_allclose(matrix @ engine.embed(given, pooling="last"), logits, rtol=1e-3, atol=1e-4)


def test_tokens_behind_texts(folder: Path, tmp_path: Path) -> None:
    """A vocabulary that ends texts ends those with media, too, but no message that a template ends."""
    write_tiny_model(tmp_path / "text.gguf", n_embd=WIDTH, metadata={"tokenizer.ggml.add_eos_token": True})
    with InferenceEngine.from_gguf(
        tmp_path / "text.gguf", num_threads=1, mmproj=folder / "mlp" / "mmproj-F32.gguf"
    ) as engine:
        end = engine.tokenizer.eos_id
        plain = engine.tokenizer.encode("said")
        assert plain[-1] == end
        for text in ("<__media__> said", "said <__media__>"):
            given = prompt(engine, 1, text=text)
            assert given.tokens[-1] == end and given.tokens.count(end) == 1
            assert given.tokens[: len(plain) - 1] == plain[:-1] or text.startswith("<")
        part = {"type": "image", "image": picture()}
        messages, held = engine.model.feature("media").take([{"role": "user", "content": [part]}])
        rendered = chat_text(engine.tokenizer, messages)
        assert held.prompt(rendered).tokens[-1] != end
        assert held.prompt(rendered, closes=True).tokens == [*held.prompt(rendered).tokens, end]
        rendered = chat_text(engine.tokenizer, [{"role": "user", "content": "said"}])
        tokens = engine.tokenizer.encode_rendered(rendered)
        assert tokens[-1] != end
        assert engine.tokenizer.encode_rendered(rendered, closes=True) == [*tokens, end]


def test_lengths(engine: InferenceEngine) -> None:
    vector = engine.embed(prompt(engine, 1), pooling="mean", normalize=True)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
