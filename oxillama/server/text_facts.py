"""What llama-server's clients are told of a text, beside the text: its settings, its prompt, its end."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.server.options import OPTIONS
from oxillama.server.running import receipt_of, timings

NO_ADAPTIVE_P = {"adaptive_target": -1.0, "adaptive_decay": 0.0}
"""llama-server's settings of a sampler that is off here, in its own words for that."""


def settings(engine: InferenceEngine, options: GenerationOptions) -> dict[str, Any]:
    """The options of a request, by their names in a body: those with plain values, and the biases of tokens.

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
    """Why a text has ended, in llama-server's words, and the stop string, if it was one."""
    if generation.finish_reason not in ("stop", "tool_calls"):
        return {"length": "limit"}.get(generation.finish_reason or "", generation.finish_reason or ""), ""
    return ("eos", "") if generation.stop_string is None else ("word", generation.stop_string)


def facts_of(
    engine: InferenceEngine, model: str, generation: Generation, prompt: str | None = None
) -> dict[str, Any]:
    """What is known when a text has ended, as llama-server's ``/completion`` has it, without the text.

    Parameters
    ----------
    model : its name. prompt : its text; None for that of its tokens.
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
