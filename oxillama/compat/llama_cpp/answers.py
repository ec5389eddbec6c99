"""The answers of `Llama`, whole and as chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oxillama.sampling.logprobs import TokenLogprobs

Answer = dict[str, Any]

Piece = Callable[[int], str]
"""The text of a token."""


def completion(head: Mapping[str, Any], text: str, logprobs: Any, reason: str | None) -> Answer:
    """A text, or a chunk of one."""
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
    return {**head, "choices": [choice]}


def usage_of(n_prompt: int, n_text: int) -> dict[str, int]:
    """Numbers of tokens."""
    total = n_prompt + n_text
    return {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": total}


def completion_logprobs(
    tokens: Sequence[int], known: Sequence[TokenLogprobs | None], offsets: Sequence[int], piece: Piece
) -> dict[str, Any]:
    """Log-probabilities of tokens in lists; None for a token that follows nothing.

    Parameters
    ----------
    offsets : characters before each token.
    """

    def top(each: TokenLogprobs) -> dict[str, float]:
        return {piece(token): logprob for token, logprob in each.top} | {piece(each.token): each.logprob}

    return {
        "tokens": [piece(token) for token in tokens],
        "text_offset": list(offsets),
        "token_logprobs": [None if each is None else each.logprob for each in known],
        "top_logprobs": [None if each is None else top(each) for each in known],
    }


def chat_logprobs(logprobs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Those of a text, in a chat's form."""
    if logprobs is None:
        return None
    lists = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return {
        "content": [
            {
                "token": token,
                "bytes": None,
                "logprob": logprob,
                "top_logprobs": [
                    {"token": other, "logprob": number, "bytes": None}
                    for other, number in (top or {}).items()
                ],
            }
            for token, logprob, top in lists
        ],
        "refusal": None,
    }


def chat_head(text: Mapping[str, Any], kind: str) -> Answer:
    """What every part of a chat's answer has, from the answer that it is made of."""
    return {"id": f"chat{text['id']}", "object": kind, "created": text["created"], "model": text["model"]}


def chat_answer(
    text: Mapping[str, Any], message: Mapping[str, Any], logprobs: Any, reason: str | None
) -> Answer:
    """The whole answer of a chat."""
    choice = {"index": 0, "message": dict(message), "logprobs": logprobs, "finish_reason": reason}
    return {**chat_head(text, "chat.completion"), "choices": [choice], "usage": text["usage"]}


def chat_chunk(
    text: Mapping[str, Any], delta: Mapping[str, Any], logprobs: Any = None, reason: str | None = None
) -> Answer:
    """A chunk of a chat's answer."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": logprobs, "finish_reason": reason}
    return {**chat_head(text, "chat.completion.chunk"), "choices": [choice]}


# --- texts as messages --------------------------------------------------------------------------------


def text_answer(text: Mapping[str, Any]) -> Answer:
    """The answer of a chat whose message is a text."""
    choice = text["choices"][0]
    message = {"role": "assistant", "content": choice["text"]}
    return chat_answer(text, message, chat_logprobs(choice["logprobs"]), choice["finish_reason"])


def text_chunks(chunks: Iterator[Mapping[str, Any]]) -> Iterator[Answer]:
    """Its chunks: the role, the text piece by piece, and an empty one with the finish reason."""
    for i, text in enumerate(chunks):
        if i == 0:
            yield chat_chunk(text, {"role": "assistant"})
        choice = text["choices"][0]
        reason = choice["finish_reason"]
        delta = {"content": choice["text"]} if reason is None else {}
        yield chat_chunk(text, delta, chat_logprobs(choice["logprobs"]), reason)


# --- texts as the arguments of one call ---------------------------------------------------------------


def call_id(name: str, text: Mapping[str, Any]) -> str:
    return f"call__0_{name}_{text['id']}"


def call_answer(name: str, text: Mapping[str, Any]) -> Answer:
    """The answer of a chat whose text is the arguments of one call.

    A text that was cut has the finish reason "length": its arguments are not whole.
    """
    choice = text["choices"][0]
    function = {"name": name, "arguments": choice["text"]}
    call = {"id": call_id(name, text), "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "function_call": dict(function), "tool_calls": [call]}
    reason = "tool_calls" if choice["finish_reason"] == "stop" else choice["finish_reason"]
    return chat_answer(text, message, chat_logprobs(choice["logprobs"]), reason)


def call_chunks(name: str, chunks: Iterator[Mapping[str, Any]]) -> Iterator[Answer]:
    """Its chunks: the role, the arguments piece by piece, and an empty one with the finish reason."""
    empty = {"content": None, "function_call": None, "tool_calls": None}
    for i, text in enumerate(chunks):
        if i == 0:
            yield chat_chunk(text, {"role": "assistant", **empty})
        choice = text["choices"][0]
        reason = choice["finish_reason"]
        if reason is not None:
            reason = "tool_calls" if reason == "stop" else reason
            yield chat_chunk(text, {"role": None, **empty}, None, reason)
            continue
        function = {"name": name, "arguments": choice["text"]}
        call = {"index": 0, "id": call_id(name, text), "type": "function", "function": function}
        delta = {"role": None, "content": None, "function_call": dict(function), "tool_calls": [call]}
        yield chat_chunk(text, delta, chat_logprobs(choice["logprobs"]))
