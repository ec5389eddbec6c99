"""The state of the server: health, metrics, models, properties."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from oxillama.apps.server.callers import context
from oxillama.apps.server.capabilities import capabilities
from oxillama.apps.server.chats import thinking_of
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.page.hub import may_pull
from oxillama.apps.server.running import in_thread, present, served
from oxillama.apps.server.text_facts import settings
from oxillama.base.config import GenerationOptions
from oxillama.base.version import __version__
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.media.prompt import MARKER
from oxillama.engine.features.observability.exposition import prometheus_text
from oxillama.engine.features.observability.metrics_snapshot import MetricsSnapshot

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
    ("n_tokens_max", "counter", "The longest prompt with its text", lambda m: m.longest_sequence),
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
    """200 when the default model was loaded, 503 while it is being loaded for the first time."""
    hosted = served(request).hosted
    if not hosted.has_been_ready:
        hosted.ready()
    return JsonAnswer({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus, under our names and under llama-server's, of the models that have been loaded.

    They tell of everybody's requests: for an operator alone.
    """
    context().caller.check_admin()
    refuse_unless(served(request).config.metrics, "metrics")
    models = served(request).models
    found = {each.name: now for each in models if (now := each.metrics()) is not None}
    text = models_text(models)
    if found:
        text += prometheus_text([({"model_name": name}, now) for name, now in found.items()])
    text += llama_server_text(found, len(models) > 1)
    if request.app.state.records is not None:
        text += request.app.state.records.counts.metrics_text()
    return PlainTextResponse(text, media_type=PROMETHEUS, headers={"Process-Start-Time-Unix": str(STARTED)})


def refuse_unless(is_on: bool, name: str) -> None:
    """Raises ApiError for a path that the server was started without."""
    if not is_on:
        message = f"{name}: expected a server without --no-{name}, this one has it"
        raise ApiError(501, message, type="not_supported_error", code="not_supported")


def models_text(models: Models) -> str:
    """The states of the models, in the text format of Prometheus."""
    name = "oxillama:model_loaded"
    lines = [f"# HELP {name} Whether the model is loaded", f"# TYPE {name} gauge"]
    lines += [f"{name}{label(each.name)} {int(each.engine is not None)}" for each in models]
    return "\n".join(lines) + "\n"


def label(name: str) -> str:
    """The name of a model as a label."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{model_name="{escaped}"}}'


def llama_server_text(found: Mapping[str, MetricsSnapshot], labelled: bool) -> str:
    """Metrics as llama-server names them, in the text format of Prometheus.

    Args:
        labelled: whether each line names its model.
    """
    lines = []
    for name, kind, meaning, value in LLAMA_SERVER:
        name = f"llamacpp:{name}"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{label(model) if labelled else ''} {value(each)}" for model, each in found.items()]
    return "\n".join(lines) + "\n"


async def models(request: Request) -> Response:
    """The models that requests may name."""
    hosted = list(served(request).models)
    named = []
    for each in hosted:
        found = await in_thread(listed, each)
        about = f"{', '.join(found)}; {each.state}"  # the SDK of System One wants a description and a date
        date = time.strftime("%Y-%m-%d", time.gmtime(min(each.created, STARTED)))
        named.append(
            {"name": each.name, "model": each.name, "capabilities": found}
            | {"description": about, "release_date": date}
        )
    return JsonAnswer({"object": "list", "data": [model_card(each) for each in hosted], "models": named})


def listed(hosted: Hosted) -> list[str]:
    """The capabilities of a model, in Ollama's words, and llama-server's word for one that takes media."""
    return [*capabilities(hosted), *(["multimodal"] if hosted.takes else [])]


async def model(request: Request) -> Response:
    """A single model."""
    return JsonAnswer(model_card(served(request).models.find(request.path_params["model"])))


def model_card(hosted: Hosted) -> dict[str, Any]:
    """The facts of a model for clients; its sizes only while it is loaded."""
    card: dict[str, Any] = {
        "id": hosted.name,
        "aliases": list(hosted.names),
        "tags": list(hosted.tags),
        "object": "model",
        "created": hosted.created,
        "owned_by": "oxillama",
        "status": {"value": hosted.state},
        "architecture": {"input_modalities": ["text", *hosted.takes], "output_modalities": ["text"]},
    }
    if hosted.engine is not None:
        engine = hosted.engine
        if engine.model.spec.decision is not None:  # llama-server's word
            card["architecture"]["output_modalities"] = ["decisions"]
        card["meta"] = {
            "architecture": engine.model.spec.family.name,
            "n_vocab": engine.tokenizer.n_vocab,
            "n_ctx": engine.context_size,
            "n_ctx_train": engine.model.spec.context_length,
            "n_embd": engine.model.spec.n_embd,
            "size": engine.model.file.file_size,
        }
    return card


async def props(request: Request) -> Response:
    """The properties of the server, for llama-server's clients."""
    here, engine = await present(request, request.query_params.get("model"))
    usual = GenerationOptions.of(None, {"max_tokens": None}, engine.config.sampler)
    tokenizer = engine.tokenizer
    template = "default" in tokenizer.templates
    return JsonAnswer(
        {
            "default_generation_settings": {
                "n_ctx": engine.context_size,
                "params": settings(engine, usual),
            },
            "total_slots": engine.config.scheduler.max_sequences,
            "model_alias": here.hosted.name,
            "model_path": name_of(engine.config.model_path),
            "thinking": thinking_of(engine) if template else None,
            "chat_template": tokenizer.chat_template_source("default") if template else "",
            "bos_token": special_text(engine, tokenizer.bos_id),
            "eos_token": special_text(engine, tokenizer.eos_id),
            "modalities": {"vision": "image" in here.hosted.takes, "audio": "audio" in here.hosted.takes},
            "media_marker": MARKER,
            "may_pull": may_pull(served(request).models, served(request).config, context().caller),
            "build_info": f"oxillama {__version__}",
        }
    )


def name_of(path: object) -> str:
    """The name of a file, without the folders of the server; "" for none."""
    return "" if path is None else Path(os.fspath(path)).name  # type: ignore[call-overload]


def special_text(engine: InferenceEngine, token: int | None) -> str:
    return "" if token is None else engine.tokenizer.token_text(token)
