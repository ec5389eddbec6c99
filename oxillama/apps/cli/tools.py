"""``--tools`` and ``--mcp``: the tools that a model may call in a chat, and calls that the user allows."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli.console import printable, read_text
from oxillama.apps.cli.media import media_of
from oxillama.apps.cli.terminal import write_text
from oxillama.base.distribution import install
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama import Generation, GenerationOptions, InferenceEngine
    from oxillama.apps.cli.mcp import AskingDispatcher
    from oxillama.base.events import ToolCall
    from oxillama.text.toolcalls.definitions import Definition
    from oxillama.text.toolcalls.dispatch import ToolResult

Message = dict[str, Any]
MAX_STEPS = 8
"""Answers to one message."""


def add_tool_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tools")
    group.add_argument(
        "--tools",
        action="append",
        metavar="FILE.json|MODULE:FUNCTION",
        help="a tool that the model may call: a file with one JSON definition or a list of them, or a Python "
        "function; may be given more than once. Calls are printed",
    )
    group.add_argument(
        "--tool-choice",
        metavar="CHOICE",
        help="auto, none, required, or the name of a tool that must be called (default: auto)",
    )
    group.add_argument(
        "--run-tools",
        action="store_true",
        help="run the Python functions that the model calls, with its arguments, and go on with the results",
    )
    group.add_argument(
        "--mcp",
        metavar="CONFIG.json",
        help='tools of MCP servers, of a file with "mcpServers"; each call is shown, and asked for before it '
        f"runs. Needs {install('mcp')}",
    )


class ToolBox:
    """The tools of a chat.

    Args:
        servers: runs the calls of servers' tools; None without servers.

    Raises:
        ConfigError: a definition cannot be read or is invalid; only some of the tools are functions to run;
            two tools have the same name.
    """

    def __init__(self, args: argparse.Namespace, servers: AskingDispatcher | None = None) -> None:
        from oxillama.text.toolcalls import definitions
        from oxillama.text.toolcalls.run import TIMEOUT, CallRunner

        found = [tool for spec in args.tools or () for tool in tools_of(spec)]
        self.own_definitions: list[Definition] = definitions(found)
        self.servers: AskingDispatcher | None = servers
        self.choice = args.tool_choice or "auto"
        self.runner: CallRunner | None = CallRunner(found, None, TIMEOUT) if args.run_tools else None
        definitions(self.definitions)

    @property
    def definitions(self) -> list[Definition]:
        """The definitions of all tools that can be used now."""
        return [*self.own_definitions, *(self.servers.client.definitions() if self.servers else ())]

    def results(self, calls: list[ToolCall]) -> list[ToolResult] | None:
        """The results of calls; None if a call's tool is not run."""
        ours = [call for call in calls if self.servers is None or not self.servers.owns(call)]
        if ours and self.runner is None:
            return None
        found = {
            id(call): result for call, result in zip(ours, self.runner.results(ours) if self.runner else ())
        }
        for call in calls:
            if id(call) not in found:
                assert self.servers is not None
                found[id(call)] = self.servers.dispatch(call)
        return [found[id(call)] for call in calls]

    def prompt(
        self,
        messages: list[Message],
        chosen: GenerationOptions,
        engine: InferenceEngine,
        step: int,
        variables: Mapping[str, Any],
    ) -> tuple[list[int], GenerationOptions]:
        """The prompt and the options of an answer; only the first answer to a message must have a call."""
        from dataclasses import replace

        from oxillama.text.chat.prompt import chat_prompt

        choice = self.choice if step == 0 or self.choice == "none" else "auto"
        with_tools = replace(chosen, tools=self.definitions, tool_choice=choice)
        media = media_of(engine)
        return chat_prompt(engine.tokenizer, messages, with_tools, variables, media=media)

    def told(self, generation: Generation, n_before: int) -> list[Message]:
        """Prints the calls of an answer and runs them, if the user said so; the messages that follow."""
        from oxillama.apps.cli.mcp import in_short
        from oxillama.text.toolcalls.openai_form import answer_message, result_message

        calls = generation.tool_calls if generation.finish_reason == "tool_calls" else []
        messages = [answer_message(generation.text, generation.reasoning, calls, n_before)]
        for failed in generation.failed_calls:
            print(printable(f"call failed: {failed.reason}"), file=sys.stderr, flush=True)
        for call in generation.tool_calls:
            write_text(f"-> {call.name} {call.text if self.servers is None else printable(call.text)}\n")
        results = self.results(calls)
        if calls and results is not None:
            ids = [call["id"] for call in messages[0]["tool_calls"]]
            for id, call, result in zip(ids, calls, results):
                messages.append(result_message(id, call.name, result))
                content = messages[-1]["content"]
                write_text(f"<- {content if self.servers is None else in_short(content)}\n")
        return messages


def tools_of(spec: str) -> list[Any]:
    """The tools that an argument names. Raises ConfigError."""
    module, colon, name = spec.rpartition(":")
    if not colon or spec.endswith(".json"):
        try:
            found = json.loads(read_text(spec, "--tools"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--tools: expected JSON in {spec}, got {error}") from error
        return found if isinstance(found, list) else [found]
    sys.path.insert(0, os.getcwd())
    try:
        tool: Any = importlib.import_module(module)
        for part in name.split("."):
            tool = getattr(tool, part)
    except Exception as error:  # a module is a program, which may raise anything
        raise ConfigError(f"--tools: expected a Python function, got {spec}: {error!r}") from error
    finally:
        sys.path.remove(os.getcwd())
    return [tool]
