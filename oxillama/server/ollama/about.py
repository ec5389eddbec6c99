"""What Ollama's clients ask about the models: ``/api/tags``, ``/api/show``, ``/api/ps`` and others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama._version import __version__
from oxillama.gguf.model_file import ModelFile
from oxillama.server.bodies import read_body, read_json
from oxillama.server.errors import ApiError
from oxillama.server.json_text import JsonAnswer
from oxillama.server.models import Hosted
from oxillama.server.ollama.asking import LATEST, find
from oxillama.server.ollama.bodies import ShowBody
from oxillama.server.running import in_thread, served
from oxillama.toolcalls import grammar_of_template

INTERFACE = "0.12.0"
"""The version of Ollama whose interface this is; clients ask for a version before they use something."""

NEVER = "9999-12-31T23:59:59Z"

VERBS = {"image": "vision", "audio": "audio"}
"""Ollama's words for what a model takes."""

CHAT_TEMPLATE = "tokenizer.chat_template"
FIM = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")


async def version(request: Request) -> Response:
    """The version of the interface, and our own."""
    return JsonAnswer({"version": INTERFACE, "oxillama": __version__})


async def alive(request: Request) -> Response:
    """For clients that ask whether there is a server."""
    return Response()


async def tags(request: Request) -> Response:
    """The models, loaded or not."""
    models = served(request).models
    return JsonAnswer({"models": [await in_thread(listed, each) for each in models]})


async def ps(request: Request) -> Response:
    """The models that are loaded."""
    found = []
    for each in served(request).models:
        if each.engine is not None:
            facts = await in_thread(listed, each)
            del facts["modified_at"]
            engine = each.engine
            if engine is None:
                continue  # unloaded meanwhile
            facts |= {"expires_at": stamp(each.expires_at), "size_vram": 0}
            found.append({**facts, "context_length": engine.context_size})
    return JsonAnswer({"models": found})


async def show(request: Request) -> Response:
    """What a model's file says."""
    body = await read_body(request, ShowBody)
    hosted = find(served(request).models, body.model or body.name)
    return JsonAnswer(await in_thread(described, hosted, body.verbose))


async def refused(request: Request) -> Response:
    """Models are chosen by whoever starts the server."""
    await read_json(request)
    raise ApiError(501, f"{request.url.path}: the models are those that the server was started with")


def path_of(hosted: Hosted) -> Path | None:
    """Where a model's file is; None for one from bytes."""
    if hosted.path is not None:
        return Path(hosted.path)
    path = None if hosted.engine is None else hosted.engine.config.model_path
    return None if path is None else Path(path)


def name_of(hosted: Hosted) -> str:
    """A model's name as Ollama has names: with a tag."""
    return hosted.name if ":" in hosted.name else hosted.name + LATEST


def listed(hosted: Hosted) -> dict[str, Any]:
    """A model in a list. The digest tells files apart by path, size and time; it is no hash of the bytes."""
    path, name = path_of(hosted), name_of(hosted)
    found: dict[str, Any] = {"name": name, "model": name, "modified_at": stamp(hosted.created), "size": 0}
    mark, details = name, {}
    if path is not None and path.is_file():
        facts = path.stat()
        found |= {"modified_at": stamp(facts.st_mtime), "size": facts.st_size}
        mark = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"
        with ModelFile.open(path) as file:
            found["size"], details = file.file_size, details_of(file)
    return {
        **found,
        "digest": hashlib.sha256(mark.encode("utf-8", "replace")).hexdigest(),
        "details": details,
    }


def details_of(file: ModelFile) -> dict[str, Any]:
    """The architecture, the size, and the format that most bytes have."""
    family = str(file.metadata.get("general.architecture") or "")
    by_format: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_format[tensor.format.name] = by_format.get(tensor.format.name, 0) + tensor.nbytes
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": count(n_parameters(file)),
        "quantization_level": max(by_format, key=lambda name: by_format[name], default=""),
    }


def n_parameters(file: ModelFile) -> int:
    return sum(math.prod(tensor.shape) for tensor in file.tensors.values())


def count(n: int) -> str:
    """A number of parameters: "1.1B"."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)


def described(hosted: Hosted, verbose: bool) -> dict[str, Any]:
    """What a model's file says; arrays are None unless ``verbose``."""
    path = path_of(hosted)
    if path is None:
        raise ApiError(404, f"model: expected one with a file, {hosted.name} has none", param="model")
    with ModelFile.open(path) as file:
        facts = file.metadata
        template = str(facts.get(CHAT_TEMPLATE) or "")
        info = {key: plain(value, verbose) for key, value in facts.items() if key != CHAT_TEMPLATE}
        info["general.parameter_count"] = n_parameters(file)
        return {
            "modelfile": f"FROM {name_of(hosted)}\n",
            "parameters": "",
            "template": template,
            "license": str(facts.get("general.license") or ""),
            "details": details_of(file),
            "model_info": info,
            "capabilities": capabilities(facts, template) + [VERBS[each] for each in hosted.takes],
            "modified_at": stamp(path.stat().st_mtime),
        }


def capabilities(facts: Mapping[str, Any], template: str) -> list[str]:
    """What can be asked of a model, in Ollama's words."""
    family = facts.get("general.architecture")
    if f"{family}.pooling_type" in facts:
        return ["embedding"]
    found = ["completion"]
    form = grammar_of_template(template)
    if form.has_calls:
        found.append("tools")
    if any(key in facts for key in FIM):
        found.append("insert")
    if form.reasoning:
        found.append("thinking")
    return found


def plain(value: Any, verbose: bool) -> Any:
    """A value of the metadata as JSON has it."""
    if isinstance(value, np.ndarray):
        return [plain(each, verbose) for each in value.tolist()] if verbose else None
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (str, int, type(None))):
        return value
    return [plain(each, verbose) for each in value] if verbose else None


def stamp(seconds: float) -> str:
    """A time as text; infinite is never."""
    if seconds > 2e11:
        return NEVER
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
