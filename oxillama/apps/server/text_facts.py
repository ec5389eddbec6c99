"""Fields of llama-server's answers besides the text: settings, prompt and end."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from oxillama.apps.server.options import OPTIONS
from oxillama.apps.server.running import receipt_of, timings
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation

NO_ADAPTIVE_P = {"adaptive_target": -1.0, "adaptive_decay": 0.0}
"""llama-server's settings of a sampler that is off here, in its own words for that."""


def settings(engine: InferenceEngine, options: GenerationOptions) -> dict[str, Any]:
    """The options of a request with plain values, and the biases of tokens, by their names in a body.

    A token that is banned has the bias None: JSON has no infinite number.
    """
    both = {field.name: getattr(options, field.name) for field in fields(options)}
    both |= vars(options.sampler)
    found = {name: both[field] for name, field in OPTIONS.items()}
    plain = {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}
    biases = dict(both["logit_bias"])
    if both["ignore_eos"]:
        biases |= dict.fromkeys(sorted(engine.tokenizer.eog_ids), -math.inf)
    listed = [{"token": token, "bias": None if math.isinf(bias) else bias} for token, bias in biases.items()]
    return {**plain, "logit_bias": listed, **NO_ADAPTIVE_P}


def stop_type(generation: Generation) -> tuple[str, str]:
    """The reason for the end of a text in llama-server's words, and the stop string, if any."""
    if generation.finish_reason not in ("stop", "tool_calls"):
        return {"length": "limit"}.get(generation.finish_reason or "", generation.finish_reason or ""), ""
    return ("eos", "") if generation.stop_string is None else ("word", generation.stop_string)


def facts_of(
    engine: InferenceEngine, model: str, generation: Generation, prompt: str | None = None
) -> dict[str, Any]:
    """The fields of llama-server's ``/completion`` at the end of a text, without the text.

    Args:
        model: its name.
        prompt: its text; None: the text of its tokens.
    """
    kind, word = stop_type(generation)
    if prompt is None:
        prompt = engine.tokenizer.decode(generation.prompt_tokens, skip_special=False)
    return {
        "content": "",
        "tokens": [],
        "stop": True,
        "model": model,
        "tokens_predicted": len(generation.tokens),
        "tokens_evaluated": len(generation.prompt_tokens),
        "generation_settings": settings(engine, generation.options) | {"seed": generation.seed},
        "prompt": prompt,
        "has_new_line": "\n" in generation.text,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": len(generation.prompt_tokens) + len(generation.tokens) - 1,
        "timings": timings(generation),
        **receipt_of(generation),
    }
