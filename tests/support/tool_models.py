"""Tiny random models with the chat templates of some formats, and texts drawn at random from a grammar."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

from oxillama import Grammar, GrammarState
from oxillama.text.grammar import Vocabulary
from oxillama.text.toolcalls import ToolCallGrammar
from oxillama.text.toolcalls.message_rules import message_rules
from oxillama.text.toolcalls.parameters import Tool
from tests.support.automata import allowed
from tests.support.tiny_file import write_tiny_model


def closed(**properties: Any) -> dict[str, Any]:
    """A schema of an object that has all of some properties, and no other."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


FRIEND = closed(name={"enum": ["Mia", "Tom"]}, old={"type": "boolean"})
TOOLS: list[dict[str, Any]] = [
    {"name": "ping", "parameters": {}},
    {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "mode": {"enum": ["a", "w"]},
                "lines": {"type": ["integer", "null"], "minimum": 3},
                "title": {"type": ["string", "null"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "n": {"anyOf": [{"type": "string"}, {"type": "number", "maximum": 5}]},
            },
            "required": ["path", "tags"],
        },
    },
    {
        "name": "any",
        "parameters": {
            "type": "object",
            "properties": {
                "o": {},
                "s": {"type": "string", "pattern": "^[a-c]+$"},
                "l": {"type": "string", "minLength": 2, "maxLength": 4},
                "r": {"$ref": "#/$defs/R"},
            },
            "required": ["l"],
            "$defs": {
                "R": {
                    "type": "object",
                    "properties": {"x": {"$ref": "#/$defs/R"}, "y": {"type": "string"}},
                }
            },
        },
    },
]
SCHEMAS: dict[str, Any] = {
    tool["name"]: {"type": "object", "additionalProperties": False, **(tool["parameters"] or {})}
    for tool in TOOLS
}

QWEN = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '{{ "\\n" }}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": ARGUMENTS}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes arguments as they are where they are text, as Qwen 3's does."""
AS_IT_IS = QWEN.replace(
    "ARGUMENTS",
    "{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
)
AS_JSON = QWEN.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")


STOPS = ("\n</parameter>\n", "</arg_value>\n", "</｜DSML｜parameter>\n", "</function>", "</｜DSML｜invoke>")


NO_THOUGHTS = AS_IT_IS[: AS_IT_IS.index("{% if m.reasoning")] + AS_IT_IS[AS_IT_IS.index("{{ m.content }}") :]
"""Without reasoning, which a random model would not end."""

ROOM: dict[str, Any] = {
    "name": "room",
    "description": "Opens a room.",
    "parameters": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "s": {"enum": ["ab", "c"]}},
        "required": ["n"],
        "additionalProperties": False,
    },
}
"""A function whose arguments are short, whatever a random model writes."""


def tool_model(path: Path, template: str = AS_IT_IS, seed: int = 0) -> Path:
    """A model with a chat template for tools."""
    return write_tiny_model(path, chat_template=template, n_layers=1, seed=seed)


def vocabulary_of(
    form: ToolCallGrammar, special: bool
) -> tuple[Vocabulary, list[bytes], dict[str, int], int]:
    """Bytes, pieces of calls, delimiters and their beginnings; with ``special`` delimiters also as tokens
    that are no text. Returns the vocabulary, its tokens, the special ones, the end of generation."""
    marks = list(dict.fromkeys(form.delimiters))
    pieces = """<tool _call> </ parameter> <parameter= <function= </think> <think> {"name": ", "arguments":
        "} call: ping write any path tags }, ": { } [ ] "parameters": "," null <| |> end 12 </arg_value> a"""
    tokens = [bytes([byte]) for byte in range(256)]
    texts = [
        *pieces.split(),
        '", "arguments": {',
        "\n\n",
        *STOPS,
        *marks,
        *(mark[: len(mark) // 2] for mark in marks),
    ]
    tokens += [text.encode() for text in dict.fromkeys(texts) if text]
    found: dict[str, int] = {}
    for mark in marks if special else ():
        found[mark] = len(tokens)
        tokens.append(mark.encode())
    end = len(tokens)
    return Vocabulary([*tokens, b"<end>"], [end], found.values()), [*tokens, b"<end>"], found, end


def random_text(
    grammar: Grammar, vocabulary: Vocabulary, tokens: list[bytes], end: int, seed: int, most: int
) -> tuple[str, bool]:
    """A text that follows a grammar, and whether it has come to its end within ``most`` tokens."""
    draw, state, text = random.Random(seed), GrammarState(grammar, vocabulary), b""
    marks = {i for i, token in enumerate(tokens) if len(token) > 9}  # delimiters, for the most part
    for _ in range(most):
        following = allowed(state.mask())
        longer = [t for t in following if t >= 256 and t != end]
        liked = [t for t in following if t in marks]
        if end in following and draw.random() < 0.1:
            return text.decode("utf-8", "ignore"), True
        liked = liked if draw.random() < 0.4 else []
        token = draw.choice(liked or (longer if longer and draw.random() < 0.7 else following))
        if token == end:
            return text.decode("utf-8", "ignore"), True
        state.advance(token)
        text += tokens[token]
    return text.decode("utf-8", "ignore"), False


def grammar_of(form: ToolCallGrammar, choice: str, tools: Any = None, **options: Any) -> Grammar:
    """The grammar of messages with tools; if one must be called, with the second of them."""
    wanted = [Tool.of(tool) for tool in tools or TOOLS]
    rules = message_rules(form, wanted[1:2] if choice == "one" else wanted, choice, **options)
    return Grammar.from_rules(rules)


def digit(n: Literal[1, 2, 3]) -> str:
    """Names a digit."""
    return f"digit {n}"
