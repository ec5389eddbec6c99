"""Work: tells text, reasoning and tool calls apart in what a model writes, and runs the calls.

`formats` is the table of ways to write them; `MessageParser` turns text, piece by piece, into `events`, with
the readers of `json_calls`, `tag_calls`, `element_calls`, `dict_calls` and `python_calls`; `turns` reads
messages that are made of several. `message_rules`, `turn_rules`, `call_rules` and `value_rules` are the
grammars of what these read. `definitions` makes JSON definitions of tools, `conversation` the messages of
calls and results. A `ToolDispatcher` runs calls; `run_tools` and `arun_tools` are the loop with any engine.
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
from oxillama.toolcalls.detector import ToolCallDetector
from oxillama.toolcalls.dispatch import FunctionDispatcher, NoOpDispatcher, ToolDispatcher, ToolResult
from oxillama.toolcalls.formats import GRAMMARS, grammar_of_template
from oxillama.toolcalls.message import MessageParser
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
