"""Jump-forward: tokens that the grammar leaves no choice about are appended without sampling.

The text that must follow is found from the grammar's masks, tokenized as the model's encoder does it, and cut
where a longer token that is allowed, too, could reach beyond it: there the sampler decides. What is appended
depends on the grammar's state and the vocabulary alone, so a seed gives the same text in any batch, with any
number of threads, and with or without drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from oxillama.config import GenerationOptions
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import GrammarState
from oxillama.sampling.sampler import Sampler
from oxillama.tokenizer.bridge import TokenizerBridge

MOST_TOKENS = 32
"""Tokens that are appended after a sampled one; a decoding step runs all of them."""
MOST_BYTES = 256
"""Bytes of the text that is looked ahead."""
MOST_MASKS = 1024
"""Masks, and texts, of which it is remembered what they come to."""
MOST_ALLOWED = 256
"""Tokens that a mask may allow where the next byte is still looked for."""
ANCHOR = "\n"
"""A text that no other merges with, before a text whose first token would get a space put in front."""


@dataclass(frozen=True)
class Choice:
    """What a mask leaves open; a function of the mask and the vocabulary.

    Attributes
    ----------
    step : the shortest of the allowed tokens, if all begin with it; None otherwise.
    longest : bytes of the longest of them.
    end : the token that ends generation, if no other is allowed.
    """

    step: int | None = None
    longest: int = 0
    end: int | None = None


OPEN = Choice()


class JumpForward:
    """Finds the tokens that must follow in the texts of one vocabulary. For one thread at a time.

    Parameters
    ----------
    tokenizer : the model's.
    """

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.vocab_bytes()
        self._choices: dict[int, tuple[np.ndarray, Choice]] = {}  # by the id of a mask, which is kept
        self._encodings: dict[str, list[int]] = {}

    def tokens(self, state: GrammarState) -> list[int]:
        """The tokens that follow in any case, at most `MOST_TOKENS`; the state is left as it is.

        An end of generation is among them if it is the only token that may follow.
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
        """The text that must follow, without a character that is not whole."""
        found: list[bytes] = []
        n = 0
        while n < MOST_BYTES and (step := self._choice(state).step) is not None:
            state.advance(step)
            found.append(self._bytes[step])
            n += len(found[-1])
        return b"".join(found).decode(errors="ignore")

    def _cut(self, state: GrammarState, text: str) -> list[int]:
        """The tokens of a text that must follow, up to where another token could reach beyond it."""
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
        """The tokens of a text that continues another; none if the encoder would change its bytes."""
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
    """Whether a request appends what must follow.

    Log-probabilities, kept logits and receipts are of rows that each token was chosen from, mirostat learns
    from each choice, and a token that is banned is not to be appended. Raises ConfigError for these.
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
    """The tokens that follow what a sampler has chosen; none if the grammar is too hard to look ahead."""
    assert isinstance(sampler.constraint, GrammarState)
    try:
        return jump.tokens(sampler.constraint)
    except GrammarError:
        return []


def new_jump_forward(model: LoadedModel) -> JumpForward:
    """Finds the tokens that must follow in texts of a model."""
    return JumpForward(model.tokenizer)


def attach(model: LoadedModel, request: TextRequest) -> None:
    """Has a request append the tokens that must follow. Raises ConfigError as `jumps`."""
    if jumps(request.options, request.sampler):
        request.forced_tokens = partial(next_tokens, model.feature("forced tokens"), request.sampler)
