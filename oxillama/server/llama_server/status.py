"""What the server is and how it does: health, metrics, models, properties."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from oxillama._version import __version__
from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.metrics_snapshot import MetricsSnapshot
from oxillama.server.options import OPTIONS
from oxillama.server.state import served

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Value = Callable[[MetricsSnapshot], float]

STARTED = int(time.time())
"""Seconds since 1970 at which the server was started."""


def finite(value: float) -> float:
    """0 for a mean of nothing."""
    return 0.0 if math.isnan(value) else value


LLAMA_SERVER: tuple[tuple[str, str, str, Value], ...] = (
    ("prompt_tokens_total", "counter", "Tokens of prompts that were run", lambda m: m.prefill_tokens),
    ("prompt_seconds_total", "counter", "Time spent on prompts", lambda m: m.prefill_seconds),
    ("tokens_predicted_total", "counter", "Tokens sampled", lambda m: m.generation_tokens),
    ("tokens_predicted_seconds_total", "counter", "Time spent on streams", lambda m: m.decode_seconds),
    ("n_decode_total", "counter", "Forward passes", lambda m: m.steps),
    ("prompt_tokens_seconds", "gauge", "Prompt tokens a second", lambda m: m.prefill_tokens_per_second),
    ("predicted_tokens_seconds", "gauge", "Sampled tokens a second", lambda m: m.decode_tokens_per_second),
    ("requests_processing", "gauge", "Requests that run", lambda m: m.running),
    ("requests_deferred", "gauge", "Requests that wait", lambda m: m.waiting),
    ("prompt_tokens_cached_total", "counter", "Tokens of prompts not run", lambda m: m.cached_prompt_tokens),
    ("spec_decode_num_drafts_total", "counter", "Drafts", lambda m: m.drafts),
    ("spec_decode_num_draft_tokens_total", "counter", "Tokens drafted", lambda m: m.drafted_tokens),
    ("spec_decode_num_accepted_tokens_total", "counter", "Of these, accepted", lambda m: m.accepted_tokens),
    ("n_busy_slots_per_decode", "gauge", "Rows of a forward pass", lambda m: finite(m.step_rows.mean)),
    ("kv_cache_usage_ratio", "gauge", "Share of the pages in use, 0 to 1", lambda m: m.kv_usage),
)
"""Metrics under the names of llama-server, kind, meaning, value."""


async def health(request: Request) -> Response:
    """200 when the model is ready, 503 while it is loading."""
    served(request).hosted.ready()
    return JSONResponse({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus, under our names and under llama-server's."""
    hosted = served(request).hosted
    found = hosted.ready().metrics
    text = found.prometheus({"model_name": hosted.name}) + llama_server_text(found.snapshot())
    return PlainTextResponse(text, media_type=PROMETHEUS, headers={"Process-Start-Time-Unix": str(STARTED)})


def llama_server_text(now: MetricsSnapshot) -> str:
    """Metrics as llama-server names them, in the text format of Prometheus."""
    lines = []
    for name, kind, meaning, value in LLAMA_SERVER:
        name = f"llamacpp:{name}"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value(now)}"]
    return "\n".join(lines) + "\n"


async def models(request: Request) -> Response:
    """The models that requests may name."""
    return JSONResponse({"object": "list", "data": [model_card(request)]})


async def model(request: Request) -> Response:
    """One of them."""
    served(request).hosted.check_name(request.path_params["model"])
    return JSONResponse(model_card(request))


def model_card(request: Request) -> dict[str, Any]:
    hosted = served(request).hosted
    card: dict[str, Any] = {
        "id": hosted.name,
        "object": "model",
        "created": hosted.created,
        "owned_by": "oxillama",
    }
    if hosted.engine is not None:
        engine = hosted.engine
        card["meta"] = {
            "architecture": engine.spec.family.name,
            "n_vocab": engine.tokenizer.n_vocab,
            "n_ctx": engine.context_size,
            "n_ctx_train": engine.spec.context_length,
            "n_embd": engine.spec.n_embd,
            "size": engine.model.file.file_size,
        }
    return card


async def props(request: Request) -> Response:
    """What llama-server's clients ask of it."""
    here = served(request)
    engine = here.hosted.ready()
    usual = GenerationOptions.of(None, {"max_tokens": None}, engine.config.sampler)
    tokenizer = engine.tokenizer
    template = "default" in tokenizer.chat_template_names
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": engine.context_size,
                "params": settings(usual),
            },
            "total_slots": engine.config.scheduler.max_sequences,
            "model_alias": here.hosted.name,
            "model_path": str(engine.config.model_path or ""),
            "chat_template": tokenizer.chat_template_source("default") if template else "",
            "bos_token": special_text(engine, tokenizer.bos_id),
            "eos_token": special_text(engine, tokenizer.eos_id),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"oxillama {__version__}",
        }
    )


def special_text(engine: InferenceEngine, token: int | None) -> str:
    return "" if token is None else engine.tokenizer.token_text(token)


def settings(options: GenerationOptions) -> dict[str, Any]:
    """The options of a request, by their names in a body; those with plain values."""
    both = {field.name: getattr(options, field.name) for field in fields(options)}
    both |= vars(options.sampler)
    found = {name: both[option.field] for name, option in OPTIONS.items()}
    return {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}
