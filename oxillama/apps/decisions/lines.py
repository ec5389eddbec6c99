"""Many requests, in either format, answered together by one engine and in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from oxillama.apps.decisions import openai, systemone
from oxillama.apps.decisions.wire import Asked, WireError
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.decisions.answers import Decision
from oxillama.engine.features.decisions.deciding import Deciding, DecisionOptions, decide
from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    MediaError,
    OxiLlamaError,
    PromptError,
    SamplingError,
    TokenizerError,
)

WINDOW = 256
"""Requests that are being answered at a time."""

OF_REQUEST = (ConfigError, MediaError, PromptError, ChatTemplateError, TokenizerError, SamplingError)
"""Errors of a request, which others do not share."""

Line = tuple[Deciding, Asked, bool] | OxiLlamaError
"""A request that runs, and whether it is in OpenAI's format; or what is wrong with it."""


Keep = Callable[[Any, Deciding, Decision], object]
"""Is called with the state, the questions and the answers of each request."""


def answers(
    engine: InferenceEngine,
    bodies: Iterable[Any],
    options: DecisionOptions,
    keep: Keep | None = None,
    media: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Iterator[dict[str, Any]]:
    """The answer to each body, in the format of the body; {"error": message} for one that is refused.

    ``keep`` is called with each that is answered. ``media`` are shown before each state: their names, and
    parts as in chats.

    Raises OxiLlamaError where the engine fails, or the model cannot answer any request.
    """
    engine.model.feature("decision prompts")
    running: deque[Line] = deque()
    for body in bodies:
        running.append(begun(engine, body, options, media))
        if len(running) >= WINDOW:
            yield ended(engine, running.popleft(), keep)
    while running:
        yield ended(engine, running.popleft(), keep)


def asked_of(engine: InferenceEngine, body: Mapping[str, Any]) -> Asked:
    """The request of a body in either format: OpenAI's has an input. Raises WireError."""
    head = engine.model.spec.decision
    return openai.asked_of(body) if "input" in body else systemone.asked_of(body, head.kind if head else "")


def begun(
    engine: InferenceEngine,
    body: Any,
    options: DecisionOptions,
    media: Sequence[tuple[str, Mapping[str, Any]]],
) -> Line:
    try:
        if not isinstance(body, Mapping):
            raise WireError(("body",), "must be an object")
        asked = asked_of(engine, body)
        (started,) = decide(engine.model, [asked.shown_first(media).request], options)
    except OF_REQUEST as error:
        return error
    return started, asked, "input" in body


def ended(engine: InferenceEngine, line: Line, keep: Keep | None) -> dict[str, Any]:
    try:
        if isinstance(line, OxiLlamaError):
            raise line
        started, asked, is_openai = line
        decision = started.result()
    except OF_REQUEST as error:
        return {"error": str(error)}
    if keep is not None:
        keep(started.state, started, decision)
    if is_openai:
        return openai.answer_body(engine.model.name, decision)
    return systemone.answer_body(engine.model.name, asked.questions, decision)
