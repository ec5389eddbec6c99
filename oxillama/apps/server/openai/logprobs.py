"""Log-probabilities, of the model's own distribution, in the two forms that OpenAI has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.apps.server.pieces import PARTS, Mapped
from oxillama.engine.sampling.logprobs import SampledToken, TokenLogprobs
from oxillama.text.chat.bridge import TokenizerBridge

LOWEST = -9999.0
"""In place of minus infinity, which JSON does not have."""


def mapped(function: Callable[[Any], Any], sampled: Sequence[Any], top: int) -> Sequence[Any]:
    """The values of a function for tokens: a list, or made when they are written if they are many.

    Args:
        top: how many of the likeliest tokens each has.
    """
    if len(sampled) * (1 + top) > PARTS:
        return Mapped(function, sampled)
    return [function(each) for each in sampled]


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def token_name(tokenizer: TokenizerBridge, token: int) -> str:
    """The text of a token; "bytes:\\xe2\\x82" for bytes that are no text by themselves."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_entry(tokenizer: TokenizerBridge, token: int, logprob: float) -> dict[str, Any]:
    """A token with its log-probability and its bytes."""
    data = tokenizer.token_bytes(token)
    return {"token": token_name(tokenizer, token), "logprob": finite(logprob), "bytes": list(data)}


def chat_logprobs(tokenizer: TokenizerBridge, sampled: Sequence[SampledToken]) -> dict[str, Any]:
    """Log-probabilities of a message's tokens without its ending token."""

    def entry(each: SampledToken) -> dict[str, Any]:
        top = [chat_entry(tokenizer, token, logprob) for token, logprob in each.raw.top]
        return {**chat_entry(tokenizer, each.token, each.raw.logprob), "top_logprobs": top}

    shown = [each for each in sampled if not tokenizer.is_eos(each.token)]
    return {"content": mapped(entry, shown, len(shown[0].raw.top) if shown else 0), "refusal": None}


@dataclass
class CompletionLogprobs:
    """Log-probabilities of a completion, and of an echoed prompt: lists with an entry for each token.

    Attributes:
        top: how many of the likeliest tokens are listed.
    """

    tokenizer: TokenizerBridge
    top: int
    offset: int = 0

    def of(self, tokens: Sequence[int], known: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The lists for the next tokens. The first token of a prompt follows nothing: None."""
        names, offsets = [token_name(self.tokenizer, token) for token in tokens], []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(self.tokenizer.decode([token], continuing=True))
        return {
            "tokens": names,
            "token_logprobs": [None if each is None else finite(each.logprob) for each in known],
            "top_logprobs": mapped(self._likeliest, known, self.top) if self.top else None,
            "text_offset": offsets,
        }

    def _likeliest(self, each: TokenLogprobs | None) -> dict[str, float] | None:
        if each is None:
            return None
        return {token_name(self.tokenizer, token): finite(logprob) for token, logprob in each.top}
