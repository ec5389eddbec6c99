"""Calls in Python, as LFM2 writes them: calls with keyword arguments, ``[f(a="x", n=[1]), g()]``."""

from __future__ import annotations

import ast
import json
import math
import re
from keyword import iskeyword
from typing import Any
from unicodedata import normalize

from oxillama.errors import GrammarError
from oxillama.grammar.rules import Node, Repeat, Seq, Text
from oxillama.toolcalls.calls import Calls, closed
from oxillama.toolcalls.source import MalformedCall, Parsing, Source
from oxillama.toolcalls.value_rules import Tool, ValueRules, named

MOST = 1 << 20
"""Characters of a list of calls."""
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = "\n\\'\"abfnrtv01234567xNuU"
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORDS = {"true": True, "false": False, "null": None}
"""JSON's, which models mix in."""


def keyword_rules(values: ValueRules, tool: Tool) -> Node:
    """The grammar of a tool's arguments, whose values are JSON. Raises GrammarError, which names the tool."""
    with named(tool):
        if not all(map(is_name, tool.name.split("."))):
            raise GrammarError("expected a name that Python has for this format")

    def write(key: str) -> Node:
        return values.book.rule(Seq((Text(f"{key}="), values.json(tool, key))))

    return values.each(tool, is_name, write, Seq((Text(","), Repeat(Text(" "), 0, 1))))


def is_name(text: str) -> bool:
    """Whether Python takes a text for a name and leaves it as it is."""
    return text.isidentifier() and not iskeyword(text) and normalize("NFKC", text) == text


def python_list(source: Source, calls: Calls, close: str) -> Parsing[None]:
    """A list of calls in Python or, where it begins with an object, in JSON, up to the closing text."""
    text, _ = yield from python_text(source, close)
    code = ESCAPE.sub(escape, text.strip())
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCall(f"expected calls in Python, got {text[:80]!r}: {error}") from None
    found = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
    made = [call_of(node, code) for node in found]
    if not made:
        raise MalformedCall(f"expected calls in Python, got {text[:80]!r}")
    for name, args in made:
        calls.begin(name)
        calls.arguments(args)
        calls.end()
    yield from closed(source, close)


def escape(found: re.Match[str]) -> str:
    """What begins with a backslash as Python has it: also JSON's slash, and what escapes nothing."""
    char = found[1]
    return char if char == "/" else found[0] if char in ESCAPED else f"\\{found[0]}"


def python_text(source: Source, close: str) -> Parsing[tuple[str, str]]:
    """The text up to the closing one, which is left; not where it stands in a string."""
    pieces, quote = [], ""
    while True:
        stops = (quote, "\\") if quote else ('"', "'", close)
        text, stop = yield from source.text_until(stops)
        pieces.append(text)
        if sum(map(len, pieces)) > MOST:
            raise MalformedCall(f"expected calls of at most {MOST} characters, got more")
        if stop == close or not stop:
            source.unread(stop)
            return "".join(pieces), stop
        pieces.append(stop)
        if stop == "\\":
            pieces.append((yield from source.next()))
            yield from source.one_of((pieces[-1],) if pieces[-1] else ())
        else:
            quote = "" if quote else stop


def call_of(node: ast.expr, text: str) -> tuple[str, str]:
    """The name of a call and its arguments as JSON. Raises MalformedCall."""
    if isinstance(node, ast.Dict):
        plain = value_of(node, text)
        if set(plain) != {"name", "arguments"} or not isinstance(plain["name"], str):
            raise MalformedCall(f"expected a name and arguments, got {text[:80]!r}")
        return plain["name"], json_of(plain["arguments"])
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise MalformedCall(f"expected NAME(KEY=VALUE, ...), got {text[:80]!r}")
    args: dict[str, Any] = {}
    for word in node.keywords:
        if word.arg in args:
            raise MalformedCall(f"expected every argument once, got {word.arg!r} twice")
        args[str(word.arg)] = value_of(word.value, text)
    try:
        return ast.unparse(node.func), json_of(args)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedCall(f"expected values that JSON has, got {text[:80]!r}: {error}") from None


class Number(str):
    """The text of a number that is larger than any float: JSON has it, too."""


def json_of(value: Any) -> str:
    """A value as JSON. Raises ValueError and TypeError for what JSON does not have."""
    if isinstance(value, Number):
        if not NUMBER.fullmatch(value):
            raise ValueError(f"{value[:80]} is no number of JSON")
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_of(name)}: {json_of(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(json_of(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def value_of(node: ast.expr, text: str) -> Any:
    """A value in Python, or with JSON's words. Raises MalformedCall."""
    if isinstance(node, ast.Name) and node.id in WORDS:
        return WORDS[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value_of(each, text) for each in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value): value_of(each, text) for key, each in zip(node.keys, node.values)}  # type: ignore[union-attr]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        raise MalformedCall(f"expected a value, got {text[:80]!r}") from None
    if isinstance(value, float) and math.isinf(value):
        return Number(ast.get_source_segment(text, node) or "")
    if isinstance(value, str):  # JSON writes characters beyond the first plane as two
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
