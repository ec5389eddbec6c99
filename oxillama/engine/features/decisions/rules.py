"""How the models of each kind are read: the order of options, what may be asked, and the labels of options.

The kinds are defined by llama.cpp's b11549 (``<architecture>.decision.type``).
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oxillama.engine.features.decisions.questions import Option, Question
from oxillama.errors import ConfigError
from oxillama.text.tokenizer.tokenizer import Tokenizer

UPPER, LOWER = string.ascii_uppercase, string.ascii_lowercase
PAIRS = [a + b for a in UPPER for b in UPPER]
TWO_DIGITS = [f"{i:02}" for i in range(100)]
MOST_CODES = 255
RATINGS = 9
"""Labels of a predicate of Lev: ratings from no to yes."""

Labels = list[list[int]]
"""Tokens of each option, of which the largest logit counts."""


@dataclass(frozen=True)
class Rules:
    """Facts of a kind.

    Attributes:
        readout: "labels" (logits of tokens), "marks" (the head's scores at marks), "pointer" or "joint".
        true_first: the options of a predicate are true, false; otherwise false, true.
        letters: options have the letters A to Z and a to z; otherwise codes of one token, A to Z and AA to
            ZZ.
        spelled: options have labels in several spellings (`spelled_labels`).
        rated: predicates are rated from 0 to 8, and choices asked in both orders.
        sorts_keys, sorts_options: keys of JSON objects, and options of choices, are sorted by their bytes.
        lists_all: a prompt shows all questions of the request.
        null_state: there may be no state.
    """

    readout: str = "labels"
    true_first: bool = False
    letters: bool = False
    spelled: bool = False
    rated: bool = False
    sorts_keys: bool = False
    sorts_options: bool = False
    lists_all: bool = False
    null_state: bool = False


RULES = {
    "openjev": Rules(true_first=True, letters=True),
    "lev": Rules(rated=True, sorts_keys=True),
    "nimble": Rules(lists_all=True),
    "pplx-decider": Rules(),
    "lfm2-d1": Rules(true_first=True, spelled=True, null_state=True),
    "kev": Rules("pointer"),
    "laya": Rules("marks"),
    "lfm2-d1-omni": Rules("marks", null_state=True),
    "clef": Rules("joint", true_first=True, sorts_keys=True, sorts_options=True, lists_all=True),
}

LEV_BUCKETS = ((8, "small"), (26, "mid"))
BUCKETS = ((2, "2"), (5, "3_5"), (10, "6_10"))


def bucket(n: int, kind: str = "") -> str:
    """The bucket of a number of options, by which files state temperatures."""
    for most, name in LEV_BUCKETS if kind == "lev" else BUCKETS:
        if n <= most:
            return name
    return "large" if kind == "lev" else "11"


def temperature(temperatures: dict[str, float], question: Question, kind: str = "") -> float:
    """The temperature of a question: of its type and bucket, else of its type, else 1."""
    own = f"{question.type}.{bucket(len(question.options), kind)}"
    return temperatures.get(own, temperatures.get(question.type, 1.0))


def model_order(rules: Rules, question: Question) -> Question:
    """A question with its options in the order in which the model is asked."""
    options: Iterable[Option] = question.options
    if question.type == "noul" and not rules.true_first:
        options = reversed(question.options)
    if question.type == "choice" and rules.sorts_options:
        options = sorted(options, key=lambda option: option.key.encode())
    return question.ordered(options)


def single(tokenizer: Tokenizer, text: str) -> int | None:
    """The token that a text is encoded to; None for several."""
    ids = tokenizer.encode(text, add_special=False)
    return ids[0] if len(ids) == 1 else None


def codes(tokenizer: Tokenizer, letters: bool) -> dict[str, int]:
    """Labels of options and their tokens, in order: A to Z and a to z, or the codes of one token.

    Raises ConfigError if one of the letters is no token.
    """
    found: dict[str, int] = {}
    for code in [*UPPER, *LOWER] if letters else [*UPPER, *PAIRS]:
        token = single(tokenizer, code)
        if token is not None:
            found[code] = token
        elif letters:
            raise ConfigError(
                f"model: expected each letter to be a token of its vocabulary, {code!r} is none"
            )
    return dict(list(found.items())[:MOST_CODES])


def spelled_labels(tokenizer: Tokenizer, question: Question) -> tuple[list[str], Labels]:
    """The label that each option is shown with, and its tokens, of LFM2-D1.

    Raises ConfigError if the vocabulary has too few labels of one token.
    """
    options = question.options
    if question.type == "noul":
        words = (("yes", "Yes", "YES"), ("no", "No", "NO"))
        groups = [
            [token for word in each if (token := single(tokenizer, word)) is not None] for each in words
        ]
        if not all(groups):
            raise ConfigError("model: expected yes and no to be tokens of its vocabulary")
        return [option.key for option in options], groups
    if question.type == "score":
        digits = [single(tokenizer, option.key) for option in options]
        if None in digits:
            raise ConfigError("model: expected each digit to be a token of its vocabulary")
        return [option.key for option in options], [[digit] for digit in digits if digit is not None]
    keys = [option.key for option in options]
    if all(len(key) == 1 and key in string.ascii_letters for key in keys):
        wanted = keys
    else:
        wanted = (
            list(UPPER[: len(keys)]) if len(keys) <= len(UPPER) else [*TWO_DIGITS, *others()][: len(keys)]
        )
    free, used = others(), set[int]()
    labels, groups = [], []
    for code in wanted:
        token = single(tokenizer, code)
        while token is None or token in used:
            code = next(free, "")
            if not code:
                raise ConfigError(
                    f"questions.{question.id}: expected fewer options, the model has too few labels"
                )
            token = single(tokenizer, code)
        used.add(token)
        spaced = single(tokenizer, f" {code}")
        labels.append(code)
        groups.append([token] if spaced is None else [token, spaced])
    return labels, groups


def others() -> Iterator[str]:
    """Labels in place of those that are no token."""
    yield from [*UPPER, *TWO_DIGITS, *LOWER, *(f"#{i}" for i in range(200)), *PAIRS]
