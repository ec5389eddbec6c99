"""Receipts of decisions: everything that determines the answers to a request, as JSON, to be checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from oxillama.apps.decisions.files import FORMAT
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.decisions.answers import Decision
from oxillama.engine.features.decisions.chat_prompts import VERSION as CHAT_VERSION, ChatPrompts
from oxillama.engine.features.decisions.deciding import (
    Deciding,
    DecisionOptions,
    Reading,
    places_of,
    prepared,
    read_once,
    submit,
)
from oxillama.engine.features.decisions.prompts import Prompts
from oxillama.engine.features.decisions.questions import (
    AnyQuestion,
    Choice,
    Predicate,
    Question,
    Score,
    checked_questions,
)
from oxillama.engine.features.media.parts import Placed
from oxillama.errors import ConfigError, OxiLlamaError, ReceiptError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.decode import Picture, read_medium
from oxillama.sessions.receipt import OfEngine, from_json
from oxillama.text.chat.bridge import TokenizerBridge

VERSION = 1
OF_MEDIA = ("media", "projector", "preprocessing")
"""Fields of receipts with media."""


@dataclass(frozen=True, kw_only=True)
class DecisionReceipt(OfEngine):
    """Everything that determines the answers to a request. The fields are the keys of the JSON object.

    Attributes:
        library, model, compute, quantize, kv_type, context_size: as in `Receipt`.
        kind: of the decision model, or "chat".
        template: SHA-256 of the chat template and the version of our wording.
        calibration: SHA-256 of its file; None without one.
        options: fields of `DecisionOptions` that answers depend on.
        request: the state and the questions.
        tokens: ids of each prompt.
        scores: raw scores of each question and prompt.
        answers: fields of the answers.
        seal: SHA-256 of all other fields.
        media: the hashes of the decoded pixels or samples, by the placeholders of the request, in order.
        projector, preprocessing: as in `Receipt`.
    """

    library: str
    model: str
    compute: str
    quantize: str | None
    kv_type: str
    context_size: int
    kind: str
    template: str
    calibration: str | None
    options: dict[str, Any]
    request: dict[str, Any]
    tokens: list[list[int]]
    scores: list[list[list[float]]]
    answers: list[dict[str, Any]]
    seal: str = ""
    media: dict[str, Any] = field(default_factory=dict)
    projector: str | None = None
    preprocessing: int = 1

    @classmethod
    def of(
        cls,
        engine: InferenceEngine,
        state: Any,
        asked: Deciding,
        decision: Decision,
        calibration: str | None = None,
    ) -> DecisionReceipt:
        """The receipt of answers. Raises ConfigError for an engine with adapters, or files it cannot name."""
        return sealed(cls.unsealed(engine, state, asked, decision, calibration))

    @classmethod
    def unsealed(
        cls, engine: InferenceEngine, state: Any, asked: Deciding, decision: Decision, calibration: str | None
    ) -> DecisionReceipt:
        """`of` without a seal."""
        config = engine.config
        if config.tokenizer_path is not None or config.chat_template is not None or config.adapters:
            raise ConfigError("receipts: cannot be combined with tokenizer_path, chat_template or adapters")
        return cls(
            **cls.facts(engine.model.fingerprint, config, engine.context_size),
            calibration=calibration,
            **stated(state, asked, decision),
        )

    @property
    def decision_options(self) -> DecisionOptions:
        """The options of the request. Raises ConfigError for others than there are."""
        known = {each.name for each in fields(DecisionOptions)}
        if not self.options.keys() <= known:
            raise ConfigError(
                f"options: expected among {', '.join(sorted(known))}, got {sorted(self.options)}"
            )
        return DecisionOptions(**self.options)

    def differences(self, other: DecisionReceipt) -> list[str]:
        """The names of the fields that differ, without the library's version and the seal."""
        mine, others = self.texts(), other.texts()
        names = (name for name in {**mine, **others} if name not in ("library", "seal"))
        return [name for name in names if mine.get(name) != others.get(name)]

    def texts(self) -> dict[str, str]:
        """The JSON of each field, for media only where there are some: 1, 1.0 and true are three values."""
        has_media = (self.media, self.projector, self.preprocessing) != ({}, None, 1)
        names = [each.name for each in fields(self) if has_media or each.name not in OF_MEDIA]
        return {name: json.dumps(getattr(self, name), ensure_ascii=False) for name in names}

    # --- JSON -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The receipt as JSON text, one line for each field. Floats are written exactly, as repr."""
        head = {"format": json.dumps(FORMAT), "version": json.dumps(VERSION)}
        lines = [f"  {json.dumps(name)}: {text}" for name, text in {**head, **self.texts()}.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the text of `to_json`. Raises ReceiptError if it is not such a receipt, or was changed."""
        found: Self = from_json(cls, text, "receipt", FORMAT, VERSION)
        if sealed(found).seal != found.seal:
            raise ReceiptError("receipt: its seal does not fit, it was changed")
        return found


def sealed(receipt: DecisionReceipt) -> DecisionReceipt:
    """The receipt with the seal of its fields."""
    texts = receipt.texts()
    del texts["seal"]
    seal = hashlib.sha256("\n".join(f"{name}: {text}" for name, text in texts.items()).encode()).hexdigest()
    return replace(receipt, seal=seal)


def stated(state: Any, asked: Deciding, decision: Decision) -> dict[str, Any]:
    """The fields of a receipt that follow from the request, in the form in which JSON gives them back."""
    options = asked.options
    given = None if options.temperatures is None else dict(options.temperatures)
    names = ("special_in_content", "orders", "readout", "confidence")
    answers = []
    for answer in decision.answers:
        answers.append(asdict(answer))
        del answers[-1]["scores"]
    wording = f"{CHAT_VERSION if decision.kind == ChatPrompts.kind else ''}\n{asked.prompts.template.source}"
    made = {
        "kind": decision.kind,
        "template": hashlib.sha256(wording.encode("utf-8", "surrogateescape")).hexdigest(),
        "options": {**{name: getattr(options, name) for name in names}, "temperatures": given},
        "request": {"state": state, "questions": [plain(question) for question in asked.questions]},
        "tokens": [task.tokens for task in asked.tasks],
        "scores": [answer.scores for answer in decision.answers],
        "answers": answers,
    }
    if asked.media is not None:
        embeddings = next(task.embeddings for task in asked.tasks if task.embeddings is not None)
        made |= {"media": asked.media.digests, "projector": embeddings.projector().hex()}
        made["preprocessing"] = embeddings.preprocessing
    found: dict[str, Any] = json.loads(json.dumps(made))
    return found


def plain(question: Question) -> dict[str, Any]:
    """A question as JSON, from which `question_of` makes it again."""
    options = [[option.value, option.description] for option in question.options]
    return {
        "id": question.id,
        "name": question.name,
        "type": question.type,
        "instructions": question.instructions,
        "options": options,
    }


def question_of(value: Any) -> AnyQuestion:
    """The question of `plain`. Raises ReceiptError."""
    try:
        name, instructions, options = value["name"], value["instructions"], value["options"]
        pairs = [(option, description) for option, description in options]
        if value["type"] == "choice":
            return Choice(instructions, pairs, name)
        if value["type"] == "score":
            return Score(instructions, [description for _, description in pairs], name)
        (_, yes), (_, no) = pairs
        return Predicate(instructions, yes, no, name)
    except (KeyError, TypeError, ValueError) as error:
        raise ReceiptError(f"receipt: request: expected questions: {error!r:.200}") from None


def asked_again(receipt: DecisionReceipt) -> tuple[Any, list[AnyQuestion]]:
    """The state and the questions of a receipt. Raises ReceiptError."""
    request = receipt.request
    if request.keys() != {"state", "questions"} or not isinstance(request["questions"], list):
        raise ReceiptError("receipt: request: expected a state and questions")
    return request["state"], [question_of(value) for value in request["questions"]]


def claimed_rows(asked: Deciding, scores: Any) -> list[np.ndarray]:
    """What the prompts of a request gave, by the scores of its receipt, with 0 for the labels' share.

    Raises ReceiptError for scores that do not belong to these prompts.
    """
    readout, rows = asked.rules.readout, []
    try:
        left = [iter([score for variant in of_question for score in variant]) for of_question in scores]
        for task in asked.tasks:
            row: list[float] = []
            for i in task.questions:
                n = len(asked.questions[i].options) if readout == "joint" else len(task.labels or task.marks)
                row += [next(left[i]) for _ in range(n or 1)]  # a text has one
            rows.append(np.array([*row, 0.0] if task.labels else row, np.float64))
    except (TypeError, ValueError, IndexError, StopIteration) as error:
        raise ReceiptError(f"receipt: scores: expected those of its prompts: {error!r:.100}") from None
    return rows


def take_masses(answers: Sequence[dict[str, Any]], asked: Deciding, receipt: DecisionReceipt) -> None:
    """Gives answers that were read at labels of one token the labels' share of their receipt."""
    labelled = {i for task in asked.tasks if task.labels for i in task.questions}
    for i in labelled & set(range(len(receipt.answers))):
        answers[i]["label_mass"] = receipt.answers[i].get("label_mass")


def with_media(receipt: DecisionReceipt, media: Sequence[Any]) -> dict[str, Placed]:
    """The media of a receipt, from their files in order. Raises ConfigError for another number of them."""
    if len(media) != len(receipt.media):
        raise ConfigError(f"media: expected {len(receipt.media)} as in the receipt, got {len(media)}")
    found = {}
    for i, (name, source) in enumerate(zip(receipt.media, map(read_medium, media))):
        kind = "image" if isinstance(source, Picture) else "audio"
        found[name] = Placed(f"media[{i}]", {"type": kind, kind: source}, f"media[{i}]")
    return found


def verify_decisions(
    engine: InferenceEngine,
    receipts: Sequence[DecisionReceipt],
    run: Collection[int] | None = None,
    media: Sequence[Any] = (),
) -> list[list[str] | OxiLlamaError]:
    """Answers all requests again, together; for each the names of the fields that differ from its receipt, or
    why it cannot be answered.

    Prompts that are the same run once; others begin with what the prefix cache of the engine has. The engine
    must have the `DecisionReceipt.engine_options`.

    Args:
        run: numbers of the receipts whose prompts run; None for all. Of the others the prompts are made, and
            the answers follow from the scores that the receipt claims: those, and the labels' share, are not
            checked.
        media: the pictures and sounds of each receipt, in order.
    """
    started: list[Deciding | OxiLlamaError] = []
    readings: dict[str, Reading] = {}
    drawn = range(len(receipts)) if run is None else run
    for i, receipt in enumerate(receipts):
        try:
            request = *asked_again(receipt), with_media(receipt, media)
            one = prepared(engine.model, request, receipt.decision_options)
            if i in drawn:
                read_once(engine.model, one, readings)
            started.append(one)
        except OxiLlamaError as error:
            started.append(error)
    submit(engine.model, readings.values())
    found: list[list[str] | OxiLlamaError] = []
    for receipt, asked in zip(receipts, started):
        if isinstance(asked, OxiLlamaError):
            found.append(asked)
            continue
        try:
            rows = [reading.result() for reading in asked.readings] or claimed_rows(asked, receipt.scores)
            decision, state = asked.decision(rows), receipt.request["state"]
            again = DecisionReceipt.unsealed(engine, state, asked, decision, receipt.calibration)
            if not asked.readings:
                take_masses(again.answers, asked, receipt)
            found.append(receipt.differences(again))
        except OxiLlamaError as error:
            found.append(error)
    return found


def verify_by_reference(file: ModelFile, receipt: DecisionReceipt) -> list[str]:
    """The names of the fields that differ, by the reference implementation alone.

    It does not state the share of the probability of labels that are one token.

    Raises Unsupported for a model or an option that the reference does not state; ReceiptError, ConfigError.
    """
    from oxillama.models import read_spec
    from oxillama.reference.decoder import ReferenceModel
    from oxillama.reference.source import Unsupported

    content = ModelFingerprint.compute(file).content.hex()
    if content != receipt.model:
        return ["model"]
    if receipt.media:
        raise Unsupported("reference: media: no statement of encoders")
    if receipt.quantize is not None:
        raise Unsupported("reference: quantize: no statement of quantization while a model is loaded")
    tokenizer, head = TokenizerBridge.from_metadata(file.metadata), read_spec(file).decision
    prompts = ChatPrompts(tokenizer) if head is None else Prompts(tokenizer, head)
    state, questions = asked_again(receipt)
    options, checked = receipt.decision_options, checked_questions(questions)
    tasks = options.tasks(prompts, state, checked)
    temperatures = {} if head is None else dict(head.temperatures)
    asked = Deciding(prompts, temperatures, options, state, checked, tasks)
    model = ReferenceModel(file, receipt.compute, receipt.kv_type, context=receipt.context_size)
    rows = [model.decision_scores(np.array(task.tokens), places_of(asked, task)) for task in tasks]
    decision = asked.decision([np.append(row, 0.0) if task.labels else row for row, task in zip(rows, tasks)])
    again = stated(state, asked, decision)
    take_masses(again["answers"], asked, receipt)
    return receipt.differences(replace(receipt, **again))
