"""Arguments as Gemma writes them: ``{KEY:VALUE}`` with bare keys, and with marks around strings."""

from __future__ import annotations

import json

from oxillama.text.toolcalls.calls import Calls
from oxillama.text.toolcalls.incoming_text import MalformedCall, Parsing
from oxillama.text.toolcalls.schemas import loads
from oxillama.text.toolcalls.tags import string


def parse_members(calls: Calls, depth: int = 1) -> Parsing[None]:
    """An object, emitted as JSON. The last value of a repeated name counts."""
    source, quote = calls.source, calls.grammar.quote
    yield from source.expect(("{",))
    calls.arguments("{")
    yield from source.spaces()
    stop, seen = (yield from source.one_of(("}",))), False
    while stop != "}":
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
        yield from _value(calls, depth)
        stop = yield from source.expect((",", "}"))
    calls.arguments("}")


def _value(calls: Calls, depth: int) -> Parsing[None]:
    source, quote = calls.source, calls.grammar.quote
    if depth > 50:
        raise MalformedCall("expected at most 50 levels, got more")
    yield from source.spaces()
    if (yield from source.one_of((quote,))):
        yield from string(calls, (quote,))
        return
    first = yield from source.next()
    if first == "{":
        yield from parse_members(calls, depth + 1)
    elif first == "[":
        yield from _items(calls, depth + 1)
    else:  # a number, a word, or a JSON string
        pieces: list[str] = []
        yield from source.json(pieces.append)
        text = "".join(pieces)
        try:
            loads(text)
        except ValueError:
            raise MalformedCall(f"expected a value, got {text[:80]!r}") from None
        calls.arguments(text)


def _items(calls: Calls, depth: int) -> Parsing[None]:
    source = calls.source
    yield from source.expect(("[",))
    calls.arguments("[")
    yield from source.spaces()
    stop = yield from source.one_of(("]",))
    while stop != "]":
        yield from _value(calls, depth)
        stop = yield from source.expect((",", "]"))
        calls.arguments(", " if stop == "," else "")
    calls.arguments("]")
