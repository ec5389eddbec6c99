"""System One's format (TypeSafe, ``POST /v1/systemone``), as llama.cpp's b11549 and the SDK 0.7.5 have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oxillama.apps.decisions.wire import (
    Asked,
    WireError,
    check_names,
    list_of,
    need,
    object_of,
    optional_text,
    shown,
    text_of,
)
from oxillama.engine.features.decisions.answers import ChoiceAnswer, Decision, PredicateAnswer
from oxillama.engine.features.decisions.pictures import Placeholders
from oxillama.engine.features.decisions.questions import (
    LEVELS,
    MOST_OPTIONS,
    AnyQuestion,
    Choice,
    Predicate,
    Score,
)
from oxillama.engine.features.decisions.rules import RULES
from oxillama.engine.features.media.parts import Placed
from oxillama.models.media.kinds import first_bytes, is_sound

FIELDS = ("model", "state", "questions", "assets", "files", "images", "videos", "keep_alive", "stream")
ANY_MODEL = "jev-latest"
"""The name that TypeSafe's SDK sends for a caller who gives none (typesafe-sdk 0.7.5, ``constants.py``)."""

MOST_FILES = 8
"""Media of the fields "files" and "images"."""

MOST_ASSETS = 64
ASSET = ("type", "format", "data_base64", "part")
FORMATS = (None, "png", "jpg", "jpeg")
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
    if body.get("videos") not in (None, []):
        raise WireError(("videos",), "are not taken", "unsupported")
    media = Placeholders(body)
    media.media.update(assets_of(body.get("assets")))
    state = media.taken("state", need(body, "state"))
    questions = object_of(need(body, "questions"), ("questions",))
    if not questions:
        raise WireError(("questions",), "must be a non-empty object")
    model = optional_text(body, "model")
    asked = {id: question_of(id, each, kind, media) for id, each in questions.items()}
    found = Asked(model, state, asked, media.media)
    listed = [each for name in ("files", "images") for each in files_of(name, body.get(name))]
    found = found.shown_first(listed)
    if kind and found.media:
        field, *_ = re.split(r"[.\[]", next(iter(found.media.values())).where)
        raise WireError((field,), f"models of {kind} take no pictures and sounds here", "unsupported")
    return found


def assets_of(value: Any) -> dict[str, Placed]:
    """The assets of a request by their placeholders. Raises WireError."""
    found, assets = {}, object_of({} if value is None else value, ("assets",))
    if len(assets) > MOST_ASSETS:
        raise WireError(("assets",), f"must be at most {MOST_ASSETS}, got {len(assets)}")
    for name, given in assets.items():
        place = ("assets", name)
        if not name:
            raise WireError(place, "must have a placeholder that is not empty")
        asset = object_of(given, place)
        check_names(asset, ASSET, place)
        if asset.get("type", "image") not in ("image", None):
            raise WireError((*place, "type"), f"must be image, got {asset['type']!r:.100}", "unsupported")
        if asset.get("format") not in FORMATS:
            raise WireError((*place, "format"), "must be png, jpg or jpeg", "unsupported")
        if asset.get("part") is not None:
            raise WireError((*place, "part"), "must be the name of a part of a multipart body")
        data = text_of(need(asset, "data_base64", place), (*place, "data_base64"))
        where = shown((*place, "data_base64"))
        found[name] = Placed(where, {"type": "input_image", "image_url": f"data:;base64,{data}"}, where)
    return found


def files_of(name: str, value: Any) -> list[tuple[str, dict[str, str]]]:
    """The media of a list of data URLs, or of base64: their places and parts. Raises WireError."""
    found = []
    for i, given in enumerate([] if value is None else list_of(value, (name,), 0, MOST_FILES)):
        url = text_of(given, (name, i))
        url = url if url.startswith("data:") or "://" in url[:16] else f"data:;base64,{url}"
        has_sound = is_sound(first_bytes(url.partition(";base64,")[2]))
        kind, field = ("input_audio", "input_audio") if has_sound else ("input_image", "image_url")
        part = {"type": kind, field: url}
        found.append((shown((name, i)), part))
    return found


def question_of(id: str, value: Any, kind: str | None, media: Placeholders) -> AnyQuestion:
    """A question; ``media`` takes the pictures and sounds of its texts. Raises WireError."""
    place = ("questions", id)
    question = object_of(value, place)
    check_names(question, QUESTION, place)
    if question.get("instructions") is None:
        raise WireError((*place, "instructions"), "must be provided", "missing")
    type, instructions, criteria = question.get("type"), question["instructions"], question.get("criteria")
    inner = (*place, "criteria")
    instructions = media.taken(shown((*place, "instructions")), instructions)
    if isinstance(criteria, Mapping):
        criteria = {key: media.taken(shown((*inner, key)), each) for key, each in criteria.items()}
    elif isinstance(criteria, list):
        criteria = [media.taken(shown((*inner, i)), each) for i, each in enumerate(criteria)]
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
        for key in options:
            if any(name in key for name in media.media):
                raise WireError((*inner, key), "must be a label without pictures", "unsupported")
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
