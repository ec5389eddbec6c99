"""Answers, and how they follow from raw scores.

p_i = exp((s_i - max s) / T) / sum, with raw scores and their differences in float32 and the rest in float64,
summed in the order of the options. Exponentials are rounded correctly, so that the same scores are the same
probabilities on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np

from oxillama.base.config import checks
from oxillama.engine.features.decisions.questions import Question
from oxillama.errors import SamplingError

EXACT = Context(prec=40, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6)
LEAST = -746.0
"""exp of anything below is 0 in float64."""


@dataclass(frozen=True)
class Answer:
    """What all answers have.

    Attributes:
        name: of the question; None without one.
        scores: raw scores (float32) of each prompt of the question, in the order in which the model gave
            them.
        temperature: that scores were divided by.
        label_mass: the share that the model gives to the labels among all tokens; None for a model with a
            head. A small one says that the model would rather have said something else.
    """

    name: str | None
    scores: tuple[tuple[float, ...], ...]
    temperature: float
    label_mass: float | None


@dataclass(frozen=True)
class PredicateAnswer(Answer):
    """The probability of yes."""

    probability: float


@dataclass(frozen=True)
class ChoiceAnswer(Answer):
    """The likeliest option, all with their probabilities in the order asked, and the `confidence`."""

    choice: str | bool
    probabilities: tuple[tuple[str | bool, float], ...]
    confidence: float


@dataclass(frozen=True)
class ScoreAnswer(Answer):
    """The mean level, the probability and the description (``legend``) of each level, the `confidence`."""

    score: float
    probabilities: tuple[float, ...]
    legend: tuple[Any, ...]
    confidence: float


AnyAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Decision:
    """The answers to the questions of a request, in their order.

    Attributes:
        kind: of the decision model.
        n_input: tokens of all prompts of the request; a beginning that prompts share counts for each.
        n_cached: those that were not run, because another prompt had run them.
    """

    answers: tuple[AnyAnswer, ...]
    kind: str
    n_input: int
    n_cached: int

    def __getitem__(self, name: str | int) -> AnyAnswer:
        """An answer by the name of its question (the first of that name), or by its number."""
        if isinstance(name, int):
            return self.answers[name]
        for answer in self.answers:
            if answer.name == name:
                return answer
        raise KeyError(name)


def exact_exp(x: float) -> float:
    """exp(x) in float64, rounded correctly."""
    return float(EXACT.exp(Decimal(x))) if x > LEAST else 0.0


def softmax(scores: Sequence[float] | np.ndarray, temperature: float) -> list[float]:
    """Probabilities of raw scores. Raises SamplingError if the largest score is no finite number."""
    raw = np.asarray(scores, np.float32)
    top = raw.max()
    if not np.isfinite(top):
        raise SamplingError(f"scores: expected numbers, got {checks.shown(raw.tolist())}")
    divisor = float(np.float32(temperature))
    weights = [exact_exp(float(difference) / divisor) for difference in raw - top]
    total = in_order(weights)
    return [weight / total for weight in weights]


def in_order(values: Sequence[float]) -> float:
    """The sum of numbers, from the first to the last. (``sum`` compensates from Python 3.12 on.)"""
    total = 0.0
    for value in values:
        total += value
    return total


def peak_of_choice(p: Sequence[float]) -> float:
    """How far the likeliest option is above an equal share: 0 to 1."""
    n = len(p)
    return 1.0 if n < 2 else max(0.0, (max(p) - 1 / n) / (1 - 1 / n))


def peak_of_score(p: Sequence[float]) -> float:
    """1 - (mean distance from the likeliest level) / (mean distance with equal shares); at least 0."""
    n, top = len(p), p.index(max(p))
    if n < 2:
        return 1.0
    distance = in_order([each * abs(i - top) for i, each in enumerate(p)])
    usual = in_order([abs(i - (n - 1) / 2) for i in range(n)]) / n
    return max(0.0, 1 - distance / usual)


def entropy_confidence(p: Sequence[float]) -> float:
    """1 - entropy / ln n."""
    if len(p) < 2:
        return 1.0
    entropy = in_order([-each * exact_log(each) for each in p if each > 0])
    return min(1.0, max(0.0, 1 - entropy / exact_log(len(p))))


def exact_log(x: float) -> float:
    """ln(x) in float64, rounded correctly."""
    return float(EXACT.ln(Decimal(x)))


CONFIDENCES: dict[str, tuple[Callable[[Sequence[float]], float], Callable[[Sequence[float]], float]]] = {
    "peak": (peak_of_choice, peak_of_score),
    "entropy": (entropy_confidence, entropy_confidence),
}
"""By name, of a choice and of a score: "peak" as TypeSafe and llama.cpp, "entropy" as Ollama."""


def answer_of(
    question: Question,
    p: Sequence[float],
    scores: Sequence[Sequence[float]],
    temperature: float,
    label_mass: float | None,
    confidence: str,
) -> AnyAnswer:
    """The answer to a question.

    Args:
        p: probabilities in the order of the question's options; a predicate's first option is yes.
    """
    of_choice, of_score = CONFIDENCES[checks.one_of("confidence", confidence, CONFIDENCES)]
    same = (question.name, tuple(map(tuple, scores)), temperature, label_mass)
    if question.type == "noul":
        return PredicateAnswer(*same, p[0])
    if question.type == "choice":
        values = [option.value for option in question.options]
        best = values[list(p).index(max(p))]
        return ChoiceAnswer(*same, best, tuple(zip(values, p)), of_choice(p))
    mean = in_order([i * each for i, each in enumerate(p)])
    legend = tuple(option.description for option in question.options)
    return ScoreAnswer(*same, mean, tuple(p), legend, of_score(p))
