"""Which reader a grammar's calls have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oxillama.toolcalls.calls import Calls
from oxillama.toolcalls.dict_calls import dictionary
from oxillama.toolcalls.formats import ToolCallGrammar
from oxillama.toolcalls.json_calls import mistral, objects, sections
from oxillama.toolcalls.python_calls import python_list
from oxillama.toolcalls.source import Reading, Source
from oxillama.toolcalls.tag_calls import argument_tags, invokes, tagged


def syntax_of(grammar: ToolCallGrammar, source: Source, calls: Calls, opened: str) -> Reading[None]:
    """What reads a call that began with ``opened``."""
    readers: dict[str, Callable[[], Reading[None]]] = {
        "tagged": partial(tagged, source, calls, grammar, opened),
        "keys": partial(argument_tags, source, calls, grammar.close),
        "mistral": partial(mistral, source, calls),
        "sections": partial(sections, source, calls, grammar, opened),
        "invoke": partial(invokes, source, calls, opened),
        "dict": partial(dictionary, source, calls, grammar),
        "python": partial(python_list, source, calls, grammar.close),
        "bare": partial(objects, source, calls),
    }
    return readers[grammar.style]()


def close_of(grammar: ToolCallGrammar, opened: str) -> str:
    """What a call that began with ``opened`` ends with; "" if it is its JSON."""
    return f"</{opened[1:]}" if grammar.style == "invoke" else grammar.close
