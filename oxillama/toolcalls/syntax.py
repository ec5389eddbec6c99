"""Which reader a grammar's calls have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oxillama.toolcalls.calls import Calls
from oxillama.toolcalls.dict_calls import dictionary
from oxillama.toolcalls.element_calls import elements
from oxillama.toolcalls.json_calls import mistral, objects, sections
from oxillama.toolcalls.python_calls import python_list
from oxillama.toolcalls.source import Reading, Source
from oxillama.toolcalls.tag_calls import argument_tags, invokes, tagged
from oxillama.toolcalls.tool_grammar import ToolCallGrammar


def syntax_of(grammar: ToolCallGrammar, source: Source, calls: Calls, opened: str) -> Reading[None]:
    """What reads a call that began with ``opened``."""
    readers: dict[str, Callable[[], Reading[None]]] = {
        "tagged": partial(tagged, source, calls, grammar, opened),
        "keys": partial(argument_tags, source, calls, grammar, opened),
        "mistral": partial(mistral, source, calls),
        "sections": partial(sections, source, calls, grammar, opened),
        "invoke": partial(invokes, source, calls, grammar, opened),
        "elements": partial(elements, source, calls, grammar),
        "dict": partial(dictionary, source, calls, grammar),
        "python": partial(python_list, source, calls, grammar.close),
        "bare": partial(objects, source, calls),
    }
    return readers[grammar.style]()
