"""Calls of llama-cpp-python's interface on the story model, and what of their answers is compared.

`tools/record_llama_cpp.py` makes them with llama-cpp-python, `tests/compat/test_llama_cpp.py` with ours.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from oxillama import demo
from tests.support.paths import ROOT

RECORDS = ROOT / "tests/data/llama_cpp_python.json"
STORY = str(demo.STORY)
FEW = {"n_ctx": 256, "n_threads": 1}
PROMPT = demo.PROMPTS[0]
TITLE = [{"role": "user", "content": "Help for a Goat"}]
ASKED = [{"role": "system", "content": "Be kind."}, *TITLE]
TALK = [*ASKED, {"role": "assistant", "content": "In a wood."}, {"role": "user", "content": "And then?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "count",
            "description": "Counts.",
            "parameters": {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]},
        },
    }
]
ONE = {"type": "function", "function": {"name": "count"}}
RECORD = {"type": "object", "properties": {"kind": {"enum": ["fox", "goat"]}}, "required": ["kind"]}
GREEDY = {"temperature": 0.0}

Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "completion": lambda llm: llm(PROMPT, max_tokens=6, **GREEDY),
    "completion of tokens": lambda llm: llm(llm.tokenize(PROMPT.encode()), max_tokens=6, **GREEDY),
    "completion with stop": lambda llm: llm(PROMPT, max_tokens=12, stop=["am"], **GREEDY),
    "completion with one stop": lambda llm: llm(PROMPT, max_tokens=12, stop="am", **GREEDY),
    "completion with echo": lambda llm: llm(PROMPT, max_tokens=4, echo=True, **GREEDY),
    "completion with a name": lambda llm: llm(PROMPT, max_tokens=2, model="tale", **GREEDY),
    "completion with logprobs": lambda llm: llm(PROMPT, max_tokens=6, logprobs=2, **GREEDY),
    "completion with logprobs and echo": lambda llm: llm(
        PROMPT, max_tokens=4, logprobs=1, echo=True, **GREEDY
    ),
    "completion with penalties": lambda llm: llm(PROMPT, max_tokens=40, repeat_penalty=4.0, **GREEDY),
    "completion with counts": lambda llm: llm(
        PROMPT, max_tokens=40, frequency_penalty=6.0, presence_penalty=4.0, **GREEDY
    ),
    "completion with biases": lambda llm: llm(PROMPT, max_tokens=3, logit_bias={"262": 100}, **GREEDY),
    "completion to its end": lambda llm: llm(
        demo.RECORD_PROMPT + 'Name: Mia; kind: dragon; age: 7; friend: Tom; wish: kite"',
        max_tokens=0,
        **GREEDY,
    )["choices"][0]["finish_reason"],
    "stream": lambda llm: llm(PROMPT, max_tokens=4, stream=True, **GREEDY),
    "stream with logprobs": lambda llm: llm(PROMPT, max_tokens=4, logprobs=1, stream=True, **GREEDY),
    "chat": lambda llm: llm.create_chat_completion(TITLE, max_tokens=5, **GREEDY),
    "chat with logprobs": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=5, logprobs=True, top_logprobs=2, **GREEDY
    ),
    "chat stream": lambda llm: llm.create_chat_completion(TITLE, max_tokens=3, stream=True, **GREEDY),
    "chat stream with logprobs": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=3, stream=True, logprobs=True, top_logprobs=1, **GREEDY
    ),
    "tokens": lambda llm: [
        llm.tokenize(PROMPT.encode()),
        llm.tokenize(b"", add_bos=True),
        llm.tokenize(PROMPT.encode(), add_bos=False),
        llm.tokenize(b"<|endoftext|> a", special=True),
        llm.detokenize(llm.tokenize(PROMPT.encode())).decode(),
        llm.detokenize([0, 943, 1], special=True).decode(),
        llm.detokenize([0, 943, 1]).decode(),
    ],
    "facts": lambda llm: [
        *(llm.n_ctx(), llm.n_embd(), llm.n_vocab(), llm.token_bos(), llm.token_eos(), llm.token_nl()),
        *(llm.n_batch, llm.n_tokens, llm.input_ids.shape, str(llm.input_ids.dtype), llm.scores.shape),
        *(str(llm.scores.dtype), llm.last_n_tokens_size, llm.chat_format, llm._is_recurrent, llm._is_hybrid),
    ],
    "metadata": lambda llm: dict(sorted(llm.metadata.items())),
    "by hand": lambda llm: by_hand(llm),
    "generate": lambda llm: generated(llm),
}
"""With ``logits_all=True, n_ctx=256``: equal to the value, apart from numbers that are measured or chosen."""

SHAPES: dict[str, Call] = {
    "chat with one tool": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=40, tools=TOOLS, tool_choice=ONE, **GREEDY
    ),
    "stream with one tool": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=40, tools=TOOLS, tool_choice=ONE, stream=True, **GREEDY
    ),
    "chat with a former function": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=40, functions=[TOOLS[0]["function"]], function_call={"name": "count"}, **GREEDY
    ),
    "chat with a schema": lambda llm: llm.create_chat_completion(
        TITLE, max_tokens=40, response_format={"type": "json_object", "schema": RECORD}, **GREEDY
    ),
}
"""The same, equal to the keys and the kinds of values: the spaces in JSON differ."""

EMBEDDINGS: dict[str, Call] = {
    "embedding": lambda llm: llm.create_embedding("hi there"),
    "embeddings": lambda llm: llm.create_embedding(["hi there", "b"], model="tale"),
    "vector": lambda llm: [len(llm.embed("hi")), len(llm.embed(["hi", "b"])), llm.pooling_type()],
    "count": lambda llm: llm.embed("hi there", return_count=True)[1],
}
"""With ``embedding=True, n_ctx=256``, without pooling and with the mean (``pooling_type=1``)."""


def by_hand(llm: Any) -> Any:
    """Tokens that are run one by one."""
    llm.reset()
    tokens = llm.tokenize(PROMPT.encode())
    llm.eval(tokens[:5])
    llm.eval(tokens[5:])
    found = []
    for _ in range(4):
        found.append(int(llm.sample(temp=0.0)))
        llm.eval(found[-1:])
    again = int(llm.sample(temp=0.0, idx=llm.n_tokens - 1))
    highest = llm.scores[: llm.n_tokens].argmax(axis=1).tolist()
    return [found, again, llm.n_tokens, list(llm.eval_tokens), highest, len(llm.eval_logits)]


def generated(llm: Any) -> Any:
    """Tokens of a generator, to which a guess is sent."""
    llm.reset()
    tokens = llm.tokenize(PROMPT.encode())
    maker = llm.generate(tokens, temp=0.0)
    found = [int(next(maker)), int(next(maker)), int(maker.send(llm.tokenize(b" was", add_bos=False)))]
    return found


def plain(value: Any) -> Any:
    """An answer as JSON, without what differs: ids, times, paths of the model, measured numbers."""
    if isinstance(value, Mapping):
        return {key: chosen(key, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float) or type(value).__name__ == "float32":
        return "a float"
    return [plain(item) for item in value]  # a stream


def chosen(key: str, value: Any) -> Any:
    """A value under a key."""
    if key == "id" and isinstance(value, str):
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", value)
    if key == "created":
        return "a time" if isinstance(value, int) else value
    if key == "model" and str(value).endswith(".gguf"):
        return "a path"
    if key == "embedding" and value and isinstance(value[0], (float, list)):
        return ["vectors" if isinstance(value[0], list) else "floats", len(value)]
    return plain(value)


def shape(value: Any) -> Any:
    """The keys of an answer and the kinds of its values; of a stream each shape once."""
    if isinstance(value, Mapping):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        found: list[Any] = []
        for item in map(shape, value):
            if item not in found:
                found.append(item)
        return found
    return type(value).__name__


NOT_COMPARED = ("openbuddy", "open-orca", "snoozy")
"""Chat formats with long texts of their own, which ours does not offer."""

CONVERSATIONS = {"title": TITLE, "asked": ASKED, "talk": TALK}
"""Whose prompts are compared in every chat format."""


def signature(function: Callable[..., Any]) -> list[Any]:
    """[name, kind, default] of each argument; the name of the type for a default that is no JSON value."""
    found = []
    for each in inspect.signature(function).parameters.values():
        default = "NONE" if each.default is inspect.Parameter.empty else each.default
        if not isinstance(default, (bool, int, float, str, list, type(None))):
            default = type(default).__name__
        found.append([each.name, each.kind.name, default])
    return found
