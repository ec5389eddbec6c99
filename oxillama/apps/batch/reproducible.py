"""What of an answer follows from its row, the model and the options of the job.

The server's answers also have values that do not: times, rates, random ids, numbers of cached tokens, and the
version of the library. An
answer of a job has the fields of the tables below and no other, so a new field of the server is left out
until it is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHOLE = None
"""A value that is kept as it is."""

Shape = Mapping[str, Any] | None
"""The fields to keep of an object, or of each object of a list, and their shapes; `WHOLE` for all."""

USAGE = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), WHOLE)
HEAD = dict.fromkeys(("object", "model"), WHOLE)
CHOICE = dict.fromkeys(("index", "text", "logprobs", "finish_reason", "receipt"), WHOLE)
MESSAGE = dict.fromkeys(("role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"), WHOLE)
VECTOR = dict.fromkeys(("object", "index", "embedding"), WHOLE)
ERROR = dict.fromkeys(("message", "type", "param", "code", "n_prompt_tokens", "n_ctx"), WHOLE)

DECIDED = {
    "model": WHOLE,
    "answers": WHOLE,
    "usage": dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), WHOLE),
}

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {**HEAD, "choices": {**CHOICE, "message": MESSAGE}, "usage": USAGE},
    "/v1/completions": {**HEAD, "choices": CHOICE, "usage": USAGE},
    "/v1/embeddings": {**HEAD, "data": VECTOR, "usage": USAGE},
    "/v1/decisions": DECIDED,
    "/v1/systemone": DECIDED,
}
"""The fields of the answers of each url."""


def following(value: Any, shape: Shape) -> Any:
    """A value without the fields that are not in the shape; a list item by item."""
    if shape is WHOLE:
        return value
    if isinstance(value, list):
        return [following(each, shape) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: following(each, shape[name]) for name, each in value.items() if name in shape}


def reproducible(url: str, number: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer to a row, without what does not follow from the row.

    Args:
        url: of the row, among `ANSWERS`.
        number: of the row. The id in the body is made from the number; ``created`` is 0.
    """
    found: dict[str, Any] = following(body, {**ANSWERS[url], "error": ERROR, "id": WHOLE, "created": WHOLE})
    if "id" in found:
        found["id"] = f"{str(found['id']).partition('-')[0]}-{number}"
    if "created" in found:
        found["created"] = 0
    return found
