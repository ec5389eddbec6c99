"""Converts tool servers' data: tools to model definitions, and results to texts."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.apps.mcp.errors import reason_of
from oxillama.base.deadline import deadline
from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.text.grammar import Grammar
from oxillama.text.toolcalls.definitions import Definition, definition_of
from oxillama.text.toolcalls.dispatch import ToolResult
from oxillama.text.toolcalls.formats import GRAMMARS
from oxillama.text.toolcalls.message_rules import message_rules
from oxillama.text.toolcalls.parameters import Tool

MOST_NAME = 64
"""The maximum length of a tool's name in OpenAI's interface."""
MOST_DESCRIPTION = 10_000
"""The maximum length of a description in characters."""
MOST_SCHEMA = 100_000
"""The maximum length of a schema as JSON in characters."""
COMPILE_SECONDS = 5.0
"""Time limit for compiling a tool's grammar."""

Compile = Callable[[Definition], "str | None"]
"""`why_not_compiled`, or the same in another process."""

OTHER = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that OpenAI's interface does not allow in a tool's name."""


@dataclass(frozen=True)
class McpTool:
    """A tool of a server.

    Attributes:
        name: the name that the model uses: ``server__tool``.
        server, own_name: the configuration's name of the server, and the server's name of the tool.
        description, parameters: from the server; ``parameters`` is a JSON schema.
        refused: why the tool cannot be used; None if it can.
        hints: the server's claims about the tool's effects ("readOnlyHint" and others), not verified.
    """

    name: str
    server: str
    own_name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)

    @property
    def definition(self) -> Definition:
        """The definition, for chat templates."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters) or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}

    @property
    def digest(self) -> str:
        """A hash that changes with the tool, so that permission for the old tool does not cover the new."""
        facts = [self.server, self.own_name, self.description, self.parameters]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def tools_of(
    server: str, listed: Sequence[Any], known: Sequence[McpTool], compile: Compile, seconds: float
) -> list[McpTool]:
    """The tools in a server's list, each checked; names are not unique yet (`with_unique_names`).

    Args:
        listed: objects of the package ``mcp``.
        known: the earlier tools of the server, which need not be compiled again.
        compile: returns why a tool cannot be compiled.
        seconds: after which no further tool is compiled; those left are refused.
    """
    found, seen, end = [], set(), time.monotonic() + seconds
    usable = {tool.own_name: tool for tool in known if tool.refused is None}
    for each in listed:
        hints = {} if each.annotations is None else each.annotations.model_dump(by_alias=True)
        tool = McpTool(
            name=base_name(server, each.name)[:MOST_NAME],
            server=server,
            own_name=each.name,
            description=each.description or "",
            parameters=each.input_schema,
            hints={key: value for key, value in hints.items() if isinstance(value, bool)},
        )
        earlier = usable.get(each.name)
        if each.name in seen:
            reason: str | None = "the server lists the name twice"
        elif earlier is not None and replace(tool, name=earlier.name) == earlier:
            reason = None
        elif time.monotonic() > end:
            reason = f"parameters: expected the schemas of all tools to compile within {seconds:g} s"
        else:
            reason = why_refused(tool, compile)
        seen.add(each.name)
        found.append(tool if reason is None else refused(tool, reason))
    return found


def refused(tool: McpTool, reason: str) -> McpTool:
    """The tool marked as unusable; overlong texts are left out."""
    description = tool.description if len(tool.description) <= MOST_DESCRIPTION else ""
    own_name = tool.own_name[:200]
    return replace(tool, own_name=own_name, description=description, parameters={}, refused=reason)


def why_refused(tool: McpTool, compile: Compile) -> str | None:
    """Why a tool cannot be used; None if it can."""
    if not tool.own_name or len(tool.own_name) > 200:
        return f"name: expected 1 to 200 characters, got {len(tool.own_name)}"
    if len(tool.description) > MOST_DESCRIPTION:
        return f"description: expected at most {MOST_DESCRIPTION} characters, got {len(tool.description)}"
    try:
        n_chars = len(json.dumps(tool.parameters))
        if n_chars > MOST_SCHEMA:
            return f"parameters: expected at most {MOST_SCHEMA} characters of JSON, got {n_chars}"
        definition = definition_of(tool.definition, tool.own_name)
    except RecursionError:
        return "parameters: expected a schema that is not nested as deeply"
    except ConfigError as error:
        return reason_of(error)
    return compile(definition)


def why_not_compiled(definition: Definition, seconds: float = COMPILE_SECONDS) -> str | None:
    """Why a tool's schema cannot be compiled to a grammar within so many seconds; None if it can."""
    try:
        with deadline(seconds):
            rules = message_rules(GRAMMARS["qwen"], [Tool.of(definition["function"])], "auto")
            Grammar.from_rules(rules)
    except TimeoutError:
        return too_late(seconds)
    except OxiLlamaError as error:
        return reason_of(error)
    except Exception as error:  # the schema may be anything
        return f"parameters: {reason_of(error)}"
    return None


def too_late(seconds: float = COMPILE_SECONDS) -> str:
    """The reason of a tool that is not compiled in time."""
    return f"parameters: expected a schema that is compiled within {seconds:g} s"


# --- names --------------------------------------------------------------------------------------------


def safe(text: str) -> str:
    """The text with each run of characters other than letters, digits, "-" and "_" replaced by "_"."""
    return OTHER.sub("_", text).strip("_") or "_"


def base_name(server: str, tool: str) -> str:
    """``server__tool``."""
    return f"{safe(server)}__{safe(tool)}"


def with_unique_names(tools: Sequence[McpTool]) -> list[McpTool]:
    """The tools of all servers with unique names: names that are too long or ambiguous end with a hash.

    The names depend on the set of tools only, not on the order in which servers answer.
    """
    found: list[McpTool] = []
    pairs = {(tool.server, tool.own_name) for tool in tools}
    bases = Counter(base_name(*pair) for pair in pairs)
    taken: Counter[str] = Counter()
    for tool in tools:
        name = base_name(tool.server, tool.own_name)
        if bases[name] > 1 or len(name) > MOST_NAME:
            digest = hashlib.sha256(f"{tool.server}\0{tool.own_name}".encode()).hexdigest()[:8]
            name = f"{name[: MOST_NAME - 9]}_{digest}"
        taken[name] += 1
        if taken[name] > 1:  # the server lists the tool twice
            name = f"{name[: MOST_NAME - 4]}_{taken[name]}"
        found.append(replace(tool, name=name))
    return found


# --- results ------------------------------------------------------------------------------------------


def result_of(found: Any, most: int) -> ToolResult:
    """The result of a call as text of at most ``most`` characters, with a note if it was cut.

    Args:
        found: a ``CallToolResult`` of the package ``mcp``.
    """
    parts = [text_of(part) for part in found.content]
    if not any(parts) and found.structured_content is not None:
        parts = [json.dumps(found.structured_content, ensure_ascii=False)]
    text = cut("\n".join(parts), most)
    return (
        ToolResult(error=text or "the tool failed and gave no reason") if found.is_error else ToolResult(text)
    )


def text_of(part: Any) -> str:
    """A part of a result as text; a note in place of a part that is not text."""
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        return str(text) if text is not None else f"[a file, {part.resource.uri}: left out]"
    if part.type == "resource_link":
        return f"[a link: {part.uri}]"
    return f"[{part.type}, {getattr(part, 'mime_type', None) or 'of an unknown type'}: left out]"


def cut(text: str, most: int) -> str:
    """The text cut to ``most`` characters, with a note of its full length."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]}\n[cut: {most} of {len(text)} characters]"
