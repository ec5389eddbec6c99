"""Completions: the tokens of a prompt, the running text, and the answer."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.base.events import Event
from oxillama.compat.llama_cpp.answers import Answer, completion, completion_logprobs, usage_of
from oxillama.compat.llama_cpp.protocols import Model
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import TokenLogprobs, token_logprobs
from oxillama.errors import ConfigError, PromptError
from oxillama.text.chat.bridge import TokenizerBridge

FIM = ("fim_pre", "fim_suf", "fim_mid")


def prompt_tokens(llama: Model, prompt: str | Sequence[int], suffix: str | None) -> list[int]:
    """The ids of a prompt: a text with the special tokens that the vocabulary adds, or ids unchanged.

    Raises:
        ConfigError: there is a suffix, but the vocabulary has no infill tokens.
    """
    vocabulary = llama.model
    tokens = llama.encoded(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
    if suffix is not None:
        marks = [vocabulary.special_ids.get(name) for name in FIM]
        if None in marks:
            raise ConfigError("suffix: expected a model with tokens for infill, this one has none")
        before, behind, between = (mark for mark in marks if mark is not None)
        first, last = [before, *tokens], [behind, *vocabulary.encode(suffix)]
        tokens = [*last, *first, between] if llama.spm_infill else [*first, *last, between]
    elif not isinstance(prompt, str):
        return tokens
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    opening = [bos] if vocabulary.add_bos and bos is not None else []
    ending = [eos] if vocabulary.add_eos and eos is not None else []
    if opening and tokens[:1] == opening:
        warnings.warn(
            "prompt: has the token that begins a text, a second one is added", RuntimeWarning, stacklevel=3
        )
    return [*opening, *tokens, *ending] or ([] if bos is None else [bos])


def free_tokens(n_prompt: int, max_tokens: int | None, n_ctx: int) -> int:
    """The maximum number of tokens of a text: ``max_tokens``, limited by the context.

    Raises PromptError if the prompt fills the context.
    """
    if n_prompt >= n_ctx:
        raise PromptError(f"prompt: Requested tokens ({n_prompt}) exceed context window of {n_ctx}")
    most = n_ctx - n_prompt
    return most if max_tokens is None or max_tokens <= 0 else min(max_tokens, most)


@dataclass
class Text:
    """A text being generated, and its answer.

    Attributes:
        prompt, shown, offset: the prompt's tokens, its text for an echo, and its length for text offsets.
        model: name of the model in the answer.
        criteria: function that ends the text, or None.
        logprobs: number of top tokens with each token's log-probability; None: no log-probabilities.
        done: called at the end with the tokens of the text, and whether the last token was run.
    """

    llama: Model
    generation: Generation
    prompt: list[int]
    shown: str
    offset: int
    model: str
    criteria: Callable[[np.ndarray, np.ndarray], bool] | None
    logprobs: int | None
    echo: bool
    done: Callable[[Sequence[int], bool], None]

    def __post_init__(self) -> None:
        self.head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
        }
        self.vocabulary: TokenizerBridge = self.llama.model
        self.reason: str = ""
        self.n: int = 0  # number of tokens of the text
        self._stopped = False

    # --- reading ------------------------------------------------------------------------------------

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Yield the pieces of the text, each with the number of tokens so far; the last may be empty.

        The criteria are called before each token; the text ends before the first token where one returns
        True.
        """
        generation, text = self.generation, ""
        try:
            for piece in generation:
                n = self._allowed()
                if self._stopped:
                    text = self._decoded(n)[len(text) :] if n > self.n else ""
                    self.n = n
                    yield text, n
                    break
                self.n, text = n, text + piece
                yield piece, n
            else:
                self.n = min(self._allowed(), self._n_read())
                yield "", self.n
            self._end()
        finally:
            generation.close()

    def events(self) -> Iterator[Event]:
        """Yield the events of a parsed text."""
        try:
            for event in self.generation.events():
                self.n = self._n_read()
                yield event
            self.n = self._n_read()
            self._end()
        finally:
            self.generation.close()

    def _n_read(self) -> int:
        """The number of tokens read, without an end-of-generation token."""
        tokens = self.generation.tokens
        return len(tokens) - (len(tokens) > 0 and self.vocabulary.is_eos(tokens[-1]))

    def _end(self) -> None:
        self.reason = "stop" if self._stopped else str(self.generation.finish_reason)
        tokens = self.generation.tokens
        self.done(tokens[: self.n], self._stopped or len(tokens) > self.n)

    def _decoded(self, n: int) -> str:
        """The text of the first ``n`` tokens."""
        return self.vocabulary.decode(self.generation.tokens[:n], continuing=True).rstrip("\ufffd")

    def _allowed(self) -> int:
        """The number of tokens read that the criteria accept."""
        read = len(self.generation.tokens)
        if self.criteria is None:
            return read
        assert self.generation.logits is not None
        for at in range(self.n, read):
            before = np.array([*self.prompt, *self.generation.tokens[:at]], np.intc)
            if self.criteria(before, self.generation.logits[at]):
                self._stopped = True
                return at
        return read

    # --- answers ------------------------------------------------------------------------------------

    def whole(self) -> Answer:
        if self.criteria is None:
            self.generation.result()  # generates all at once, which is faster
        text = "".join(piece for piece, _ in self.pieces()) or self.generation.text
        if self._stopped:
            text = self._decoded(self.n)
        if self.reason == "length":  # the last character may be incomplete
            text = text.rstrip("\ufffd")
        logprobs = self._whole_logprobs() if self.logprobs is not None else None
        answer = completion(self.head, (self.shown if self.echo else "") + text, logprobs, self.reason)
        return {**answer, "usage": self.usage}

    @property
    def usage(self) -> dict[str, int]:
        return usage_of(len(self.prompt), self.n)

    def chunks(self) -> Iterator[Answer]:
        """Yield the answer's chunks: pieces of text, and an empty one with the finish reason."""
        before = 0
        for piece, n in self.pieces():
            logprobs = self._logprobs(before, n) if self.logprobs is not None and n > before else None
            before = n
            if piece or logprobs is not None:
                yield completion(self.head, piece, logprobs, None)
        yield completion(self.head, "", None, self.reason)

    # --- log-probabilities --------------------------------------------------------------------------

    def piece(self, token: int) -> str:
        return self.llama.detokenize([token]).decode("utf-8", errors="ignore")

    def _offsets(self, tokens: Sequence[int], start: int) -> list[int]:
        """The number of characters before each of the tokens."""
        found, length = [], start
        decoder = self.vocabulary.stream_decoder(continuing=True)
        for token in tokens:
            found.append(length)
            length += len(decoder.push(token))
        return found

    def logprobs_of(self, first: int) -> dict[str, Any]:
        """The log-probabilities of the tokens read so far, from index ``first`` on."""
        return self._logprobs(first, self.n)

    def _logprobs(self, first: int, n: int) -> dict[str, Any]:
        known = [each.raw for each in (self.generation.logprobs or [])[first:n]]
        tokens = self.generation.tokens[:n]
        offsets = self._offsets(tokens, self.offset)[first:]
        return completion_logprobs(tokens[first:], known, offsets, self.piece)

    def _whole_logprobs(self) -> dict[str, Any]:
        """The log-probabilities of the text, and with ``echo`` of the prompt; its first token has none."""
        if not self.echo:
            return self._logprobs(0, self.n)
        opens = self.prompt[0] == self.vocabulary.bos_id
        prompt, text = self.prompt[opens:], self.generation.tokens[: self.n]
        with self.llama.engine.session() as session:
            rows: Any = session.logits(self.prompt[:-1]) if len(self.prompt) > 1 else []
        known: list[TokenLogprobs | None] = [
            token_logprobs(row, token, self.logprobs or 0) for row, token in zip(rows, self.prompt[1:])
        ]
        if opens and known:
            known[0] = None
        else:
            known.insert(0, None) if prompt else None
        known += [each.raw for each in (self.generation.logprobs or [])[: self.n]]
        tokens = [*prompt, *text]
        return completion_logprobs(tokens, known, self._offsets(tokens, 0), self.piece)


def stop_strings(stop: str | Sequence[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
