"""Calls in tags: Qwen's, GLM's and DeepSeek's. Values are JSON or strings, as the parameters' types say."""

from __future__ import annotations

from oxillama.toolcalls.calls import Arguments, Calls, closed
from oxillama.toolcalls.formats import ToolCallGrammar
from oxillama.toolcalls.json_calls import envelopes
from oxillama.toolcalls.schemas import ANY
from oxillama.toolcalls.source import MalformedCall, Reading, Source


def tagged(source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str) -> Reading[None]:
    """JSON, or Qwen's ``<function=NAME><parameter=KEY>``."""
    if opened != "<function=":
        yield from source.spaces()
        if not (yield from source.one_of(("<function=",))):
            yield from envelopes(source, calls)
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


def argument_tags(source: Source, calls: Calls, close: str) -> Reading[None]:
    """GLM's: a name, then ``<arg_key>`` and ``<arg_value>`` in turn, up to the closing text."""
    name, stop = yield from source.text_until(("<arg_key>", close))
    if not stop:
        raise MalformedCall(f"expected a name and {close}, got {name[:80]!r}")
    calls.begin(name)
    found = Arguments(calls, name.strip())
    while stop == "<arg_key>":
        key, stop = yield from source.text_until(("</arg_key>",))
        if not stop:
            raise MalformedCall("expected </arg_key>, got the end of the text")
        yield from source.expect(("<arg_value>",))
        yield from found.add(source, key, ("</arg_value>",))
        yield from source.spaces()
        if calls.constrained or (yield from source.next()):
            stop = yield from source.expect(("<arg_key>", close))
        else:
            stop = close
    found.end()


def mark_of(opened: str) -> str:
    """What stands before the names of tags, as in the one that a call began with; "" for nothing."""
    return opened[1 : opened.rindex("｜") + 1] if "｜" in opened else ""


def invokes(source: Source, calls: Calls, opened: str) -> Reading[None]:
    """``invoke`` and ``parameter``; an attribute of DeepSeek's says which values are strings."""
    mark = mark_of(opened)
    invoke, end_invoke = f"<{mark}invoke name=", f"</{mark}invoke>"
    parameter, end_parameter = f"<{mark}parameter name=", f"</{mark}parameter>"
    close = f"</{opened[1:]}"
    while (yield from source.expect((invoke, close))) == invoke:
        name = yield from attribute(source)
        yield from source.expect((">",))
        calls.begin(name)
        found = Arguments(calls, name.strip())
        while (yield from source.expect((parameter, end_invoke))) == parameter:
            key = yield from attribute(source)
            types: frozenset[str] | None = None
            if (yield from source.expect((">", "string="))) == "string=":
                is_string = yield from attribute(source)
                types = frozenset({"string"}) if is_string == "true" else ANY
                yield from source.expect((">",))
            yield from found.add(source, key, (end_parameter,), types)
        found.end()
        yield from source.spaces()
        if not (yield from source.next()):
            return


def attribute(source: Source) -> Reading[str]:
    """A text in quotes."""
    yield from source.expect(('"',))
    text, stop = yield from source.text_until(('"', ">"))
    if stop != '"':
        raise MalformedCall(f"expected a name in quotes, got {text[:80]!r}")
    return text
