"""Jump-forward: tokens that the grammar leaves no choice about are appended without sampling.

The text that must follow is found from the grammar's masks, tokenized as the model's encoder does it, and cut
where a longer token that is allowed, too, could reach beyond it: there the sampler decides. What is appended
depends on the grammar's state and the vocabulary alone, so a seed gives the same text in any batch, with any
number of threads, and with or without drafts.
"""

from __future__ import annotations

import numpy as np

from oxillama.config import GenerationOptions
from oxillama.errors import GrammarError
from oxillama.grammar import GrammarState
from oxillama.sampling.sampler import Sampler
from oxillama.tokenizer.bridge import TokenizerBridge

MOST_TOKENS = 32
"""Tokens that are appended after a sampled one; a decoding step runs all of them."""
MOST_BYTES = 256
"""Bytes of the text that is looked ahead."""
MOST_ALLOWED = 256
"""Tokens that a mask may allow where the next byte is still looked for."""
ANCHOR = "\n"
"""A text that no other merges with, before a text whose first token would get a space put in front."""


class JumpForward:
    """Finds the tokens that must follow in the texts of one vocabulary.

    Parameters
    ----------
    tokenizer : the model's.
    """

    def __init__(self, tokenizer: TokenizerBridge) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.vocab_bytes()

    def tokens(self, state: GrammarState) -> list[int]:
        """The tokens that follow in any case, at most `MOST_TOKENS`; the state is left as it is.

        An end of generation is among them if it is the only token that may follow.
        """
        text = self._text(state.fork())
        return [] if text is None else self._cut(state.fork(), text)

    def _allowed(self, state: GrammarState) -> list[int]:
        """The tokens that may follow; none where they are too many to leave no choice."""
        if state.has_ended:
            return []
        mask = state.mask()
        if int.from_bytes(mask.tobytes(), "little").bit_count() > MOST_ALLOWED:
            return []
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return [int(id) for id in np.flatnonzero(bits)]

    def _text(self, state: GrammarState) -> str | None:
        """The text that must follow, without a character that is not whole; None if there is none, but "" if
        the text must end."""
        found = b""
        while len(found) < MOST_BYTES:
            allowed = self._allowed(state)
            if not found and len(allowed) == 1 and allowed[0] in state.vocabulary.end_ids:
                return ""
            if not allowed or not all(map(state.vocabulary.is_text, allowed)):
                break
            texts = {self._bytes[id]: id for id in allowed}
            common = min(texts, key=len)
            if not all(text.startswith(common) for text in texts):
                break
            state.advance(texts[common])
            found += common
        return found.decode(errors="ignore") or None

    def _cut(self, state: GrammarState, text: str) -> list[int]:
        """The tokens of a text that must follow, up to where another token could reach beyond it."""
        found: list[int] = []
        left = len(text.encode())
        for token in self._encoded(text):
            allowed = self._allowed(state)
            if token not in allowed or max(len(self._bytes[id]) for id in allowed) > left:
                return found
            state.advance(token)
            found.append(token)
            left -= len(self._bytes[token])
            if len(found) == MOST_TOKENS:
                return found
        allowed = self._allowed(state)
        if len(allowed) == 1 and allowed[0] in state.vocabulary.end_ids:
            found.append(allowed[0])
        return found

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text that continues another; none if the encoder would change its bytes."""
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
    from each choice, and a token that is banned is not to be appended: those requests sample every token.
    """
    config = sampler.config
    noted = options.logprobs or options.top_logprobs is not None or options.keep_logits or options.receipt
    return bool(
        options.jump_forward
        and isinstance(sampler.constraint, GrammarState)
        and not noted
        and not config.mirostat
        and not sampler.chain.has_callables
        and not config.banned_tokens
        and config.allowed_tokens is None
        and not config.logit_bias
        and not config.ignore_eos
        and not config.min_tokens
    )


def next_tokens(jump: JumpForward, sampler: Sampler) -> list[int]:
    """The tokens that follow what a sampler has chosen; none if the grammar is too hard to look ahead."""
    assert isinstance(sampler.constraint, GrammarState)
    try:
        return jump.tokens(sampler.constraint)
    except GrammarError:
        return []
