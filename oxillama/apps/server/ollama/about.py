"""Facts of the models for Ollama's clients: ``/api/tags``, ``/api/show``, ``/api/ps`` and others."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import read_body, read_json
from oxillama.apps.server.capabilities import capabilities_of, templates
from oxillama.apps.server.errors import ApiError, fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.model_names import LATEST
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.ollama.bodies import ShowBody
from oxillama.apps.server.running import in_thread, served
from oxillama.base.version import __version__
from oxillama.gguf.model_file import ModelFile

INTERFACE = "0.12.0"
"""The version of Ollama whose interface this is; clients ask for a version before they use something."""

NEVER = "9999-12-31T23:59:59Z"

CHAT_TEMPLATE = "tokenizer.chat_template"


async def version(request: Request) -> Response:
    """The version of the interface, and our own."""
    return JsonAnswer({"version": INTERFACE, "oxillama": __version__})


async def alive(request: Request) -> Response:
    """The answer to clients that ask whether a server runs."""
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
    hosted = served(request).models.find(body.model or body.name)
    return JsonAnswer(await in_thread(described, hosted, body.verbose))


async def refused(request: Request) -> Response:
    """Models are chosen by whoever starts the server."""
    await read_json(request)
    raise ApiError(501, f"{request.url.path}: the models are those that the server was started with")


def path_of(hosted: Hosted) -> Path | None:
    """The path of a model's file; None for a model from bytes."""
    if hosted.path is not None:
        return Path(hosted.path)
    path = None if hosted.engine is None else hosted.engine.config.model_path
    return None if path is None else Path(path)


def name_of(hosted: Hosted) -> str:
    """A model's name with a tag, in Ollama's form."""
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
    """The architecture, the size, and the format of the largest share of bytes."""
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
    """The metadata of a model's file; arrays are null unless ``verbose``."""
    path = path_of(hosted)
    if path is None:
        raise fault("model", f"expected one with a file, {hosted.name} has none", status=404)
    with ModelFile.open(path) as file:
        facts = file.metadata
        info = {key: plain(value, verbose) for key, value in facts.items() if key != CHAT_TEMPLATE}
        info["general.parameter_count"] = n_parameters(file)
        return {
            "modelfile": f"FROM {name_of(hosted)}\n",
            "parameters": "",
            "template": templates(hosted, facts).get("default", ""),
            "license": str(facts.get("general.license") or ""),
            "details": details_of(file),
            "model_info": info,
            "capabilities": capabilities_of(hosted, facts),
            "modified_at": stamp(path.stat().st_mtime),
        }


def plain(value: Any, verbose: bool) -> Any:
    """A value of the metadata, in a form that JSON can hold."""
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
