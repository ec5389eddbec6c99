"""Prompts of decision models: the file's own template, made into tokens, with the places of options.

llama.cpp reads names of control tokens in a user's text as these tokens. Here they stay text, unless
``special_in_content`` asks for the same tokens as there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oxillama.engine.features.decisions.questions import Option, Question
from oxillama.engine.features.decisions.rules import (
    MOST_CODES,
    RATINGS,
    RULES,
    Labels,
    Rules,
    codes,
    model_order,
    spelled_labels,
)
from oxillama.engine.features.media.parts import Laid
from oxillama.errors import ConfigError
from oxillama.models.sizes import Decision as Head
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.template import ChatTemplate, special_names
from oxillama.text.tokenizer.escapes import NO_NAMES, Escaper

TEMPLATE = "systemone"
"""The name of the template of decisions in a file (``tokenizer.chat_template.systemone``)."""

MAX_DEPTH = 60
"""Levels of JSON."""

NAME = re.compile(r"<\|(\w+)\|>", re.ASCII)
"""Names of control tokens, which Kev and LFM2-D1-Omni never read in a user's text."""

LAYA_OPTION, LAYA_FIXED = 49, 16
"""Tokens of an option, and those that stay for the question."""

OMNI_TOKENS, OMNI_OPTIONS = 16384, 8192
ORDERS = {"noul": 1, "choice": 2, "score": 3}
OPTION_ORDER = 4


@dataclass
class Task:
    """A prompt and how its answer is read.

    Attributes:
        tokens: ids.
        questions: numbers of the questions that it answers: one, or all.
        variant, order: which prompt of its question it is, and the options in the order in which they are
            shown; None for the order of the model's rules.
        forced, option: the last tokens of a text whose probability is read, and the option that it stands
            for.
        labels: tokens of each option, at the last position.
        marks: the place of each option.
        question_spans, option_spans: places of the texts of a joint prompt.
        laid: the places of its media; None without media.
        embeddings: of its media (`InputEmbeddings`), once they are encoded; None without media.
    """

    tokens: list[int]
    questions: list[int]
    variant: int = 0
    order: list[int] | None = None
    forced: list[int] = field(default_factory=list)
    option: int = 0
    labels: Labels = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    question_spans: list[tuple[int, int]] = field(default_factory=list)
    option_spans: list[tuple[int, int]] = field(default_factory=list)
    laid: Laid | None = None
    embeddings: Any = None

    @cached_property
    def path(self) -> list[int]:
        """Tokens that also tell the media of prompts apart."""
        return self.tokens if self.embeddings is None else self.embeddings.marked(self.tokens)

    @property
    def group(self) -> tuple[int, int]:
        """The question, and the order of its options: texts behind one prompt have the same group."""
        return self.questions[0], self.variant

    @property
    def least_own(self) -> int:
        """The first token whose hidden state is read: prompts may share what comes before."""
        return self.marks[0] if self.marks else len(self.tokens) - max(1, len(self.forced))


class Prompts:
    """Makes the prompts of a model.

    Raises ConfigError for a kind that is not known, ChatTemplateError for a file without the template.
    """

    def __init__(self, tokenizer: TokenizerBridge, head: Head) -> None:
        if head.kind not in RULES:
            raise ConfigError(f"model: expected a decision model of {', '.join(RULES)}, got {head.kind!r}")
        self.tokenizer = tokenizer
        self.head = head
        self.kind: str = head.kind
        self.rules: Rules = RULES[head.kind]
        self.template: ChatTemplate = tokenizer.chat_template(TEMPLATE)
        control, marks = special_names(tokenizer.vocab)
        named = [*control, *(mark for mark in marks if mark in self.template.source)]
        self.escaper: Escaper = Escaper(named)
        self._of_kind: Callable[..., list[Task]] = {
            "laya": self._marked,
            "lfm2-d1-omni": self._omni,
            "clef": self._joint,
            "kev": self._marked,
        }.get(head.kind, self._labelled)

    @cached_property
    def codes(self) -> dict[str, int]:
        """Labels of options and their tokens."""
        return codes(self.tokenizer, self.rules.letters)

    @property
    def most_options(self) -> int:
        """Options that a question may have."""
        has_codes = self.rules.readout == "labels" and not self.rules.spelled
        return len(self.codes) if has_codes else MOST_CODES

    def tasks(
        self,
        state: Any,
        questions: Sequence[Question],
        *,
        special_in_content: bool = False,
        orders: int | None = None,
        readout: str | None = None,
    ) -> list[Task]:
        """The prompts of a request, in the order of its questions.

        Raises:
            ConfigError: a question has too many options, or no text where the kind needs one; there is no
                state; there are ``orders`` or a ``readout``, which the kind decides.
            ChatTemplateError: the template refuses the question.
        """
        for name, value in (("orders", orders), ("readout", readout)):
            if value is not None:
                raise ConfigError(f"{name}: expected none for a model of {self.kind}, got {value!r:.100}")
        if state is None and not self.rules.null_state:
            raise ConfigError("state: must be given")
        most = self.most_options
        for question in questions:
            if len(question.options) > most:
                n = len(question.options)
                raise ConfigError(
                    f"questions.{question.id}: expected at most {most} options for this model, got {n}"
                )
        escaper = NO_NAMES if special_in_content else self.escaper

        def clean(value: Any) -> Any:
            return mapped(self._cleaned(value), escaper.escape)

        ordered = [model_order(self.rules, question) for question in questions]
        shown = [self._shown(question, clean) for question in ordered]
        return self._of_kind(clean(state), ordered, shown, clean)

    def _shown(self, question: Question, clean: Callable[[Any], Any]) -> dict[str, Any]:
        """A question as the template's variables have it."""
        options = []
        for option in question.options:
            description = None if option.description is None else clean(option.description)
            options.append({"key": clean(option.key), "description": description})
        if self.rules.readout == "labels":
            spelled = self.rules.spelled
            labels = spelled_labels(self.tokenizer, question)[0] if spelled else list(self.codes)
            for each, label in zip(options, labels):
                each["label"] = label
        found = {"id": clean(question.id), "type": question.type, "options": options}
        return {**found, "instructions": clean(question.instructions)}

    def _cleaned(self, value: Any) -> Any:
        """A user's value as models of the kind are shown it."""
        kind = self.head.kind
        if kind == "kev":
            return NAME.sub("<¦\\1¦>", flat(value))
        if kind == "laya":
            mask = self.tokenizer.vocab.tokens[self._mask]
            return mapped(value, lambda text: text.replace(mask, " "))
        if kind == "lfm2-d1-omni":
            value = mapped(value, lambda text: NAME.sub("<¦\\1¦>", text).replace("<<d1omni:", "<<d1omni "))
        if kind == "clef":
            value = mapped(value, lambda text: text.replace("<<clef:", "<<clef "))
        return key_sorted(value) if self.rules.sorts_keys else value

    @property
    def _mask(self) -> int:
        """The token that marks an option."""
        mask = self.tokenizer.mask_id
        if mask is None:
            raise ConfigError("model: expected a mask token in the vocabulary, got none")
        return mask

    def _render(self, values: Mapping[str, Any]) -> str:
        return self.template.render_values({"images": [], **values})

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=True, escaped=True)

    def _rendered(self, state: Any, shown: Mapping[str, Any], all_shown: Sequence[Any], **more: Any) -> str:
        questions = {"questions": all_shown} if self.rules.lists_all else {}
        return self._render({**shown, "state": state, **questions, **more})

    def state_end(self, state: Any, task: Task, special_in_content: bool = False) -> int:
        """How many tokens of a prompt any question about the same state begins with, too."""
        escaper = NO_NAMES if special_in_content else self.escaper
        options = tuple(Option(key, key, None) for key in ("b", "c"))
        state = mapped(self._cleaned(state), escaper.escape)
        texts = []
        for word in ("a", "z"):
            shown = self._shown(Question(word, None, "choice", word, options), str)
            texts.append(self._rendered(state, shown, [shown]))
        same = texts[0][: n_same(*texts)]
        return n_same(self._encode(same), task.tokens)

    # --- the kinds ----------------------------------------------------------------------------------

    def _labelled(
        self, state: Any, questions: Sequence[Question], shown: Sequence[Any], clean: Callable[[Any], Any]
    ) -> list[Task]:
        tasks = []
        for i, (question, each) in enumerate(zip(questions, shown)):
            labels = self._labels(question)
            tasks.append(Task(self._encode(self._rendered(state, each, shown)), [i], labels=labels))
            if self.rules.rated and question.type == "choice" and len(question.options) > 1:
                other = self._shown(question.ordered(reversed(question.options)), clean)
                tokens = self._encode(self._rendered(state, other, shown))
                order = list(reversed(range(len(question.options))))
                tasks.append(Task(tokens, [i], variant=1, order=order, labels=labels))
        return tasks

    def _labels(self, question: Question) -> Labels:
        if self.rules.spelled:
            return spelled_labels(self.tokenizer, question)[1]
        n = RATINGS if self.rules.rated and question.type == "noul" else len(question.options)
        if n > len(self.codes):
            raise ConfigError(
                f"model: expected {n} labels of one token, its vocabulary has {len(self.codes)}"
            )
        return [[token] for token in list(self.codes.values())[:n]]

    def _marked(
        self, state: Any, questions: Sequence[Question], shown: Sequence[Any], clean: Any
    ) -> list[Task]:
        is_laya, tasks = self.kind == "laya", []
        mark = self._mask if is_laya else self.tokenizer.token_id("<|box_end|>")
        for i, each in enumerate(shown):
            tokens = self._encode(self._rendered(state, each, shown))
            marks = [at for at, token in enumerate(tokens) if token == mark]
            task = Task(tokens, [i], marks=_checked_marks(marks, questions[i]))
            tasks.append(self._cut_laya(i, tokens, task.marks) if is_laya else task)
        return tasks

    def _cut_laya(self, i: int, tokens: list[int], marks: list[int]) -> Task:
        """[CLS] question [SEP] options [SEP] state [SEP], with question and options cut to their room."""
        sep, most, n = self.tokenizer.sep_id, self.head.head_tokens, len(marks)
        if marks[0] < 2 or tokens[marks[0] - 1] != sep or sep not in tokens[marks[-1] :]:
            raise ConfigError("model: expected its template to put separators around options")
        end = tokens.index(sep, marks[-1])
        options = [tokens[first:last][:LAYA_OPTION] for first, last in zip(marks, [*marks[1:], end])]
        if sum(map(len, options)) + LAYA_FIXED > most:
            room = max(4, (most - min(most, LAYA_FIXED)) // n)
            options = [option[:room] for option in options]
        room = max(8, most - min(most, sum(map(len, options))))
        cut = [tokens[0], *tokens[1 : marks[0] - 1][:room], sep]
        places = []
        for option in options:
            places.append(len(cut))
            cut += option
        return Task([*cut, *tokens[end:]], [i], marks=places)

    def _pieces(
        self, name: str, marks: Sequence[str], values: Mapping[str, Any]
    ) -> list[tuple[str, list[int]]]:
        """The texts between separators, each with the mark that it begins with, or "", and its tokens."""
        sep = f"<<{name}:sep>>"
        words = {f"mark_{mark}": f"<<{name}:{mark}>>" for mark in marks}
        pieces = []
        for text in self._render({**values, "sep": sep, **words}).split(sep):
            mark = next((mark for mark in marks if text.startswith(words[f"mark_{mark}"])), "")
            text = text.removeprefix(words[f"mark_{mark}"]) if mark else text
            pieces.append((mark, self._encode(text)))
        return pieces

    def _omni(
        self, state: Any, questions: Sequence[Question], shown: Sequence[Any], clean: Any
    ) -> list[Task]:
        tasks = []
        for i, each in enumerate(shown):
            values = {**each, "state": state, "audio": False}
            pieces = self._pieces("d1omni", ("state", "question", "option"), values)
            n = len(each["options"])
            room = max(96, min(24 * n + 32, OMNI_OPTIONS))
            most = {"option": max(2, (room - 3 * n) // n), "question": max(16, room)}
            pieces = [(mark, ids[: most.get(mark, len(ids))]) for mark, ids in pieces]
            left = max(0, OMNI_TOKENS - sum(len(ids) for mark, ids in pieces if mark != "state"))
            tokens: list[int] = []
            marks: list[int] = []
            for mark, ids in pieces:
                if not mark:
                    marks += [len(tokens) + at for at, token in enumerate(ids) if token == self._mask]
                tokens += ids[:left] if mark == "state" else ids
            tasks.append(Task(tokens, [i], marks=_checked_marks(marks, questions[i])))
        return tasks

    def _joint(
        self, state: Any, questions: Sequence[Question], shown: Sequence[Any], clean: Any
    ) -> list[Task]:
        task = Task([], list(range(len(questions))))
        spans = {"question": task.question_spans, "option": task.option_spans}
        touching = False
        for mark, ids in self._pieces("clef", ("question", "option"), {"state": state, "questions": shown}):
            if mark:
                if not ids:
                    raise ConfigError("questions: expected instructions and options that are not empty")
                if touching:
                    raise ConfigError("model: expected its template to write text between options")
                spans[mark].append((len(task.tokens), len(task.tokens) + len(ids)))
            touching = bool(mark) if ids else touching
            task.tokens += ids
        n_options = sum(len(question.options) for question in questions)
        if (len(task.question_spans), len(task.option_spans)) != (len(questions), n_options):
            raise ConfigError("model: expected its template to mark each question and each option once")
        return [task]


def orders(task: Task, questions: Sequence[Question]) -> list[int]:
    """What each token of a joint prompt belongs to: 1 to a predicate, 2 to a choice, 3 to a score, 4 to an
    option, 0 to none of them."""
    found = [0] * len(task.tokens)
    for question, (first, end) in zip(questions, task.question_spans):
        found[first:end] = [ORDERS[question.type]] * (end - first)
    for first, end in task.option_spans:
        found[first:end] = [OPTION_ORDER] * (end - first)
    return found


def _checked_marks(marks: list[int], question: Question) -> list[int]:
    if len(marks) != len(question.options):
        n = len(question.options)
        raise ConfigError(
            f"questions.{question.id}: expected {n} marks of options in the prompt, got {len(marks)}"
        )
    return marks


def n_same(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many items two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def mapped(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """JSON with all strings changed, keys too. Raises ConfigError for more than `MAX_DEPTH` levels."""
    if isinstance(value, str):
        return change(value)
    if depth > MAX_DEPTH:
        raise ConfigError(f"expected JSON of at most {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {change(key): mapped(item, change, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change, depth + 1) for item in value]
    return value


def key_sorted(value: Any) -> Any:
    """JSON with the keys of all objects sorted by their bytes."""
    if isinstance(value, Mapping):
        return {key: key_sorted(value[key]) for key in sorted(value, key=lambda key: str(key).encode())}
    return [key_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def flat(value: Any, level: int = 0) -> str:
    """JSON as plain lines: "- item", "key: value", two spaces to a level. Raises ConfigError as `mapped`."""
    if level > MAX_DEPTH:
        raise ConfigError(f"expected JSON of at most {MAX_DEPTH} levels")
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    pad = "  " * level
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            is_nested = isinstance(item, (Mapping, list, tuple))
            lines.append(f"{pad}{key}:" + (f"\n{flat(item, level + 1)}" if is_nested else f" {flat(item)}"))
        return "\n".join(lines)
    if isinstance(value, (list, tuple)):
        return "\n".join(f"{pad}- {flat(item, level + 1).lstrip()}" for item in value)
    return value if isinstance(value, str) else json.dumps(value)
