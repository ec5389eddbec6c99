"""The shipped models through the engine have the perplexity that was recorded when they were trained."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from oxillama import demo
from oxillama.compat.engine import InferenceEngine

RECORDED = json.loads(demo.PERPLEXITY.read_text())


@pytest.mark.parametrize(
    "recorded", RECORDED["results"], ids=lambda r: f"{r['model']}, {r['adapter']} on {r['text']}"
)
def test_perplexity_is_the_recorded_one(recorded: dict[str, Any]) -> None:
    folder = demo.STORY.parent
    adapters = [folder / name for name in (recorded["adapter"],) if name]
    engine = InferenceEngine.from_gguf(folder / recorded["model"], adapters=adapters)
    text = (folder / recorded["text"]).read_text(encoding="utf-8")
    losses: list[float] = []
    for document in text.split(RECORDED["separator"]):
        ids = [RECORDED["bos"], *engine.tokenize(document, add_special=False), RECORDED["eos"]]
        logits = engine.logits(ids[:-1]).astype(np.float64)
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        losses += (total - logits[np.arange(len(logits)), ids[1:]]).tolist()
    assert len(losses) == recorded["scored_tokens"]
    assert np.exp(np.mean(losses)) == pytest.approx(recorded["perplexity"], rel=0.01)
