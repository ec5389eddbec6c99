"""Decisions of an engine: a request of the scheduler for each prompt, all submitted together.

The prompts of a request begin alike (the state, or all questions), and that beginning is run once. Prompts
of models that read only some positions are kept in the prefix cache, too, so that the next questions about
the same state cost their own tokens alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypedDict, Unpack

import numpy as np

from oxillama.base.config import checks
from oxillama.base.config.adapters import Adapters
from oxillama.engine.features.decisions.answers import (
    Decision,
    answer_of,
    exact_exp,
    in_order,
    softmax,
)
from oxillama.engine.features.decisions.chat_prompts import READOUTS, ChatPrompts
from oxillama.engine.features.decisions.pictures import ShownMedia, taken
from oxillama.engine.features.decisions.prompts import Prompts, Task, n_same
from oxillama.engine.features.decisions.questions import (
    Question,
    check_texts,
    checked_questions,
    plain_json,
)
from oxillama.engine.features.decisions.rules import Rules, model_order, temperature
from oxillama.engine.features.embeddings import Embedding, EmbeddingRequest, embedding_request
from oxillama.engine.features.shared_prompts import share_prompt
from oxillama.engine.loading import LoadedModel, listed
from oxillama.engine.sampling.logprobs import token_logprobs
from oxillama.engine.sequence import Output
from oxillama.errors import ConfigError
from oxillama.models.weights.linear import panels_in_use

LEAST_MASS = 0.1
"""The labels' share of the probability below which an answer is warned of."""

Asked = tuple[Any, ...]
"""A state and the questions about it; and `pictures.Media` of placeholders in them, if no parts are media."""


@dataclass(frozen=True)
class DecisionOptions:
    """Options of decisions.

    Attributes:
        special_in_content: names of control tokens in the user's texts are these tokens, as in llama.cpp.
        orders: of a choice's options, whose probabilities are averaged, for chat models; None for two: as
            given and reversed.
        readout: what chat models are read at: whole "names" of options, or their "labels"; None for names.
        confidence: "peak" or "entropy" (`answers.CONFIDENCES`).
        temperatures: in place of the file's; keys as in its metadata: "choice", "choice.3_5".
        adapters: as in `GenerationOptions`.
        tenant: as in `GenerationOptions`.
        salt: as in `GenerationOptions`.
    """

    special_in_content: bool = False
    orders: int | None = None
    readout: str | None = None
    confidence: str = "peak"
    temperatures: Mapping[str, float] | None = None
    adapters: Adapters = None
    tenant: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        checks.boolean("special_in_content", self.special_in_content)
        checks.one_of("confidence", self.confidence, ("peak", "entropy"))
        if self.readout is not None:
            checks.one_of("readout", self.readout, READOUTS)
        if self.orders is not None:
            checks.integer("orders", self.orders, 1, 255)
        for name, value in checks.instance("temperatures", self.temperatures or {}, Mapping).items():
            checks.number(f"temperatures.{name}", value, 1e-3, 1e3)

    def tasks(
        self, prompts: Prompts | ChatPrompts, state: Any, questions: Sequence[Question], **media: Any
    ) -> list[Task]:
        """The prompts of a request; ``media`` as for `ChatPrompts.tasks`. Raises as ``prompts.tasks``."""
        return prompts.tasks(
            state,
            questions,
            special_in_content=self.special_in_content,
            orders=self.orders,
            readout=self.readout,
            **media,
        )


class DecisionFields(TypedDict, total=False):
    """The fields of `DecisionOptions`."""

    special_in_content: bool
    orders: int | None
    readout: str | None
    confidence: str
    temperatures: Mapping[str, float] | None
    adapters: Adapters
    tenant: str
    salt: str


class DecisionRooms:
    """What decisions keep of a model: what makes its prompts. Models without a decision head are chat models.

    Raises ConfigError for an encoder, and for a kind that is not known; ChatTemplateError for a file without
    the template.
    """

    def __init__(self, model: LoadedModel) -> None:
        head = model.spec.decision
        self.prompts: Prompts | ChatPrompts
        self.prompts = ChatPrompts(model.tokenizer) if head is None else Prompts(model.tokenizer, head)
        self.temperatures: dict[str, float] = {} if head is None else dict(head.temperatures)
        if self.rules.readout == "labels":
            model.runner.check_logits()

    @property
    def rules(self) -> Rules:
        """The rules of the model's kind."""
        return self.prompts.rules


class Reading(Embedding):
    """A prompt that is being run, and the scores that are read of it: float (options,), and for labels their
    share of all tokens behind them."""

    def _found(self) -> np.ndarray:
        if self._result is None and self.request.error is not None:  # several may wait for this reading
            raise self.request.error
        return super()._found()

    @property
    def request(self) -> EmbeddingRequest:
        """The request of the scheduler."""
        request: EmbeddingRequest = self._request  # type: ignore[assignment]
        return request


Read = tuple[list[np.ndarray], list[float], list[list[int] | None]]
"""Of a question: the scores of each of its prompts, the share of its labels, and the order of its options."""


@dataclass
class Deciding:
    """The questions of one request while they are being answered.

    Attributes:
        temperatures: of the model's file.
        readings: of each task.
        media: of the request, for whose placeholders see `state` and `questions`; None without media.
    """

    prompts: Prompts | ChatPrompts
    temperatures: Mapping[str, float]
    options: DecisionOptions
    state: Any
    questions: list[Question]
    tasks: list[Task]
    readings: list[Reading] = field(default_factory=list)
    media: ShownMedia | None = None

    @property
    def rules(self) -> Rules:
        """The rules of the model's kind."""
        return self.prompts.rules

    def result(self) -> Decision:
        """The answers, with a warning for each that hardly is one. Raises what the model raised, and
        SamplingError for scores that are no numbers."""
        return self.warned(self.decision([reading.result() for reading in self.readings]))

    def warned(self, decision: Decision) -> Decision:
        """Warns where a chat model would rather have said something else than one of the labels."""
        for question, answer in zip(self.questions, decision.answers):
            mass = answer.label_mass
            if decision.kind == ChatPrompts.kind and mass is not None and mass < LEAST_MASS:
                labels = f"the labels have less than {LEAST_MASS} of the model's probability (label_mass)"
                warnings.warn(f"questions.{question.id}: {labels}", stacklevel=4)  # once for many requests
        return decision

    def decision(self, found: Sequence[np.ndarray]) -> Decision:
        """The answers, from what the readings found."""
        n_input = sum(len(task.tokens) for task in self.tasks)
        n_cached = sum(reading.request.n_cached for reading in self.readings)
        answers = []
        for question, read in zip(self.questions, self.read(found)):
            scores, masses, _ = read
            t = self.temperature(question)
            p, mass = self.shares(question, read, t), in_order(masses) / len(masses) if masses else None
            raw = [values.tolist() for values in scores]
            answers.append(answer_of(question, p, raw, t, mass, self.options.confidence))
        return Decision(tuple(answers), self.prompts.kind, n_input, n_cached)

    def read(self, found: Sequence[np.ndarray]) -> list[Read]:
        """What was read of each question."""
        reads, at = [], 0
        for i, question in enumerate(self.questions):
            raw = [(task, values) for task, values in zip(self.tasks, found) if i in task.questions]
            if self.rules.readout == "joint":
                n = len(question.options)
                raw = [(raw[0][0], raw[0][1][at : at + n])]
                at += n
            reads.append(variants(raw, self.rules.readout == "labels"))
        return reads

    def temperature(self, question: Question) -> float:
        """The divisor of a question's scores."""
        given = self.options.temperatures
        return temperature(dict(self.temperatures if given is None else given), question, self.prompts.kind)

    def shares(self, question: Question, read: Read, t: float) -> list[float]:
        """The probabilities of a question's options at a temperature."""
        scores, _, orders = read
        shares: list[list[float]] = [[] for _ in scores[0]]
        for values, order in zip(scores, orders):
            for place, share in enumerate(softmax(values, t)):
                shares[place if order is None else order[place]].append(share)
        p = [math.fsum(each) / len(each) for each in shares]
        if question.type == "noul" and self.rules.rated:
            yes = in_order([share * i / (len(p) - 1) for i, share in enumerate(p)])
            return [yes, 1 - yes]
        asked = [option.value for option in model_order(self.rules, question).options]
        return [p[place_of(asked, option.value)] for option in question.options]


def variants(raw: list[tuple[Task, np.ndarray]], has_mass: bool) -> Read:
    """What was read of a question. The texts of options that are read one by one are one prompt."""
    scores: list[np.ndarray] = []
    masses: list[float] = []
    orders: list[list[int] | None] = []
    for _, group in groupby(raw, key=lambda pair: pair[0].variant):
        parts = list(group)
        task, values = parts[0]
        if task.forced:
            values = np.concatenate([each for _, each in parts])
            masses.append(in_order([exact_exp(float(value)) for value in values]))
        elif has_mass:
            masses.append(float(values[-1]))
            values = values[:-1]
        scores.append(values)
        orders.append(task.order)
    return scores, masses, orders


def place_of(values: Sequence[Any], wanted: Any) -> int:
    """The place of a value among others; True is not 1."""
    return next(i for i, value in enumerate(values) if value == wanted and type(value) is type(wanted))


def started(
    model: LoadedModel, requests: Iterable[Asked], **options: Unpack[DecisionFields]
) -> list[Deciding]:
    """`decide` with the fields of `DecisionOptions`."""
    return decide(model, requests, DecisionOptions(**options))


def decide(model: LoadedModel, asked: Iterable[Asked], options: DecisionOptions) -> list[Deciding]:
    """Starts to answer the questions of some requests; all prompts of all requests run together.

    Raises:
        ConfigError: the model is no decision model, or a question or an option is not valid; the message says
            which.
        MediaError: a picture or a sound cannot be decoded.
        PromptError: a prompt is too long.
        TokenizerError: a text is not valid unicode.
    """
    made = [prepared(model, one, options) for one in listed(asked, "requests")]
    for one in made:
        one.readings = readings_of(model, one, one.tasks)
    submit(model, [reading for one in made for reading in one.readings])
    return made


def prepared(model: LoadedModel, asked: Asked, options: DecisionOptions) -> Deciding:
    """The questions of a request and their prompts, of which none runs yet. Raises as `decide`."""
    room: DecisionRooms = model.feature("decision prompts")
    state, questions, media = asked if len(asked) == 3 else (*asked, None)
    checked = checked_questions(questions)
    if media is None:
        state, checked, media = taken(state, checked)
    check_texts(checked)
    found = partial(Deciding, room.prompts, room.temperatures, options, plain_json("state", state), checked)
    if not media:
        return found(options.tasks(room.prompts, state, checked))
    if not isinstance(room.prompts, ChatPrompts):
        where, kind = next(iter(media.values())).where, room.prompts.kind
        raise ConfigError(f"{where}: models of {kind} take no pictures and sounds here")
    shown = ShownMedia(model, media, state, checked)
    tasks = options.tasks(room.prompts, shown.state, shown.questions, media=shown.held)
    for task in tasks:
        model.prompt_tokens(task.tokens)  # before a medium is encoded
    laid = {id(task.laid): task.laid for task in tasks if task.laid is not None}
    filled = {key: shown.held.filled(*each).embeddings for key, each in laid.items()}
    for task in tasks:
        task.embeddings = filled.get(id(task.laid))
    return found(tasks, media=shown)


def submit(model: LoadedModel, readings: Iterable[Reading]) -> None:
    """Runs prompts together."""
    requests = [reading.request for reading in readings]
    if requests:
        model.thread.submit(*requests, limited=False)


def read_once(model: LoadedModel, one: Deciding, known: dict[str, Reading]) -> None:
    """Takes the readings of prompts that are among the ``known`` ones, and adds the others to these; `submit`
    then runs all of them. The options must have the same adapters, tenant and salt. Raises PromptError."""
    keys = [repr((task.path, places_of(one, task))) for task in one.tasks]
    fresh = {key: task for key, task in zip(keys, one.tasks) if key not in known}
    if fresh:
        known.update(zip(fresh, readings_of(model, one, [*fresh.values()])))
    one.readings = [known[key] for key in keys]


def readings_of(model: LoadedModel, one: Deciding, tasks: Sequence[Task]) -> list[Reading]:
    """Some prompts of a request; what they have in common runs once."""
    readout = one.rules.readout
    shares = readout in ("labels", "pointer")
    size, n_kept = model.pool.page_size, 0
    model.feature("shared prompts")
    if shares and model.pool.recurrent_states is not None:  # a state is kept where questions begin
        end = state_end(one, tasks[0])
        n_kept = min(end, tasks[0].least_own) // size * size
    requests = []
    for task in tasks:
        tokens = model.prompt_tokens(task.tokens)
        adapted = model.adaptation(one.options.adapters, tokens)
        kind: dict[str, Any] = {"last": bool(task.labels), "tenant": one.options.tenant}
        kind["key"] = model.prefix_key(one.options.salt) if shares else None
        read = reader(model, one, task)
        request = embedding_request(model, tokens, read, adapted, input_embeddings=task.embeddings, **kind)
        request.kept_after = n_kept
        if task.labels:
            request.output = Output.LAST_LOGITS
        if task.forced or readout == "pointer":
            request.first_wanted = task.least_own
        requests.append(request)
    alike = all(request.sequence.adapters == requests[0].sequence.adapters for request in requests)
    if shares and alike and len(requests) > 1:
        n_shared = shared_tokens(tasks)
        near = n_kept <= n_shared < n_kept + size  # then a pass less is worth more than these tokens
        share_prompt(requests, n_kept if near and n_kept else n_shared)
        for _, group in groupby(zip(tasks, requests), lambda pair: pair[0].group):
            alternatives = list(group)  # texts of options behind the same prompt
            n_shared = shared_tokens([task for task, _ in alternatives])
            share_prompt([request for _, request in alternatives], n_shared)
    return [Reading(model, request) for request in requests]


def state_end(one: Deciding, task: Task) -> int:
    """How many tokens of a prompt any question about the same state begins with, too."""
    special = one.options.special_in_content
    if one.media is None or not isinstance(one.prompts, ChatPrompts):
        return one.prompts.state_end(one.state, task, special)
    return one.prompts.state_end(one.media.state, task, special, one.media.held)


def shared_tokens(tasks: Sequence[Task]) -> int:
    """How many tokens all prompts begin with alike, before the first one that is read."""
    n = min(task.least_own for task in tasks)
    first = tasks[0].path
    return min([n, *(n_same(first, task.path) for task in tasks[1:])])


def reader(model: LoadedModel, one: Deciding, task: Task) -> Any:
    """What makes the scores of a prompt of its rows; the engine thread calls it."""
    n_vocab = model.tokenizer.n_vocab
    if task.labels:
        return lambda rows: label_scores(rows[-1, :n_vocab], task, model)
    if task.forced:
        return lambda rows: text_score(rows[-len(task.forced) :], task, model)
    places = places_of(one, task)
    if one.rules.readout == "pointer":  # rows of what was cached are missing at the beginning
        places["marks"] = [mark - len(task.tokens) for mark in task.marks]
    return partial(head_scores, model=model, **places)


def places_of(one: Deciding, task: Task) -> dict[str, Any]:
    """Where a model's head finds questions and options in a prompt; of other models the labels of options, or
    the text that is read."""
    questions = [one.questions[i] for i in task.questions]
    if one.rules.readout == "joint":
        return {
            "tokens": task.tokens,
            "kinds": [question.type for question in questions],
            "questions": task.question_spans,
            "options": task.option_spans,
            "n_options": [len(question.options) for question in questions],
        }
    if one.rules.readout == "labels":
        n_vocab = one.prompts.tokenizer.n_vocab
        return {"forced": task.forced, "n_vocab": n_vocab} if task.forced else {"labels": task.labels}
    kind = {"kind": questions[0].type} if one.rules.readout == "marks" else {}
    return {"marks": task.marks, **kind}


def head_scores(rows: np.ndarray, model: LoadedModel, **places: Any) -> np.ndarray:
    """float32 (options,): the scores of the model's head, ``places`` are arguments of its ``run``.

    Args:
        rows: float32 (tokens, n_embd), hidden states after the last norm.
    """
    decoder = model.runner.model
    with panels_in_use(decoder.store):
        scores: np.ndarray = decoder.decision_head.run(rows, n_threads=model.runner.n_threads, **places)
    return scores


def label_scores(logits: np.ndarray, task: Task, model: LoadedModel) -> np.ndarray:
    """float64 (options + 1,): the largest logit of each option's labels, and the labels' share of all tokens.

    Args:
        logits: float32 (vocab,).
    """
    scores = [float(logits[group].max()) for group in task.labels]
    tokens = list(dict.fromkeys(token for group in task.labels for token in group))
    of_first = token_logprobs(logits, tokens[0], kernels=model.kernels).logprob
    differences = [float(logits[token]) - float(logits[tokens[0]]) for token in tokens]
    mass = in_order([exact_exp(of_first + difference) for difference in differences])
    return np.array([*scores, mass], np.float64)


def text_score(rows: np.ndarray, task: Task, model: LoadedModel) -> np.ndarray:
    """float64 (1,): the log-probability of a text behind its prompt, rounded to float32.

    Args:
        rows: float32 (tokens, n_embd), the hidden states before each token of the text.
    """
    logits = model.runner.logits(np.ascontiguousarray(rows))[:, : model.tokenizer.n_vocab]
    found = [
        token_logprobs(np.ascontiguousarray(row), token, kernels=model.kernels).logprob
        for row, token in zip(logits, task.forced, strict=True)
    ]
    return np.array([np.float32(in_order(found))], np.float64)
