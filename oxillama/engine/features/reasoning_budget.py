"""`ReasoningBudget`: a constraint that ends reasoning when it has taken as many tokens as it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from oxillama.base.config import checks
from oxillama.engine.sampling.protocols import TokenConstraint
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.answer_format import TAIL
from oxillama.text.toolcalls.formats import reasons_before, rules_text

BEFORE, INSIDE, AFTER = range(3)
"""Where a text is: reasoning may begin, goes on, or has ended."""


class Progress(NamedTuple):
    """How far a text is.

    Attributes:
        where: `BEFORE`, `INSIDE` or `AFTER`.
        n: tokens of reasoning.
        n_forced: tokens of what ends reasoning that were forced.
        tail: last bytes of the text, in which the text before or after reasoning may have begun.
    """

    where: int
    n: int = 0
    n_forced: int = 0
    tail: bytes = b""


class ReasoningBudget:
    """A `TokenConstraint` that allows every token until reasoning has taken ``budget`` tokens; from there the
    text that ends it is forced. Behind reasoning every token is allowed again.

    Whole characters are left whole. Where a grammar does not allow the end, reasoning goes on.

    Args:
        budget: max tokens of reasoning.
        delimiters: texts before and after reasoning.
        anywhere: whether it may also begin after other text.
        in_reasoning: whether the text begins inside reasoning.
        closing: ids of the tokens that end it.
        pieces: bytes of each token of the vocabulary, in the text that holds the delimiters.
        inner: the state of the request's grammar, which is followed, too; None without one.
    """

    def __init__(
        self,
        budget: int,
        delimiters: tuple[str, str],
        anywhere: bool,
        in_reasoning: bool,
        closing: Sequence[int],
        pieces: Sequence[bytes],
        inner: TokenConstraint | None = None,
    ) -> None:
        self.budget: int = budget
        self.anywhere: bool = anywhere
        self.open: bytes
        self.close: bytes
        self.open, self.close = (text.encode() for text in delimiters)
        self.closing: tuple[int, ...] = tuple(closing)
        self.pieces: Sequence[bytes] = pieces
        self.inner: TokenConstraint | None = inner
        self._states = [Progress(INSIDE if in_reasoning else BEFORE)]

    @property
    def grammar(self) -> Any:
        """The grammar of the request; None without a grammar."""
        return getattr(self.inner, "grammar", None)

    def mask(self) -> np.ndarray:
        """uint32 (vocab / 32, rounded up): a bit for each token that may come next."""
        inner = None if self.inner is None else np.asarray(self.inner.mask(), np.uint32)
        token = self._forced(self._states[-1])
        if token is not None:
            mask = np.zeros(-(-len(self.pieces) // 32), np.uint32)
            mask[token // 32] = 1 << token % 32
            if inner is None or mask[token // 32] & inner[token // 32]:
                return mask
        return np.full(-(-len(self.pieces) // 32), 0xFFFFFFFF, np.uint32) if inner is None else inner

    def advance(self, token: int) -> None:
        """Goes on past a token."""
        if self.inner is not None:
            self.inner.advance(token)
        self._states.append(self._after(self._states[-1], token))

    def rollback(self, n: int) -> None:
        """Takes the last n tokens back."""
        if self.inner is not None:
            self.inner.rollback(n)
        del self._states[len(self._states) - n :]

    def fork(self) -> ReasoningBudget:
        """An independent copy."""
        copy = ReasoningBudget.__new__(ReasoningBudget)
        vars(copy).update(vars(self), _states=self._states[:])
        copy.inner = None if self.inner is None else self.inner.fork()
        return copy

    def _forced(self, now: Progress) -> int | None:
        """The token that must come next; None if there is a choice."""
        if now.where != INSIDE or now.n < self.budget:
            return None
        return self.closing[now.n_forced] if now.n_forced or is_whole(now.tail) else None

    def _after(self, now: Progress, token: int) -> Progress:
        text = now.tail + self.pieces[token]
        if now.where == INSIDE:
            n_forced = now.n_forced + 1 if token == self._forced(now) else 0
            return self._inside(text, now.n + 1, n_forced)
        if now.where == BEFORE:
            text = text.lstrip()
            if text.startswith(self.open):
                return self._inside(text[len(self.open) :], 0, 0)
            if self.open.startswith(text):
                return Progress(BEFORE, tail=text)
        if not self.anywhere:
            return Progress(AFTER)
        _, opened, rest = text.rpartition(self.open)
        return self._inside(rest, now.n, 0) if opened else Progress(AFTER, now.n, 0, text[-len(self.open) :])

    def _inside(self, text: bytes, n: int, n_forced: int) -> Progress:
        if self.close in text:
            return Progress(AFTER, n)
        return Progress(INSIDE, n, n_forced, text[-len(self.close) :])


def is_whole(text: bytes) -> bool:
    """Whether text in UTF-8, of which the beginning may be missing, ends with a whole character."""
    for i, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:  # the first byte of a character of 2, 3 or 4
            return i >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            break
    return True


def attach(model: Any, request: Any) -> None:
    """Bounds the reasoning of a `TextRequest`, in the format that its options or the file's template name.

    Raises ConfigError without either; and if a receipt is asked for, which could not say where it ends.
    """
    options, parsers, tokenizer = request.options, model.feature("parsers"), model.tokenizer
    if options.receipt:
        raise ConfigError("reasoning_budget: cannot be combined with receipt")
    if options.message_format is None:
        if options.sampler.constraint not in (None, "structural_tag"):
            return  # a grammar rules the text from its first token
        options = options._changed(message_format="auto")
    form = parsers.format(options)
    if form.reasoning is None:
        return  # there is nothing to bound
    special, inner = parsers.special(form), request.sampler.constraint
    tail = tokenizer.decode(request.prompt[-TAIL:], skip_special=False)
    in_reasoning = form.begins_in_reasoning(tail)
    if rules_text(options, form):
        if not reasons_before(options, form):
            return
        inner = model.feature("constraints").behind_reasoning(inner.grammar, form, special, in_reasoning)
    pieces = list(tokenizer.vocab_bytes())
    for text, id in special.items():
        pieces[id] = text.encode()
    closing = tokenizer.encode(form.reasoning[1], add_special=False, parse_special=True)
    if form.reasoning[1].encode() not in b"".join(pieces[id] for id in closing):
        raise checks.refuse("reasoning_budget", f"a vocabulary that spells {form.reasoning[1]}", closing)
    request.sampler.constraint = ReasoningBudget(
        options.reasoning_budget,
        form.reasoning,
        form.reasoning_anywhere,
        in_reasoning,
        closing,
        pieces,
        inner,
    )
