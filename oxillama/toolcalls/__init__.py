"""Work: tells text, reasoning and tool calls apart in what a model writes, and runs the calls.

`formats` is the table of ways to write them, each a `ToolCallGrammar` with patterns of its calls. Both
`MessageParser`, which turns text into `events` piece by piece, and `message_rules`, the grammar of the same
messages, are made of it: `call_format` has the calls of both, `turns` messages that are made of several,
`tags`, `elements`, `members`, `objects` and `python_calls` the kinds of arguments. `definitions` makes JSON
definitions of tools, `conversation` the messages of calls and results. A `ToolDispatcher` runs calls;
`run_tools` and `arun_tools` are the loop with any engine.
"""

from oxillama.events import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.dispatch import FunctionDispatcher, NoOpDispatcher, ToolDispatcher, ToolResult
from oxillama.toolcalls.formats import GRAMMARS, grammar_of_template
from oxillama.toolcalls.message import MessageParser, ToolCallDetector
from oxillama.toolcalls.run import CallResult, ToolRun, arun_tools, run_tools
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

__all__ = [
    "GRAMMARS",
    "ArgumentsPart",
    "CallEnd",
    "CallFailed",
    "CallResult",
    "CallStart",
    "Event",
    "FunctionDispatcher",
    "MessageParser",
    "NoOpDispatcher",
    "ReasoningPart",
    "TextPart",
    "ToolCall",
    "ToolCallDetector",
    "ToolCallGrammar",
    "ToolDispatcher",
    "ToolResult",
    "ToolRun",
    "arun_tools",
    "definitions",
    "grammar_of_template",
    "run_tools",
]
