"""System One's format (TypeSafe, ``POST /v1/systemone``), as llama.cpp's b11549 and the SDK 0.7.5 have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.apps.decisions.wire import Asked, WireError, check_names, list_of, need, object_of, text_of
from oxillama.engine.features.decisions.answers import ChoiceAnswer, Decision, PredicateAnswer
from oxillama.engine.features.decisions.questions import (
    LEVELS,
    MOST_OPTIONS,
    AnyQuestion,
    Choice,
    Predicate,
    Score,
)
from oxillama.engine.features.decisions.rules import RULES

FIELDS = ("model", "state", "questions", "assets", "files", "images", "videos", "keep_alive", "stream")
MEDIA = ("assets", "files", "images", "videos")
QUESTION = ("type", "instructions", "criteria")
TYPES = ("choice", "score", "noul")


def asked_of(body: Any, kind: str | None = None) -> Asked:
    """The request of a body. ``kind`` is the decision model's, "" for a chat model; None: not known yet.

    Raises WireError, which has the place of the fault.
    """
    body = object_of(body, ("body",))
    check_names(body, FIELDS)
    if body.get("stream"):
        raise WireError(("stream",), "decisions have no stream", "unsupported")
    for name in MEDIA:
        if body.get(name):
            raise WireError((name,), "this model takes no pictures or sounds", "unsupported")
        if body.get(name) not in (None, [], {}):
            raise WireError((name,), f"must be a list, got {body[name]!r:.100}")
    state = need(body, "state")
    refuse_media(state)
    questions = object_of(need(body, "questions"), ("questions",))
    if not questions:
        raise WireError(("questions",), "must be a non-empty object")
    model = body.get("model")
    if model is not None:
        text_of(model, ("model",))
    return Asked(model, state, {id: question_of(id, each, kind) for id, each in questions.items()})


def refuse_media(state: Any) -> None:
    """Raises WireError for messages with parts that are pictures or sounds."""
    messages = state.get("messages", state) if isinstance(state, Mapping) else state
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") in ("image_url", "input_audio"):
                raise WireError(("state",), "this model takes no pictures or sounds", "unsupported")


def question_of(id: str, value: Any, kind: str | None) -> AnyQuestion:
    """A question. Raises WireError."""
    place = ("questions", id)
    question = object_of(value, place)
    check_names(question, QUESTION, place)
    if question.get("instructions") is None:
        raise WireError((*place, "instructions"), "must be provided", "missing")
    type, instructions, criteria = question.get("type"), question["instructions"], question.get("criteria")
    inner = (*place, "criteria")
    if type == "noul":
        found = object_of({} if criteria is None else criteria, inner)
        check_names(
            found, ("true", "false", *(("yes", "no") if kind in (None, "lfm2-d1-omni") else ())), inner
        )
        return Predicate(
            instructions, found.get("true", found.get("yes")), found.get("false", found.get("no"))
        )
    if type == "choice":
        options = object_of(criteria, inner)
        if not 1 <= len(options) <= MOST_OPTIONS:
            raise WireError(inner, f"must have 1 to {MOST_OPTIONS} options, got {len(options)}")
        return Choice(instructions, dict(options))
    if type == "score":
        return Score(instructions, list_of(criteria, inner, *LEVELS))
    raise WireError((*place, "type"), f"must be one of {', '.join(TYPES)}, got {type!r:.100}")


def answer_body(model: str, ids: Any, decision: Decision) -> dict[str, Any]:
    """The answer to a request whose questions have these ids."""
    answers = {id: answer_of(answer, decision.kind) for id, answer in zip(ids, decision.answers, strict=True)}
    usage = {"input_tokens": decision.n_input, "output_tokens": 0}
    return {"model": model, "answers": answers, "usage": usage}


def answer_of(answer: Any, kind: str) -> dict[str, Any]:
    """An answer. Options have the order asked; Clef's options are sorted, as in its prompt."""
    more = {} if answer.label_mass is None else {"x_label_mass": answer.label_mass}
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": answer.probability, **more}
    if isinstance(answer, ChoiceAnswer):
        shares = {key_of(value): p for value, p in answer.probabilities}
        if kind in RULES and RULES[kind].sorts_options:
            shares = dict(sorted(shares.items(), key=lambda item: item[0].encode()))
        found = {"type": "choice", "choice": key_of(answer.choice), "probabilities": shares}
        return {**found, "confidence": answer.confidence, **more}
    levels = [str(i) for i in range(len(answer.probabilities))]
    return {
        "type": "score",
        "score": answer.score,
        "legend": dict(zip(levels, answer.legend)),
        "probabilities": dict(zip(levels, answer.probabilities)),
        "confidence": answer.confidence,
        **more,
    }


def key_of(value: str | bool) -> str:
    """The value of an option as the key of an object."""
    return str(value).lower() if isinstance(value, bool) else value
