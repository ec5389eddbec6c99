"""Jump-forward decoding: tokens that the grammar forces are appended without sampling.

The forced text is derived from the grammar's masks and tokenized by the model's encoder. It is cut where a
longer allowed token could extend beyond it; there the sampler decides. The appended tokens depend only on the
grammar's state and the vocabulary. So a seed gives the same text in any batch, with any number of threads,
and with or without drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from oxillama.base.config import GenerationOptions
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.engine.sampling.sampler import Sampler
from oxillama.errors import ConfigError, GrammarError
from oxillama.text.grammar import GrammarState
from oxillama.text.tokenizer.tokenizer import Tokenizer

MOST_TOKENS = 32
"""The maximum number of tokens appended after a sampled token; one decoding step runs all of them."""
MOST_BYTES = 256
"""The maximum length of the forced text in bytes."""
MOST_MASKS = 1024
"""The maximum number of cached choices, and of cached encodings."""
MOST_ALLOWED = 256
"""The maximum number of tokens allowed by a mask that is examined for a common prefix."""
ANCHOR = "\n"
"""A prefix that merges with no text; used where the encoder would put a space before the first token."""


@dataclass(frozen=True)
class Choice:
    """What a mask forces; depends on the mask and the vocabulary only.

    Attributes:
        step: the shortest allowed token, if all allowed tokens begin with its bytes; else None.
        longest: length of the longest allowed token in bytes.
        end: the end-of-generation token, if no other token is allowed.
    """

    step: int | None = None
    longest: int = 0
    end: int | None = None


OPEN = Choice()


class JumpForward:
    """Finds the forced tokens in texts of one vocabulary. Not thread-safe.

    Args:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.vocab_bytes()
        self._choices: dict[int, tuple[np.ndarray, Choice]] = {}  # mask's id -> mask (kept alive), choice
        self._encodings: dict[str, list[int]] = {}

    def tokens(self, state: GrammarState) -> list[int]:
        """The forced tokens, at most `MOST_TOKENS`; the state is not changed.

        They include an end-of-generation token if no other token may follow.
        """
        choice = self._choice(state)
        if choice.end is not None:
            return [choice.end]
        if choice.step is None:
            return []
        return self._cut(state.fork(), self._text(state.fork()))

    def _choice(self, state: GrammarState) -> Choice:
        if state.has_ended:
            return OPEN
        mask = state.mask()
        known = self._choices.get(id(mask))
        if known is None:
            if len(self._choices) >= MOST_MASKS:
                self._choices.clear()
            self._choices[id(mask)] = known = mask, self._choice_of(mask, state)
        return known[1]

    def _choice_of(self, mask: np.ndarray, state: GrammarState) -> Choice:
        if int.from_bytes(mask.tobytes(), "little").bit_count() > MOST_ALLOWED:
            return OPEN
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = [int(id) for id in np.flatnonzero(bits)]
        if len(allowed) == 1 and allowed[0] in state.vocabulary.end_ids:
            return Choice(end=allowed[0])
        if not allowed or not all(map(state.vocabulary.is_text, allowed)):
            return OPEN
        texts = [self._bytes[id] for id in allowed]
        shortest = min(texts, key=len)
        if not all(text.startswith(shortest) for text in texts):
            return OPEN
        return Choice(allowed[texts.index(shortest)], max(map(len, texts)))

    def _text(self, state: GrammarState) -> str:
        """The forced text, without an incomplete character at its end."""
        found: list[bytes] = []
        n = 0
        while n < MOST_BYTES and (step := self._choice(state).step) is not None:
            state.advance(step)
            found.append(self._bytes[step])
            n += len(found[-1])
        return b"".join(found).decode(errors="ignore")

    def _cut(self, state: GrammarState, text: str) -> list[int]:
        """The tokens of the forced text, up to where an allowed token could extend beyond the text."""
        found: list[int] = []
        left = len(text.encode())
        for token in self._encoded(text):
            choice = self._choice(state)
            if choice.step is None or choice.longest > left or not state.allows_token(token):
                return found
            state.advance(token)
            found.append(token)
            left -= len(self._bytes[token])
            if len(found) == MOST_TOKENS:
                return found
        end = self._choice(state).end
        return found if end is None else [*found, end]

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text that continues another text; empty if the encoder would change its bytes."""
        if text not in self._encodings:
            if len(self._encodings) >= MOST_MASKS:
                self._encodings.clear()
            self._encodings[text] = self._tokens_of(text)
        return self._encodings[text]

    def _tokens_of(self, text: str) -> list[int]:
        wanted = text.encode()
        for anchor in ("", ANCHOR):
            tokens = self._tokenizer.encode(anchor + text, add_special=False)
            for n in range(len(tokens) + 1):
                rest = b"".join(self._bytes[id] for id in tokens[n:])
                if len(rest) <= len(wanted):
                    if rest == wanted and (n == 0 or anchor):
                        return tokens[n:]
                    break
        return []


def jumps(options: GenerationOptions, sampler: Sampler) -> bool:
    """Whether a request appends forced tokens.

    Not with log-probabilities, kept logits or receipts, which need the logits of each token; nor mirostat,
    which learns from each choice; nor banned tokens, which must not be appended. Raises ConfigError for
    these.
    """
    if not options.jump_forward or not isinstance(sampler.constraint, GrammarState):
        return False
    config = sampler.config
    against = {
        "logprobs": options.logprobs,
        "top_logprobs": options.top_logprobs is not None,
        "keep_logits": options.keep_logits,
        "receipt": options.receipt,
        "mirostat": config.mirostat,
        "a stage in Python": sampler.chain.has_callables,
        "banned_tokens": config.banned_tokens,
        "allowed_tokens": config.allowed_tokens is not None,
        "logit_bias": config.logit_bias,
        "ignore_eos": config.ignore_eos,
        "min_tokens": config.min_tokens,
    }
    for name, is_set in against.items():
        if is_set:
            raise ConfigError(f"jump_forward: cannot be combined with {name}")
    return True


def next_tokens(jump: JumpForward, sampler: Sampler) -> list[int]:
    """The forced tokens after a sampler's last choice; empty if the grammar exceeds its limit of work."""
    assert isinstance(sampler.constraint, GrammarState)
    try:
        return jump.tokens(sampler.constraint)
    except GrammarError:
        return []


def new_jump_forward(model: LoadedModel) -> JumpForward:
    """The `JumpForward` of a model."""
    return JumpForward(model.tokenizer)


def attach(model: LoadedModel, request: TextRequest) -> None:
    """Let a request append forced tokens. Raises ConfigError as `jumps` does."""
    if jumps(request.options, request.sampler):
        request.forced_tokens = partial(next_tokens, model.feature("forced tokens"), request.sampler)
