"""Tools as a model has them, and results as texts, made of what a tool server sends."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar
from oxillama.mcp.errors import reason_of
from oxillama.toolcalls.definitions import Definition, definition_of
from oxillama.toolcalls.dispatch import ToolResult
from oxillama.toolcalls.formats import GRAMMARS
from oxillama.toolcalls.message_rules import message_rules
from oxillama.toolcalls.value_rules import Tool

MOST_NAME = 64
"""Characters of a tool's name in OpenAI's interface."""
MOST_DESCRIPTION = 10_000
"""Characters of a description."""
MOST_SCHEMA = 100_000
"""Characters of a schema, as JSON."""
COMPILE_SECONDS = 5.0
"""Within which the grammar of a tool must be compiled."""

OTHER = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that a tool's name cannot have in OpenAI's interface."""


@dataclass(frozen=True)
class McpTool:
    """A tool of a server.

    Attributes
    ----------
    name : that the model calls: ``server__tool``.
    server, own_name : as the configuration names the server, and the server its tool.
    description, parameters : as the server says; ``parameters`` is a JSON schema.
    refused : why the tool cannot be used; None if it can.
    hints : what the server says of the tool's effects ("readOnlyHint" and others). Nobody checks that.
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
        """The definition, as chat templates take it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters) or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}

    @property
    def digest(self) -> str:
        """Changes when the server changes the tool: who allowed the old tool did not allow the new one."""
        facts = [self.server, self.own_name, self.description, self.parameters]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def tools_of(server: str, listed: Sequence[Any]) -> list[McpTool]:
    """The tools that a server lists, each checked; names are not unique yet (`with_unique_names`).

    Parameters
    ----------
    listed : objects of the package ``mcp``.
    """
    found, seen = [], set()
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
        reason = "the server lists the name twice" if each.name in seen else why_refused(tool)
        seen.add(each.name)
        found.append(tool if reason is None else refused(tool, reason))
    return found


def refused(tool: McpTool, reason: str) -> McpTool:
    """A tool that cannot be used. What is too long to be shown is left out."""
    description = tool.description if len(tool.description) <= MOST_DESCRIPTION else ""
    own_name = tool.own_name[:200]
    return replace(tool, own_name=own_name, description=description, parameters={}, refused=reason)


def why_refused(tool: McpTool) -> str | None:
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
    return why_not_compiled(definition)


def why_not_compiled(definition: Definition) -> str | None:
    """Why no grammar can be made of a tool's schema within `COMPILE_SECONDS`; None if one can."""
    done: Future[str | None] = Future()

    def work() -> None:
        try:
            rules = message_rules(GRAMMARS["qwen"], [Tool.of(definition["function"])], "auto")
            Grammar.from_rules(rules)
            done.set_result(None)
        except (GrammarError, ConfigError) as error:
            done.set_result(reason_of(error))
        except Exception as error:  # the schema may be anything
            done.set_result(f"parameters: {reason_of(error)}")

    threading.Thread(target=work, name="oxillama mcp schema", daemon=True).start()
    try:
        return done.result(COMPILE_SECONDS)
    except FutureTimeout:
        return f"parameters: expected a schema that is compiled within {COMPILE_SECONDS:g} s"


# --- names --------------------------------------------------------------------------------------------


def safe(text: str) -> str:
    """A text with underscores for all but letters, digits, hyphens and underscores."""
    return OTHER.sub("_", text).strip("_") or "_"


def base_name(server: str, tool: str) -> str:
    """``server__tool``."""
    return f"{safe(server)}__{safe(tool)}"


def with_unique_names(tools: Sequence[McpTool]) -> list[McpTool]:
    """Tools of all servers: a name that is too long or is not the only one of its kind ends with a hash.

    The name of a tool depends on the set of tools and not on the order in which servers answer.
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
    """What a call came to, as a text of at most ``most`` characters and a note if it was cut.

    Parameters
    ----------
    found : a ``CallToolResult`` of the package ``mcp``.
    """
    parts = [text_of(part) for part in found.content]
    if not any(parts) and found.structured_content is not None:
        parts = [json.dumps(found.structured_content, ensure_ascii=False)]
    text = cut("\n".join(parts), most)
    return (
        ToolResult(error=text or "the tool failed and gave no reason") if found.is_error else ToolResult(text)
    )


def text_of(part: Any) -> str:
    """A part of a result, as text: a note for what a model of texts cannot read."""
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        return str(text) if text is not None else f"[a file, {part.resource.uri}: left out]"
    if part.type == "resource_link":
        return f"[a link: {part.uri}]"
    return f"[{part.type}, {getattr(part, 'mime_type', None) or 'of an unknown type'}: left out]"


def cut(text: str, most: int) -> str:
    """A text of at most ``most`` characters, and a note of how many there were."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]}\n[cut: {most} of {len(text)} characters]"
