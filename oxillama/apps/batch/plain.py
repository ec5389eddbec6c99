"""Answers rows that have a prompt, messages or a text to embed, with options as further fields."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.apps.decisions import systemone
from oxillama.apps.server.errors import ApiError, invalid
from oxillama.apps.server.openai.logprobs import finite
from oxillama.apps.server.options import options_of, unknown
from oxillama.base.config import GenerationOptions
from oxillama.engine.async_engine import all_of
from oxillama.engine.completion import Completion
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.decisions.deciding import Deciding, DecisionOptions, decide
from oxillama.engine.features.embeddings import Embedding, embeddings as start_embeddings
from oxillama.engine.generation import Generation

COLUMNS = ("prompt", "messages", "input")
"""Kinds that a single column of a table can hold."""

KINDS = (*COLUMNS, "questions")
"""A row has exactly one of these: text or token ids to continue, a chat, text or token ids to embed, or
questions about a ``state`` in System One's format."""

CARRIED = ("id", "custom_id", "metadata")
"""Fields that are copied from the row to the answer."""

OWN = ("logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls")
"""Fields of `GenerationOptions` that are not in the server's table of options."""

TEMPLATE = "chat_template_kwargs"

MEDIA = "media"
"""The field with files or data URLs for the media markers in a prompt."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all rows of a job.

    Attributes:
        model_name: the model's name in rows of OpenAI's format.
        max_tokens: max tokens of a text, if the row does not say; -1 for as many as the context holds. None:
            256 in plain rows, and the interface's default in rows of OpenAI's format.
        keep: further fields of plain rows that are copied to the answer.
    """

    model_name: str
    max_tokens: int | None = None
    keep: tuple[str, ...] = ()


async def answer(engine: InferenceEngine, row: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The answer to a row: copied fields, text or embedding, tokens, usage.

    Raises:
        ApiError: a field is unknown, missing, or not supported.
        OxiLlamaError: the library refuses the request, or it fails.
    """
    handle = await asyncio.to_thread(start, engine, row, settings)
    if isinstance(handle, tuple):
        names, deciding = handle
        decision = deciding.decision(await all_of(deciding.readings))
        found = systemone.answer_body(settings.model_name, names, decision)
        usage = {"prompt_tokens": decision.n_input, "completion_tokens": 0}
        return {"answers": found["answers"], "usage": usage}
    if isinstance(handle, Embedding):
        vector = await handle
        n_prompt = len(handle._request.prompt)
        usage = {"prompt_tokens": n_prompt, "completion_tokens": 0}
        return {"embedding": vector.tolist(), "usage": usage}
    return columns(await handle, handle.options)


Started = Generation | Embedding | tuple[list[str], Deciding]
"""A text, a vector, or names of questions and what answers them."""


def start(engine: InferenceEngine, row: Mapping[str, Any], settings: Settings) -> Started:
    """Start a row's request. Raises as `answer`."""
    skipped = (*CARRIED, *settings.keep)
    rest = {name: value for name, value in row.items() if value is not None and name not in skipped}
    kinds = [name for name in KINDS if name in rest]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        message = f"row: expected one of {', '.join(KINDS)}, got {found}"
        raise ApiError(400, message, code="missing" if not kinds else "invalid_value")
    kind = kinds[0]
    given = rest.pop(kind)
    if kind == "input":
        pooling = rest.pop("pooling", None)
        for name in rest:
            raise unknown(name, ("pooling",))
        return start_embeddings(engine.model, [given], pooling, True)[0]
    if kind == "questions":
        head = engine.model.spec.decision
        body = {"questions": given, **{name: row[name] for name in row if name in ("state", *rest)}}
        asked = systemone.asked_of(body, "" if head is None else head.kind)
        (deciding,) = decide(engine.model, [asked.request], DecisionOptions())
        return list(asked.questions), deciding
    template = rest.pop(TEMPLATE, None)
    if template is not None and (kind == "prompt" or not isinstance(template, dict)):
        raise invalid(TEMPLATE, "an object beside messages", template)
    media = rest.pop(MEDIA, None)
    if media is not None and (kind != "prompt" or not isinstance(media, list) or not isinstance(given, str)):
        raise invalid(MEDIA, "a list of files or data URLs beside a prompt that is a text", media)
    fixed = {name: rest.pop(name) for name in OWN if name in rest}
    known = (kind, TEMPLATE, MEDIA, *OWN, *skipped)
    defaults = {} if settings.max_tokens is None else {"max_tokens": most(settings.max_tokens)}
    options = options_of(rest, engine, defaults, known, **fixed)
    if media is not None:
        given = engine.model.feature("media").prompt(given, media)
    if kind == "prompt":
        return engine.stream(given, options)
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise invalid("messages", "a list of objects", given)
    return engine.stream_chat(given, options, template=template)


def most(n: int) -> int | None:
    """A number of tokens for `GenerationOptions`: None instead of -1."""
    return None if n == -1 else n


def columns(completion: Completion, options: GenerationOptions) -> dict[str, Any]:
    """A completion as named plain values. Some are present only if the request asked for them."""
    usage = completion.usage
    found: dict[str, Any] = {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.generated_tokens},
    }
    if completion.reasoning:
        found["reasoning"] = completion.reasoning
    if completion.tool_calls:
        found["tool_calls"] = completion.message["tool_calls"]
    if completion.logprobs is not None:
        found["logprobs"] = [finite(each.raw.logprob) for each in completion.logprobs]
    if completion.logprobs is not None and options.top_logprobs:
        found["top_logprobs"] = [
            [{"token": token, "logprob": finite(logprob)} for token, logprob in each.raw.top]
            for each in completion.logprobs
        ]
    if completion.receipt is not None:
        found["receipt"] = completion.receipt.to_json()
    if options.sampler is not None and options.sampler.json_schema is not None:
        found["parsed"] = parsed(completion)
    return found


def parsed(completion: Completion) -> Any:
    """The JSON value of a text with a schema; None if the text was cut off."""
    if completion.finish_reason != "stop":
        return None
    try:
        return json.loads(completion.text)
    except ValueError:  # cut by a stop string
        return None
