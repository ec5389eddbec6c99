"""Calls in tags: Qwen's, GLM's, and those with attributes. Values are JSON or strings, as their types say."""

from __future__ import annotations

from html import unescape

from oxillama.toolcalls.calls import Arguments, Calls, closed
from oxillama.toolcalls.json_calls import another, envelopes, named, rows
from oxillama.toolcalls.schemas import ANY
from oxillama.toolcalls.source import MalformedCall, Reading, Source
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

CDATA = ("<![CDATA[", "]]>")


def tagged(source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str) -> Reading[None]:
    """JSON, or Qwen's ``<function=NAME><parameter=KEY>``."""
    if opened.endswith("["):  # of the list
        source.unread("[")
    if opened != "<function=":
        yield from source.spaces()
        if not (yield from source.one_of(("<function=",))):
            if not grammar.members:
                yield from named(source, calls)
            else:
                yield from rows(source, calls) if grammar.lines else envelopes(source, calls)
            if grammar.close:
                yield from closed(source, grammar.close)
            return
    yield from function_tags(source, calls, grammar.tight)
    yield from closed(source, grammar.close)


def function_tags(source: Source, calls: Calls, tight: bool) -> Reading[None]:
    """From behind ``<function=`` to ``</function>``. Line breaks next to a value's tags do not count, unless
    values are ``tight``."""
    breaks, stops = (("\n",), ("\n</parameter>", "</parameter>")) if not tight else ((), ("</parameter>",))
    name, stop = yield from source.text_until((">", "\n", "<"))
    if stop != ">":
        raise MalformedCall(f"expected <function=NAME>, got {name[:80]!r}")
    calls.begin(name)
    found = Arguments(calls, name.strip())
    while (yield from source.expect(("<parameter=", "</function>"))) == "<parameter=":
        key, stop = yield from source.text_until((">", "\n", "<"))
        if stop != ">":
            raise MalformedCall(f"expected <parameter=NAME>, got {key[:80]!r}")
        yield from source.one_of(breaks)
        yield from found.add(source, key, stops)
    found.end()


def argument_tags(source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str) -> Reading[None]:
    """GLM's: a name, then the tags of a key and of a value in turn; perhaps several such between others."""
    begin, behind, end = grammar.inside
    key_tag, key_end, value_tag, value_end = grammar.tags
    if opened != begin:
        yield from source.expect((begin,))
    while True:
        name, stop = yield from source.text_until((key_tag, end, *((behind,) if behind else ())))
        if not stop:
            raise MalformedCall(f"expected a name and {end}, got {name[:80]!r}")
        calls.begin(name)
        found = Arguments(calls, name.strip())
        if behind and stop == behind:
            stop = yield from _next(source, calls, key_tag, end)
        while stop == key_tag:
            key, stop = yield from source.text_until((key_end,))
            if not stop:
                raise MalformedCall(f"expected {key_end}, got the end of the text")
            yield from source.expect((value_tag,))
            yield from found.add(source, key, (value_end,))
            stop = yield from _next(source, calls, key_tag, end)
        found.end()
        if grammar.close == end or not (yield from another(source, begin, grammar.close)):
            return


def _next(source: Source, calls: Calls, key_tag: str, end: str) -> Reading[str]:
    """What follows a value; at the end of the text, the end of the call."""
    yield from source.spaces()
    if calls.constrained or (yield from source.next()):
        return (yield from source.expect((key_tag, end)))
    return end


def close_of(grammar: ToolCallGrammar, opened: str) -> str:
    """What a call that began with ``opened`` ends with; "" if it is its JSON."""
    return grammar.close or (f"</{opened[1:]}" if grammar.style in ("invoke", "recipients") else "")


def invokes(source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str) -> Reading[None]:
    """Tags with attributes: a call's and a parameter's, of which one may tell the parameter's type."""
    call, parameter, end_parameter, end_call, bracket = grammar.tags
    call, parameter = call.removesuffix('"'), parameter.removesuffix('"')
    outer = opened != f'{call}"'
    close = close_of(grammar, opened)
    if not outer:
        source.unread('"')
    while not outer or (yield from source.expect((call, close))) == call:
        name = yield from attribute(source, grammar)
        if grammar.typed == "type" and (yield from source.expect((bracket, "index="))) != bracket:
            yield from attribute(source, grammar)
            yield from source.expect((bracket,))
        elif grammar.typed != "type":
            yield from source.expect((bracket,))
        calls.begin(name)
        found = Arguments(calls, name.strip(), CDATA if grammar.cdata else None)
        while (yield from source.expect((parameter, end_call))) == parameter:
            key = yield from attribute(source, grammar)
            types: frozenset[str] | None = None
            told = f"{grammar.typed}="
            if grammar.typed and (yield from source.expect((bracket, told))) == told:
                types = told_types(grammar.typed, (yield from attribute(source, grammar)))
                yield from source.expect((bracket,))
            elif not grammar.typed:
                yield from source.expect((bracket,))
            yield from found.add(source, key, (end_parameter,), types)
        found.end()
        if not outer:
            return
        yield from source.spaces()
        if not (yield from source.next()):
            return


def told_types(attribute: str, text: str) -> frozenset[str]:
    """The types that a parameter's attribute tells."""
    if attribute == "string":
        return frozenset({"string"}) if text == "true" else ANY
    return frozenset({"number" if text == "integer" else text}) & ANY or ANY


def attribute(source: Source, grammar: ToolCallGrammar) -> Reading[str]:
    """A text in quotes; where tags are not XML's, in the characters of XML."""
    bracket = grammar.tags[-1]
    yield from source.expect(('"',))
    text, stop = yield from source.text_until(('"', bracket))
    if stop != '"':
        raise MalformedCall(f"expected a name in quotes, got {text[:80]!r}")
    return unescape(text) if grammar.typed == "type" else text
