"""An engine behind the interface of the reference's beam search."""

from __future__ import annotations

import pytest

from oxillama import BeamSearchConfig, EngineBeamAdapter, PromptError, beam_generate, demo
from oxillama.compat.engine import InferenceEngine
from tests.support.kernels import same_bits

PROMPT = "Once upon a time"


@pytest.mark.parametrize("width", [1, 4])
def test_the_adapter_finds_what_the_engine_finds(width: int) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        config = BeamSearchConfig(beam_width=width, max_new_tokens=9)
        prompt, end = engine.tokenizer.encode(PROMPT), next(iter(engine.tokenizer.eog_ids))
        before = engine.model.pool.n_used
        found = beam_generate(config, prompt, EngineBeamAdapter(engine), end)
        assert found == engine.beam_generate(PROMPT, config)
        assert found[0].tokens[: len(prompt)] == tuple(prompt)
        engine.model.call(engine.model.loop._clean_up)
        assert engine.model.pool.n_used == before


def test_a_reset_runs_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        adapter = EngineBeamAdapter(engine)
        tokens = [5, 6, 7, 8, 9, 10]
        rows = engine.logits(tokens)
        first = adapter.forward_tokens(tokens[:4])
        assert same_bits(first, rows[3])
        forward, n_run = engine.model.runner.forward, []
        monkeypatch.setattr(
            engine.model.runner, "forward", lambda parts, *a: n_run.append(parts[0][1]) or forward(parts, *a)
        )
        adapter.reset()
        assert same_bits(adapter.forward_tokens(tokens), rows[5])
        assert same_bits(adapter.forward_tokens([5]), engine.logits([*tokens, 5])[-1])
        adapter.reset()
        assert same_bits(adapter.forward_tokens(tokens[:3]), rows[2])
        assert n_run == [2, 1, 7, 1]
        with pytest.raises(PromptError):
            adapter.forward_tokens([])
