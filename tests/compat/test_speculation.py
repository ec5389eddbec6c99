"""Names of the reference: two engines' options, and going back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oxillama import (
    ConfigError,
    EngineClosed,
    EngineConfig,
    ModelFileError,
    PositionBeyondEnd,
    Rewindable,
    RewindError,
    RewindNotSupported,
    SamplerConfig,
    SpeculativeConfig,
    SpeculativeDeltaSync,
    SpeculativeEngine,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from tests.support.kernels import same_bits
from tests.support.random_use import new_engine
from tests.support.serving import AsManyAsMayBe, use_drafter
from tests.support.tiny_file import write_tiny_model

PROMPT = demo.PROMPTS[0]
TARGET, DRAFT = (EngineConfig(model_path=path, num_threads=1) for path in (demo.STORY, demo.DRAFT))


# --- SpeculativeEngine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_the_target_in_fewer_steps(temperature: float) -> None:
    sampler = SamplerConfig(temperature=temperature)
    config = EngineConfig(model_path=demo.STORY, num_threads=1, sampler=sampler)
    with InferenceEngine(EngineConfig(model_path=demo.STORY, sampler=sampler, seed=5)) as plain:
        expected = plain.stream(PROMPT, max_tokens=50).result()
    pieces: list[str] = []
    with SpeculativeEngine(SpeculativeConfig(config, DRAFT, num_speculative=6, seed=5)) as engine:
        use_drafter(engine.target.model, AsManyAsMayBe())
        assert engine.generate(PROMPT, 50, pieces.append) == expected.text == "".join(pieces)
        assert len(pieces) > 10
        assert engine.generate(PROMPT, max_tokens=50) == expected.text
        metrics = engine.target.metrics
        assert metrics.drafted_tokens > metrics.accepted_tokens > 0
        assert metrics.steps < 2 * len(expected.tokens)
        engine.target.check_integrity()
        assert engine._draft.pool.n_used == 0
    with pytest.raises(EngineClosed):
        engine.generate(PROMPT)


def test_options_of_the_draft_are_honoured(tmp_path: Path) -> None:
    small = EngineConfig(model_path=demo.DRAFT, num_threads=1, context_size=20, kv_type="f32")
    with SpeculativeEngine(SpeculativeConfig(TARGET, small)) as engine:
        assert engine._draft.context_size == 20
        assert engine._draft.config.kv_type == "f32"
        assert len(engine.generate(PROMPT, max_tokens=40)) > 40  # beyond it nothing is drafted
    other = write_tiny_model(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="draft: expected the tokens of the target"):
        SpeculativeEngine(SpeculativeConfig(TARGET, EngineConfig(model_path=other)))
    with pytest.raises(ModelFileError):
        SpeculativeEngine(SpeculativeConfig(TARGET, EngineConfig(model_path=tmp_path / "none.gguf")))
    for config in (SpeculativeConfig(TARGET, EngineConfig()), SpeculativeConfig(EngineConfig(), DRAFT)):
        with pytest.raises(ConfigError, match="expected a model_path"):
            SpeculativeEngine(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft": EngineConfig(prefix_cache_dir="a")}, "draft: expected no prefix_cache_dir"),
        ({"num_speculative": 0}, "num_speculative: expected"),
        ({"seed": -1}, "seed: expected"),
        ({"draft": demo.DRAFT}, "draft: expected a EngineConfig"),
        ({"target": EngineConfig(speculate="lookup")}, "target: expected no speculate beside a draft"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(**{"target": TARGET, "draft": DRAFT, **change})


# --- going back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["draft", "mamba2", "jamba"])
def test_a_checkpoint_can_be_restored_more_than_once(kind: str) -> None:
    engine, sync = new_engine(kind, num_threads=1), SpeculativeDeltaSync()
    with pytest.raises(RewindNotSupported, match="checkpoint: expected one of this engine"):
        sync.restore(engine)
    prompt, one, other = [5, 6, 7, 8, 9], [10, 11], [12, 13, 14]
    rows = [engine.logits([*prompt, *more])[-1] for more in (one, other)]
    engine.prefill(prompt)
    sync.checkpoint(engine)
    assert same_bits(engine.prefill(one), rows[0])
    for _ in range(2):
        sync.restore(engine)
        assert engine.current_length() == engine.kv_cache_seq_len == 5
        assert same_bits(engine.prefill(other), rows[1])
    engine.rewind(3)
    sync.checkpoint(engine)
    engine.reset()
    sync.restore(engine)
    assert engine.current_length() == 3
    another = new_engine(kind, num_threads=1)
    with pytest.raises(RewindError):
        sync.restore(another)
    another.close()
    del sync
    engine._own_session = None
    engine.model.call(engine.model.loop._clean_up)
    engine.model.check_integrity()
    assert not engine.model.loop.held
    engine.close()


def test_rewinding_beyond_the_end_says_by_how_much() -> None:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        assert isinstance(engine, Rewindable)
        assert not isinstance(engine.tokenizer, Rewindable)
        assert engine.current_length() == 0
        engine.prefill([5, 6, 7])
        engine.rewind(2)
        with pytest.raises(PositionBeyondEnd, match="n_tokens: expected at most 2, got 4") as caught:
            engine.rewind(4)
        assert (caught.value.target, caught.value.current) == (4, 2)
        assert isinstance(caught.value, (RewindError, ConfigError))
        assert engine.current_length() == 2
