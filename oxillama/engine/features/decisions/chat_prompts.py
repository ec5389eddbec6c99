"""Prompts of decisions for any chat model: one turn of the user, and an answer that is one of the labels.

The wording has a version, `VERSION`: probabilities follow from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from oxillama.base.config import checks
from oxillama.engine.features.decisions.prompts import Task, n_same
from oxillama.engine.features.decisions.questions import Option, Question
from oxillama.engine.features.decisions.rules import PAIRS, UPPER, Rules
from oxillama.engine.features.media.parts import HeldMedia, Laid
from oxillama.errors import ConfigError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.prompt import SWITCHES, escaped_text
from oxillama.text.chat.template import ChatTemplate

VERSION = "chat-2"
OPEN = re.compile(r"<[^<>/]*(?:think|reason)[^<>/]*>\s*$", re.IGNORECASE)
"""An opening of reasoning at the end of a prompt, which nobody has closed."""

YES, NO = ("Yes", "yes"), ("No", "no")
CLOSING = {
    ("labels", "choice"): "Answer with the letter of one option and nothing else.",
    ("labels", "score"): "Answer with the number of one level and nothing else.",
    ("labels", "noul"): "Answer Yes or No and nothing else.",
    ("names", "choice"): "Answer with one of the options, word for word, and nothing else.",
    ("names", "score"): "Answer with one of the levels, word for word, and nothing else.",
    ("names", "noul"): "Answer Yes or No and nothing else.",
}
"""The last line, by what is read and by the type of the question."""

READOUTS = ("names", "labels")
"""What is read of a chat model. Names come first: they were right more often (docs/typed-decisions.md)."""


class ChatPrompts:
    """Makes prompts by the file's chat template. Raises ChatTemplateError for a file without one."""

    kind = "chat"

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self.tokenizer = tokenizer
        self.rules: Rules = Rules(true_first=True, null_state=True)
        self.template: ChatTemplate = tokenizer.chat_template()
        self._added = lru_cache(4096)(self._continued)

    def tasks(
        self,
        state: Any,
        questions: Sequence[Question],
        *,
        special_in_content: bool = False,
        orders: int | None = None,
        readout: str | None = None,
        media: HeldMedia | None = None,
    ) -> list[Task]:
        """The prompts of a request, in the order of its questions.

        Args:
            media: media that markers in the state and the questions show. A scale with a medium in a level is
                read at its numbers.
            orders: rotations of a choice's options whose probabilities are averaged; 2 stands for the options
                as given and reversed.
            readout: "names" reads the whole names of options, "labels" the letter or number of each.

        Raises:
            ConfigError: the template leaves reasoning open, merges labels with what comes before, or hides a
                medium.
        """
        readout = checks.one_of("readout", readout or READOUTS[0], READOUTS)
        tasks = []
        for i, question in enumerate(questions):
            n, read = len(question.options), readout
            if media is not None and question.type == "score":
                levels = [as_text(option.description) for option in question.options]
                read = "labels" if any(map(media.shown, levels)) else readout
            for variant, order in enumerate(rotations(n if question.type == "choice" else 1, orders, n)):
                shown = question.ordered(question.options[at] for at in order)
                text = self._prompt(state, shown, read, special_in_content, media)
                made = self._tasks_of(text, shown, read, media)
                for task in made:
                    task.questions, task.variant, task.order = [i], variant, order
                tasks += made
        return tasks

    def state_end(
        self,
        state: Any,
        task: Task,
        special_in_content: bool = False,
        media: HeldMedia | None = None,
    ) -> int:
        """How many tokens of a prompt any question about the same state begins with, too."""
        options = (Option("b", "b", None),)
        texts = []
        for word in ("a", "z"):
            question = Question(word, None, "choice", word, options)
            texts.append(self._prompt(state, question, "labels", special_in_content, media))
        same, _ = self._encoded(texts[0][: n_same(*texts)], media)
        return n_same(same, task.tokens)

    def _prompt(
        self, state: Any, question: Question, readout: str, special_in_content: bool, media: HeldMedia | None
    ) -> str:
        """The rendered prompt, with escapes."""
        variables = {name: False for name in SWITCHES if name in self.template.variables}
        lines = [] if state is None else [as_text(state), ""]
        lines += [as_text(question.instructions), *options_of(question, readout)]
        content = "\n".join([*lines, CLOSING[readout, question.type]])
        message = {"role": "user", "content": content}
        text = escaped_text(
            self.tokenizer, [message], variables=variables, special_in_content=special_in_content
        )
        text = self.template.format.at_answer(text)
        if OPEN.search(text):
            raise ConfigError("model: its chat template leaves reasoning open, no label can follow at once")
        if media is not None and media.shown(text) != media.shown(content):
            raise ConfigError("model: its chat template hides or repeats pictures and sounds")
        return text

    def _encoded(self, text: str, media: HeldMedia | None) -> tuple[list[int], Laid | None]:
        """The tokens of a rendered prompt, and the places of its media; None without media."""
        if media is None or not media.shown(text):
            return self.tokenizer.encode_rendered(text, escaped=True), None
        laid = media.laid(text)
        return laid[0].tokens, laid

    def _tasks_of(self, text: str, question: Question, readout: str, media: HeldMedia | None) -> list[Task]:
        """A single prompt if each text is one token behind the prompt; otherwise a prompt for each text."""
        tokens, laid = self._encoded(text, media)
        spelled = spellings(question, readout)
        tail = self._tail(text if media is None else media.behind(text))
        added = [[self._added(tail, label) for label in labels] for labels in spelled]
        single = [[ids[0] for ids in found if len(ids) == 1] for found in added]
        flat = [token for found in single for token in found]
        if all(single) and len(set(flat)) == len(flat):
            return [Task(tokens, [], labels=single, laid=laid)]
        found = []
        for at, (ids, *_) in enumerate(added):
            found.append(Task([*tokens, *ids[:-1]], [], forced=ids, option=at, laid=laid))
        return found

    def _tail(self, text: str) -> str:
        """The end of a prompt, from the last control token on: nothing before it merges with labels."""
        starts = [text.rfind(name) for name in self._control]
        return text[max([*starts, 0]) :]

    @property
    def _control(self) -> Iterable[str]:
        vocab = self.tokenizer.vocab
        return [vocab.tokens[id] for id in {*vocab.eog_ids, *vocab.special.values()} if vocab.tokens[id]]

    def _continued(self, tail: str, label: str) -> list[int]:
        """The tokens that a label adds to a prompt. Raises ConfigError if it changes those before it."""
        before, after = (
            self.tokenizer.encode(text, add_special=False, parse_special=True, escaped=True)
            for text in (tail, tail + label)
        )
        if after[: len(before)] != before or len(after) == len(before):
            raise ConfigError(
                f"model: expected tokens for {label!r} behind the prompt, it merges with its end"
            )
        return after[len(before) :]


def as_text(value: Any) -> str:
    """Text as it is, other JSON as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def labels_of(question: Question) -> list[str]:
    """The label of each option."""
    if question.type == "noul":
        return ["Yes", "No"]
    return [*UPPER, *PAIRS] if question.type == "choice" else [option.key for option in question.options]


def options_of(question: Question, readout: str) -> list[str]:
    """A line for each option that the question does not imply."""
    lines = []
    for label, option in zip(labels_of(question), question.options):
        described = "" if option.description in (None, "") else as_text(option.description)
        if question.type == "noul":
            lines += [f"{label}: {described}"] if described else []
            continue
        name = described if question.type == "score" else option.key
        more = f" - {described}" if described and question.type == "choice" else ""
        lines.append(f"{label}: {name}{more}" if readout == "labels" else f"- {name}{more}")
    return lines


def spellings(question: Question, readout: str) -> list[tuple[str, ...]]:
    """What may stand for each option in the answer."""
    if question.type == "noul":
        return [YES, NO]
    if readout == "labels":
        return [(label,) for label, _ in zip(labels_of(question), question.options)]
    return [
        (option.key if question.type == "choice" else as_text(option.description),)
        for option in question.options
    ]


def rotations(n: int, orders: int | None, n_options: int) -> list[list[int]]:
    """The orders in which options are asked: as given; a choice also reversed or rotated."""
    usual = list(range(n_options))
    if n < 2:
        return [usual]
    k = checks.integer("orders", 2 if orders is None else orders, 1, 255)
    if k == 2:
        return [usual, usual[::-1]]
    step = n / min(k, n)
    return [usual[at:] + usual[:at] for at in (int(i * step) for i in range(min(k, n)))]
