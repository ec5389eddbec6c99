"""Calls in Python, as LFM2 writes them: calls with keyword arguments, ``[f(a="x", n=[1]), g()]``."""

from __future__ import annotations

import ast
import json
import re
from keyword import iskeyword, kwlist
from unicodedata import normalize

from oxillama.errors import GrammarError
from oxillama.text.grammar.grammar_text import errors_under
from oxillama.text.grammar.rules import Node, Repeat, Seq, Text
from oxillama.text.toolcalls.calls import Calls
from oxillama.text.toolcalls.incoming_text import IncomingText, MalformedCall, Parsing
from oxillama.text.toolcalls.parameters import Tool, Value
from oxillama.text.toolcalls.value_rules import ValueRules

MOST = 1 << 20
"""Characters of a list of calls."""
_NAMES = rf"(?!({'|'.join(kwlist)})$)[A-Za-z_][A-Za-z0-9_]*"
"""A regular expression of names that the schema of a tool does not list."""
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = "\n\\'\"abfnrtv01234567xNuU"
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def keyword_rules(values: ValueRules, tool: Tool) -> Node:
    """The grammar of a tool's arguments, whose values are JSON. Raises GrammarError, which names the tool."""
    with errors_under(f"tool {tool.name}"):
        if not all(map(is_name, tool.name.split("."))):
            raise GrammarError("expected a name that Python has for this format")

    def write(key: str | Node, value: Value) -> Node:
        name = Text(key) if isinstance(key, str) else key
        return values.book.rule(Seq((name, Text("="), values.json(tool, value))))

    return values.each(tool, is_name, _NAMES, write, Seq((Text(","), Repeat(Text(" "), 0, 1))))


def is_name(text: str) -> bool:
    """Whether Python takes a text for a name and leaves it as it is."""
    return text.isidentifier() and not iskeyword(text) and normalize("NFKC", text) == text


def parse_python(calls: Calls, close: str) -> Parsing[None]:
    """A list of calls in Python or, where it begins with an object, in JSON, up to the closing text."""
    text = yield from python_text(calls.source, close)
    code = ESCAPE.sub(escape, text.strip())
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCall(f"expected calls in Python, got {text[:80]!r}: {error}") from None
    found = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
    try:
        made = [call_of(calls, node, code) for node in found]
    except RecursionError:
        raise MalformedCall("expected fewer levels in Python") from None
    if not made:
        raise MalformedCall(f"expected calls in Python, got {text[:80]!r}")
    for name, args in made:
        calls.begin(name)
        calls.arguments(args)
        calls.end()


def escape(found: re.Match[str]) -> str:
    """An escape of Python, JSON's escaped slash, or a backslash before a character that needs none."""
    char = found[1]
    return char if char == "/" else found[0] if char in ESCAPED else f"\\{found[0]}"


def python_text(source: IncomingText, close: str) -> Parsing[str]:
    """The text up to ``close`` outside of strings; ``close`` is not read."""
    pieces, quote = [], ""
    while True:
        stops = (quote, "\\") if quote else ('"', "'", close)
        text, stop = yield from source.text_until(stops)
        pieces.append(text)
        if sum(map(len, pieces)) > MOST:
            raise MalformedCall(f"expected calls of at most {MOST} characters, got more")
        if stop == close or not stop:
            source.unread(stop)
            return "".join(pieces)
        pieces.append(stop)
        if stop == "\\":
            pieces.append((yield from source.next()))
            yield from source.one_of((pieces[-1],) if pieces[-1] else ())
        else:
            quote = "" if quote else stop


def call_of(calls: Calls, node: ast.expr, code: str) -> tuple[str, str]:
    """The name of a call and its arguments as JSON. Raises MalformedCall."""
    if isinstance(node, ast.Dict):
        plain = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values)}
        name = getattr(plain.get("name"), "value", None)
        if set(plain) != {"name", "arguments"} or not isinstance(name, str):
            raise MalformedCall(f"expected a name and arguments, got {code[:80]!r}")
        return name, json_of(plain["arguments"], code)
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise MalformedCall(f"expected NAME(KEY=VALUE, ...), got {code[:80]!r}")
    names = [word.arg for word in node.keywords]
    tool = ast.unparse(node.func)
    if any(names.count(key) > 1 and not calls.may_repeat(tool, str(key)) for key in names):
        raise MalformedCall(f"expected every argument once, got {names!r:.80}")
    args = [f"{json.dumps(w.arg, ensure_ascii=False)}: {json_of(w.value, code)}" for w in node.keywords]
    return tool, f"{{{', '.join(args)}}}"


def json_of(node: ast.expr, code: str) -> str:
    """A value in Python, or with JSON's words, as JSON. Raises MalformedCall for what JSON does not have."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return node.id
    if isinstance(node, (ast.List, ast.Tuple)):
        return f"[{', '.join(json_of(each, code) for each in node.elts)}]"
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [json.dumps(str(key.value), ensure_ascii=False) for key in node.keys]  # type: ignore[union-attr]
        return f"{{{', '.join(f'{key}: {json_of(each, code)}' for key, each in zip(keys, node.values))}}}"
    text = ast.get_source_segment(code, node) or ""
    if NUMBER.fullmatch(text):  # perhaps beyond all floats
        return text
    try:
        value = ast.literal_eval(node)
        if isinstance(value, str):  # JSON writes characters beyond the first plane as two
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise MalformedCall(f"expected a value that JSON has, got {text[:80]!r}") from None
