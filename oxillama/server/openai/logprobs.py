"""Log-probabilities, of the model's own distribution, in the two forms that OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxillama.sampling.logprobs import SampledToken, TokenLogprobs
from oxillama.tokenizer.bridge import TokenizerBridge

LOWEST = -9999.0
"""In place of minus infinity, which JSON does not have."""


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
    """Of the tokens of a message, but for the one that ends it."""

    return {
        "content": [
            {
                **chat_entry(tokenizer, each.token, each.raw.logprob),
                "top_logprobs": [chat_entry(tokenizer, token, logprob) for token, logprob in each.raw.top],
            }
            for each in sampled
            if not tokenizer.is_eos(each.token)
        ],
        "refusal": None,
    }


class CompletionLogprobs:
    """Of a completion, and of its prompt if it is echoed: lists with an entry for each token.

    Parameters
    ----------
    top : whether the likeliest tokens are listed.
    """

    def __init__(self, tokenizer: TokenizerBridge, top: bool) -> None:
        self.tokenizer: TokenizerBridge = tokenizer
        self.top: bool = top
        self.offset: int = 0

    def of(self, tokens: Sequence[int], known: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The lists for the next tokens. The first token of a prompt follows nothing: None."""
        names, offsets = [token_name(self.tokenizer, token) for token in tokens], []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(self.tokenizer.decode([token], continuing=True))
        return {
            "tokens": names,
            "token_logprobs": [None if each is None else finite(each.logprob) for each in known],
            "top_logprobs": [
                None
                if each is None
                else {token_name(self.tokenizer, token): finite(logprob) for token, logprob in each.top}
                for each in known
            ]
            if self.top
            else None,
            "text_offset": offsets,
        }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lists of several parts in one."""
    found: dict[str, Any] = {}
    for name in parts[0]:
        lists = [part[name] for part in parts]
        found[name] = None if lists[0] is None else [item for one in lists for item in one]
    return found
