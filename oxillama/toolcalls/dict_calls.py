"""Calls as Gemma writes them: ``call:NAME{KEY:VALUE}``, with marks around strings."""

from __future__ import annotations

import json

from oxillama.toolcalls.calls import Calls, closed, inner
from oxillama.toolcalls.schemas import loads
from oxillama.toolcalls.source import MalformedCall, Reading, Source
from oxillama.toolcalls.tool_grammar import ToolCallGrammar


def dictionary(source: Source, calls: Calls, grammar: ToolCallGrammar) -> Reading[None]:
    """``call:NAME{KEY:VALUE}``: keys are bare, strings stand between marks."""
    yield from source.expect(("call:",))
    name, stop = yield from source.text_until(("{", grammar.close))
    if stop != "{":
        raise MalformedCall(f"expected call:NAME{{, got {name[:80]!r}")
    calls.begin(name)
    calls.arguments("{")
    yield from members(source, calls, grammar.quote, 1)
    yield from closed(source, grammar.close)
    calls.end()


def members(source: Source, calls: Calls, quote: str, depth: int) -> Reading[None]:
    """The members of an object, up to its end. Of a name that comes twice the last value counts."""
    seen = False
    yield from source.spaces()
    if (yield from source.one_of(("}",))):
        calls.arguments("}")
        return
    while True:
        yield from source.spaces()
        if (yield from source.one_of((quote,))):
            key, stop = yield from source.text_until((quote,))
            yield from source.expect((":",))
        else:
            key, stop = yield from source.text_until((":", "{", "}", "[", "]", ","))
            if stop != ":":
                raise MalformedCall(f"expected KEY:VALUE, got {key[:80]!r}")
            key = key.strip().strip('"')
        calls.arguments(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
        seen = True
        yield from value(source, calls, quote, depth)
        if (yield from source.expect((",", "}"))) == "}":
            calls.arguments("}")
            return


def value(source: Source, calls: Calls, quote: str, depth: int) -> Reading[None]:
    """A value, handed out as JSON."""
    if depth > 50:
        raise MalformedCall("expected at most 50 levels, got more")
    yield from source.spaces()
    if (yield from source.one_of((quote,))):
        calls.arguments('"')
        yield from source.quoted(quote, lambda text: calls.arguments(inner(text)))
        calls.arguments('"')
        return
    first = yield from source.next()
    if first == "{":
        yield from source.expect(("{",))
        calls.arguments("{")
        yield from members(source, calls, quote, depth + 1)
    elif first == "[":
        yield from source.expect(("[",))
        calls.arguments("[")
        yield from source.spaces()
        if (yield from source.one_of(("]",))):
            calls.arguments("]")
            return
        while True:
            yield from value(source, calls, quote, depth + 1)
            stop = yield from source.expect((",", "]"))
            calls.arguments(", " if stop == "," else "]")
            if stop == "]":
                return
    else:  # a number or a word, or a string as JSON has it
        pieces: list[str] = []
        yield from source.json(pieces.append)
        text = "".join(pieces)
        try:
            loads(text)
        except ValueError:
            raise MalformedCall(f"expected a value, got {text[:80]!r}") from None
        calls.arguments(text)
