"""Questions: yes or no, one of some options, a level of a scale."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from oxillama.base.config import checks
from oxillama.errors import ConfigError

MOST_QUESTIONS = 4096
MOST_OPTIONS = 255
LEVELS = (2, 10)


@dataclass(frozen=True)
class Predicate:
    """Is it so? The answer is the probability of yes.

    Attributes:
        instructions: the question, text or JSON.
        true: what yes means, text or JSON; None for nothing.
        false: what no means.
        name: of the question; some models are shown it.
    """

    instructions: Any
    true: Any = None
    false: Any = None
    name: str | None = None


@dataclass(frozen=True)
class Choice:
    """A choice among several options.

    Attributes:
        instructions: the question, text or JSON.
        options: from 1 to 255, all different: values (text, True or False), with or without descriptions
            (text, JSON or None): a list of values, a list of pairs (value, description), or a mapping of
            both.
        name: of the question.
    """

    instructions: Any
    options: Mapping[Any, Any] | Sequence[Any]
    name: str | None = None


@dataclass(frozen=True)
class Score:
    """How much? The answer is a number from 0, the first level, to n - 1, the last one.

    Attributes:
        instructions: the question, text or JSON.
        levels: their descriptions, text or JSON, the lowest first; 2 to 10.
        name: of the question.
    """

    instructions: Any
    levels: Sequence[Any]
    name: str | None = None


AnyQuestion = Predicate | Choice | Score
TYPES: dict[type[AnyQuestion], str] = {Predicate: "noul", Choice: "choice", Score: "score"}
"""How templates and temperatures call the types."""

NAMES = {"predicate": "noul", "noul": "noul", "choice": "choice", "score": "score"}


@dataclass(frozen=True)
class Option:
    """A possible answer: its value, its name in the prompt, and its description."""

    value: Any
    key: str
    description: Any


@dataclass(frozen=True)
class Question:
    """A checked question.

    Attributes:
        id: its name, or else its number.
        name: as given.
        type: "noul", "choice" or "score".
        options: as given; of a predicate True, False.
    """

    id: str
    name: str | None
    type: str
    instructions: Any
    options: tuple[Option, ...]

    def ordered(self, options: Iterable[Option]) -> Question:
        """A copy of the question with its options in another order."""
        return replace(self, options=tuple(options))


def checked_questions(questions: Any) -> list[Question]:
    """Questions as dataclasses or as mappings with a "type", in a list or by id.

    Instructions and descriptions are as they were given (`check_texts`).

    Raises ConfigError, which names the question: ``questions.ID: ...``.
    """
    if isinstance(questions, Mapping):
        found: list[tuple[Any, Any]] = list(questions.items())
    else:
        listed = checks.items(questions)
        if listed is None:
            raise checks.refuse("questions", "questions in a list or by id", questions)
        found = [(str(i), question) for i, question in enumerate(listed)]
    if not 1 <= len(found) <= MOST_QUESTIONS:
        raise ConfigError(f"questions: expected 1 to {MOST_QUESTIONS}, got {len(found)}")
    return [_checked(id, isinstance(questions, Mapping), question) for id, question in found]


def _checked(id: Any, is_named: bool, question: Any) -> Question:
    where = f"questions.{checks.encodable('questions: id', id)}"
    given = question if isinstance(question, AnyQuestion) else from_mapping(where, question)
    name = id if is_named else given.name
    if name is not None:
        checks.encodable(f"{where}.name", name)
    if given.instructions is None:
        raise ConfigError(f"{where}.instructions: must be given")
    options = {Predicate: _of_predicate, Choice: _of_choice, Score: _of_score}[type(given)](where, given)
    return Question(id if name is None else name, name, TYPES[type(given)], given.instructions, options)


def from_mapping(where: str, question: Any) -> AnyQuestion:
    """A question from a mapping: "type" ("predicate" or "noul", "choice", "score") and the fields of its
    dataclass. Raises ConfigError."""
    if not isinstance(question, Mapping):
        raise checks.refuse(where, "a question", question)
    values = dict(question)
    kind = NAMES.get(str(values.pop("type", None)))
    if kind is None:
        raise checks.refuse(f"{where}.type", f"one of {', '.join(NAMES)}", question.get("type"))
    made = next(each for each, name in TYPES.items() if name == kind)
    known = [field.name for field in fields(made)]
    unknown = [str(name) for name in values if name not in known]
    if unknown:
        raise ConfigError(f"{where}: expected fields among {', '.join(known)}, got {', '.join(unknown)}")
    try:
        found: AnyQuestion = made(**{"instructions": None, **values})
    except TypeError:
        lacking = "options" if made is Choice else "levels"
        raise ConfigError(f"{where}.{lacking}: must be given") from None
    return found


def _of_predicate(where: str, question: Any) -> tuple[Option, ...]:
    return Option(True, "true", question.true), Option(False, "false", question.false)


def _of_choice(where: str, question: Any) -> tuple[Option, ...]:
    given = question.options
    listed = list(given.items()) if isinstance(given, Mapping) else checks.items(given)
    if listed is None or not 1 <= len(listed) <= MOST_OPTIONS:
        raise checks.refuse(f"{where}.options", f"1 to {MOST_OPTIONS} options", given)
    pairs = [
        tuple(each) if isinstance(each, (tuple, list)) and len(each) == 2 else (each, None) for each in listed
    ]
    options = []
    for value, description in pairs:
        if not isinstance(value, (str, bool)):
            raise checks.refuse(f"{where}.options", "values that are text, True or False", value)
        key = str(value).lower() if isinstance(value, bool) else checks.encodable(f"{where}.options", value)
        options.append(Option(value, key, description))
    if len({(type(option.value), option.value) for option in options}) < len(options):
        raise ConfigError(f"{where}.options: expected different values")
    return tuple(options)


def _of_score(where: str, question: Any) -> tuple[Option, ...]:
    levels = checks.items(question.levels)
    if levels is None or not LEVELS[0] <= len(levels) <= LEVELS[1]:
        raise checks.refuse(f"{where}.levels", f"{LEVELS[0]} to {LEVELS[1]} levels", question.levels)
    return tuple(Option(i, str(i), level) for i, level in enumerate(levels))


def check_texts(questions: Iterable[Question]) -> None:
    """Raises ConfigError for instructions and descriptions that JSON cannot express."""
    for question in questions:
        plain_json(f"questions.{question.id}.instructions", question.instructions)
        for option in question.options:
            plain_json(f"questions.{question.id}", option.description)


def plain_json(where: str, value: Any) -> Any:
    """``value`` if JSON can express it. Raises ConfigError."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: expected text or JSON: {str(error)[:200]}") from None
    return value
