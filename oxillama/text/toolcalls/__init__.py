"""Tool calls in a model's text: parses text, reasoning and calls, and runs the calls.

`formats` is the table of ways to write calls, each a `ToolCallGrammar` with patterns of its calls. Both
`MessageParser`, which turns text into events piece by piece, and `message_rules`, the grammar of the same
messages, are built from a format: `call_format` has the calls of both, `turns` formats of several messages,
`tags`, `elements`, `members`, `objects` and `python_calls` the kinds of arguments. `answer_format` chooses
the format of a request. `definitions` makes JSON definitions of tools, `openai_form` messages in OpenAI's
form. A `ToolDispatcher` runs calls; `run_tools` and `arun_tools` are the loop with any engine.
"""

from oxillama.base.events import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.text.toolcalls.definitions import definitions
from oxillama.text.toolcalls.dispatch import FunctionDispatcher, NoOpDispatcher, ToolDispatcher, ToolResult
from oxillama.text.toolcalls.formats import GRAMMARS, grammar_of_template
from oxillama.text.toolcalls.message import MessageParser, ToolCallDetector
from oxillama.text.toolcalls.run import CallResult, ToolRun, arun_tools, run_tools
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

__all__ = [
    "GRAMMARS", "ArgumentsPart", "CallEnd", "CallFailed", "CallResult", "CallStart", "Event",
    "FunctionDispatcher", "MessageParser", "NoOpDispatcher", "ReasoningPart", "TextPart", "ToolCall",
    "ToolCallDetector", "ToolCallGrammar", "ToolDispatcher", "ToolResult", "ToolRun", "arun_tools",
    "definitions", "grammar_of_template", "run_tools",
]  # fmt: skip
