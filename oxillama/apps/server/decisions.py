"""Decisions: ``/v1/decisions`` in OpenAI's format, ``/v1/systemone`` in System One's."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.decisions import openai, systemone
from oxillama.apps.decisions.wire import Asked, WireError, shown
from oxillama.apps.server.bodies import read_form, read_json
from oxillama.apps.server.callers import whose
from oxillama.apps.server.errors import ApiError, api_error, fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.media import ClientMedia
from oxillama.apps.server.openai.vectors import all_of
from oxillama.apps.server.running import chosen, connected, in_thread, served
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.decisions.answers import Decision
from oxillama.engine.features.decisions.deciding import DecisionOptions, decide
from oxillama.errors import ConfigError, MediaError, PromptError

ANY_JSON: dict[str, Any] = {}
INSTRUCTIONS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
NAMED = {"instructions": INSTRUCTIONS, "name": {"type": ["string", "null"]}}


def typed(name: str, fields: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """The JSON schema of a question of a type."""
    properties = {"type": {"const": name}, **fields}
    made = {"type": "object", "properties": properties, "required": ["type", *required]}
    return {**made, "additionalProperties": False}


def listed(least: int, most: int, key: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a list of options with descriptions."""
    properties = {**key, "description": {"type": ["string", "null"]}}
    item = {"type": "object", "properties": properties, "required": list(key), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


OF_OPENAI: dict[str, dict[str, Any]] = {
    "predicate": {},
    "choice": {"choices": listed(2, 255, {"value": {"type": ["string", "boolean"]}})},
    "score": {"levels": listed(2, 10, {"label": {"type": "string"}})},
}
"""The fields of each type of question beside those that all have, with their JSON schemas."""

CRITERIA: dict[str, dict[str, Any]] = {
    "noul": {"type": ["object", "null"]},
    "choice": {"type": "object", "minProperties": 1},
    "score": {"type": "array", "minItems": 2, "maxItems": 10},
}
"""The JSON schemas of the criteria of System One's types of questions."""

DECISIONS_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "questions": {
            "type": "array",
            "items": {
                "anyOf": [
                    typed(name, {**NAMED, **own}, ("instructions", *own)) for name, own in OF_OPENAI.items()
                ]
            },
            "minItems": 1,
            "maxItems": openai.MOST_QUESTIONS,
        },
        **dict.fromkeys(openai.NO_EFFECT, ANY_JSON),
    },
    "required": ["model", "input", "questions"],
    "additionalProperties": False,
}

SYSTEMONE_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        **dict.fromkeys(systemone.FIELDS, ANY_JSON),
        "model": {"type": ["string", "null"]},
        "questions": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "anyOf": [
                    typed(
                        name,
                        {"instructions": ANY_JSON, "criteria": schema},
                        ("instructions",) if name == "noul" else ("instructions", "criteria"),
                    )
                    for name, schema in CRITERIA.items()
                ]
            },
        },
    },
    "required": ["state", "questions"],
    "additionalProperties": False,
}


async def decisions(request: Request) -> Response:
    """Answers to typed questions about a text, in OpenAI's format."""
    body = await read_json(request)
    asked = await in_thread(answerable, openai.asked_of, body, 400)
    here, engine = await chosen(request, asked.model)

    async def run() -> Response:
        found = await decided(engine, asked, 400)
        return JsonAnswer(openai.answer_body(here.hosted.name, found))

    return await connected(request, run())


async def system_one(request: Request) -> Response:
    """Answers to typed questions about a text, in System One's format."""
    body = await read_form(request, with_assets)
    body = await read_json(request) if body is None else body
    asked = await in_thread(answerable, systemone.asked_of, body, 422)
    is_default = asked.model == systemone.ANY_MODEL and served(request).models.get(asked.model) is None
    here, engine = await chosen(request, None if is_default else asked.model)
    head = engine.model.spec.decision  # some kinds have keys of their own
    kind = "" if head is None else head.kind
    asked = await in_thread(answerable, partial(systemone.asked_of, kind=kind), body, 422)

    async def run() -> Response:
        found = await decided(engine, asked, 422)
        answer = systemone.answer_body(here.hosted.name, asked.questions, found)
        return JsonAnswer(answer, headers={"x-typesafe-request-id": request.state.request_id})

    return await connected(request, run())


def with_assets(body: Any, parts: dict[str, bytes]) -> Any:
    """A body whose assets have the parts of the form that they name. Raises ApiError."""
    assets = body.get("assets") if isinstance(body, dict) else None
    found, used = {}, set()
    for placeholder, asset in assets.items() if isinstance(assets, dict) else ():
        name = asset.get("part") if isinstance(asset, dict) else None
        if isinstance(name, str) and name in parts:
            data = base64.b64encode(parts[name]).decode("ascii")
            asset = {key: value for key, value in asset.items() if key != "part"} | {"data_base64": data}
            used.add(name)
        found[placeholder] = asset
    for name in parts:
        if name not in used:
            raise faulty(fault(name[:100], "expected an asset that names this part of the form"), 422)
    return {**body, "assets": found} if found else body


def answerable(read: Callable[[Any], Asked], body: Any, status: int) -> Asked:
    """The request of a body. Raises ApiError with this status."""
    try:
        return read(body)
    except ConfigError as error:
        raise refused(error, status) from error


async def decided(engine: InferenceEngine, asked: Asked, status: int) -> Decision:
    """The answers to a request. Raises ApiError, for wrong questions with this status."""
    caller = whose()
    options = DecisionOptions(tenant=caller["tenant"], salt=caller["salt"])

    def start() -> Any:
        try:
            media = ClientMedia(engine).parts(asked.media)
            return decide(engine.model, [(asked.state, asked.questions, media)], options)[0]
        except (ConfigError, MediaError, PromptError) as error:
            raise refused(error, status) from error
        except ApiError as error:
            raise faulty(error, status) from error

    started = await in_thread(start)
    return await in_thread(started.decision, await all_of(started.readings))


def parts_of(where: str) -> list[str]:
    """The names and numbers of a place: images[0]."""
    return [part for part in re.split(r"[.\[\]]+", where) if part]


def faulty(error: ApiError, status: int) -> ApiError:
    """An error of media in the form that the errors of an interface have."""
    if error.status != 400 or error.param is None or status == 400:
        return error
    detail = [{"loc": ["body", *parts_of(error.param)], "msg": error.message, "type": "value_error"}]
    return ApiError(status, error.message, param=error.param, code=error.code, detail=detail)


def refused(error: ConfigError | MediaError | PromptError, status: int) -> ApiError:
    """The error for a wrong request. A prompt that is too long is an error of status 400 in both formats."""
    if isinstance(error, WireError):
        place = [str(part) for part in error.place] if status == 422 else []
        kind = "missing" if error.kind == "missing" else "value_error"
        code = {"missing": "missing", "unsupported": "unsupported_value"}.get(error.kind, "invalid_value")
        message, where = str(error), shown(error.place)
    elif isinstance(error, PromptError):
        what = f"{error}: it exceeds the available context size (context_length_exceeded)"
        return fault("state", what, "context_length_exceeded", type="exceed_context_size_error")
    else:
        found = api_error(error)
        message, where, kind, code = found.message, found.param or "questions", "value_error", "invalid_value"
        place = parts_of(where)
    more: dict[str, Any] = {}
    if status == 422:
        more["detail"] = [{"loc": ["body", *place], "msg": message, "type": kind}]
    return ApiError(status, message, param=where, code=code, **more)


def system_one_error(error: ApiError) -> dict[str, Any]:
    """The JSON of an error for System One's clients: a list of faults, and llama-server's form beside it."""
    body = error.body()
    detail = body["error"].pop("detail", error.message)
    return {"detail": detail, **body}
