"""Builds the answers of `Llama`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oxillama.engine.sampling.logprobs import TokenLogprobs

Answer = dict[str, Any]

Piece = Callable[[int], str]
"""Decodes one token to text."""


def completion(head: Mapping[str, Any], text: str, logprobs: Any, reason: str | None) -> Answer:
    """A completion answer, or a chunk of one."""
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
    return {**head, "choices": [choice]}


def usage_of(n_prompt: int, n_text: int) -> dict[str, int]:
    """The ``usage`` object: token counts."""
    total = n_prompt + n_text
    return {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": total}


def completion_logprobs(
    tokens: Sequence[int], known: Sequence[TokenLogprobs | None], offsets: Sequence[int], piece: Piece
) -> dict[str, Any]:
    """The ``logprobs`` object of a completion: parallel lists; None for a first token without logits.

    Args:
        offsets: number of characters before each token.
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
    """The ``logprobs`` object of a chat, converted from a completion's."""
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
    """The fields that every part of a chat's answer shares, from the completion it is made of."""
    return {"id": f"chat{text['id']}", "object": kind, "created": text["created"], "model": text["model"]}


def chat_answer(
    text: Mapping[str, Any], message: Mapping[str, Any], logprobs: Any, reason: str | None
) -> Answer:
    choice = {"index": 0, "message": dict(message), "logprobs": logprobs, "finish_reason": reason}
    return {**chat_head(text, "chat.completion"), "choices": [choice], "usage": text["usage"]}


def chat_chunk(
    text: Mapping[str, Any], delta: Mapping[str, Any], logprobs: Any = None, reason: str | None = None
) -> Answer:
    choice = {"index": 0, "delta": dict(delta), "logprobs": logprobs, "finish_reason": reason}
    return {**chat_head(text, "chat.completion.chunk"), "choices": [choice]}


# --- texts as messages --------------------------------------------------------------------------------


def text_answer(text: Mapping[str, Any]) -> Answer:
    """A whole chat answer whose message is plain text."""
    choice = text["choices"][0]
    message = {"role": "assistant", "content": choice["text"]}
    return chat_answer(text, message, chat_logprobs(choice["logprobs"]), choice["finish_reason"])


def text_chunks(chunks: Iterator[Mapping[str, Any]]) -> Iterator[Answer]:
    """The chunks of a plain-text answer: role, pieces of text, an empty one with the finish reason."""
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
    """A whole chat answer whose text is the arguments of one tool call.

    If the text was cut, the finish reason is "length": the arguments are incomplete.
    """
    choice = text["choices"][0]
    function = {"name": name, "arguments": choice["text"]}
    call = {"id": call_id(name, text), "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "function_call": dict(function), "tool_calls": [call]}
    reason = "tool_calls" if choice["finish_reason"] == "stop" else choice["finish_reason"]
    return chat_answer(text, message, chat_logprobs(choice["logprobs"]), reason)


def call_chunks(name: str, chunks: Iterator[Mapping[str, Any]]) -> Iterator[Answer]:
    """The chunks of such an answer: role, pieces of the arguments, an empty one with the finish reason."""
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
