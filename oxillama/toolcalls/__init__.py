"""Work: tells text, reasoning and tool calls apart in what a model writes.

`formats` is the table of ways to write them; `MessageParser` turns text, piece by piece, into `events`, with
the readers of `json_calls`, `tag_calls` and `dict_calls`. `ToolCallDetector` gives whole calls only, and a
`ToolDispatcher` runs them.
"""

from oxillama.toolcalls.detector import ToolCallDetector
from oxillama.toolcalls.dispatch import NoOpDispatcher, ToolDispatcher, ToolResult
from oxillama.toolcalls.events import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.toolcalls.formats import GRAMMARS, ToolCallGrammar, grammar_of_template
from oxillama.toolcalls.message import MessageParser

__all__ = [
    "GRAMMARS",
    "ArgumentsPart",
    "CallEnd",
    "CallFailed",
    "CallStart",
    "Event",
    "MessageParser",
    "NoOpDispatcher",
    "ReasoningPart",
    "TextPart",
    "ToolCall",
    "ToolCallDetector",
    "ToolCallGrammar",
    "ToolDispatcher",
    "ToolResult",
    "grammar_of_template",
]
