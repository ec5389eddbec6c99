"""``/v1/chat/completions`` for requests with tools of the operator's MCP servers.

The server runs the calls of such tools, and the model continues with the results. A request asks for them in
OpenAI's form, ``{"type": "mcp", "server_label": ..., "require_approval": "never"}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.mcp import McpClient, McpTool
from oxillama.apps.server.bodies import ChatBody
from oxillama.apps.server.errors import ApiError, invalid, refuse_others
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.openai.chat import Answer, choice
from oxillama.apps.server.running import chosen, connected, deltas, in_thread
from oxillama.apps.server.stream import DONE, EventStream, data_line
from oxillama.apps.server.tool_servers import tool_servers
from oxillama.base.events import Event, ReasoningPart, TextPart
from oxillama.engine.generation import Generation
from oxillama.text.toolcalls.openai_form import CallIds, delta_of, whole_message
from oxillama.text.toolcalls.run import MAX_STEPS, CallResult, arun_tools


async def answered_with_tools(request: Request, body: ChatBody) -> Response | EventStream:
    """The answer to a body with such tools. Raises ApiError."""
    servers = tool_servers(request)
    if not servers:
        wanted = "functions, for this server has no tool servers (--mcp)"
        raise invalid("tools", wanted, "mcp")
    labels = {str(tool.get("server_label")) for tool in body.tools}
    listed = await connected(request, servers.client.atools(labels))
    tools = chosen_tools(body.tools, listed, {each.name: each.failure for each in servers.client.servers()})
    here, engine = await chosen(request, body.model)
    make = partial(Answer, engine, here.hosted)
    answer = ServedTools(make, body, servers.client, tools)
    if body.stream:
        return EventStream(answer.lines(), here.config.ping_seconds)
    return await connected(request, answer.whole())


KNOWN = ("type", "server_label", "server_description", "require_approval", "allowed_tools")
"""Fields of such a tool."""


def chosen_tools(
    tools: list[dict[str, Any]], listed: Iterable[McpTool], servers: Mapping[str, str | None]
) -> list[McpTool]:
    """The tools that a request asks for, each once.

    Args:
        tools: of the body.
        listed: of all servers.
        servers: why each server has no tools; None without a failure.

    Raises ApiError.
    """
    names, found = list(servers), {}
    usable = [tool for tool in listed if tool.refused is None]
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type") != "mcp":
            raise invalid(
                f"{where}.type",
                "mcp, as another tool has: functions are for another request",
                tool.get("type"),
            )
        refuse_others(where, tool, KNOWN)
        label = tool.get("server_label")
        if label not in names:
            raise invalid(f"{where}.server_label", f"one of {', '.join(names) or 'no servers'}", label)
        if tool.get("require_approval", "always") != "never":
            wanted = "never, for nobody can be asked in a chat completion"
            raise invalid(f"{where}.require_approval", wanted, tool.get("require_approval", "always"))
        own = {each.own_name: each for each in usable if each.server == label}
        if not own and servers[label] is not None:
            message = f"{where}.server_label: {label} has no tools: {servers[label]}"
            raise ApiError(503, message, type="unavailable_error", code="tool_server_failed")
        allowed = tool.get("allowed_tools")
        if isinstance(allowed, Mapping) and set(allowed) == {"tool_names"}:
            allowed = allowed["tool_names"]
        if allowed is not None and not isinstance(allowed, list):
            raise invalid(f"{where}.allowed_tools", "a list of names", allowed)
        for name in own if allowed is None else allowed:
            if not isinstance(name, str) or name not in own:
                raise invalid(f"{where}.allowed_tools", f"names of {', '.join(own)[:1000]}", name)
            found[own[name].name] = own[name]
    return list(found.values())


OF_ONE = ("n", "logprobs", "timings_per_token", "return_progress", "verbose")
"""Fields of a body, beside ``receipt``, that ask for something of one answer of the model."""


class Round:
    """An answer of a conversation with tools, in the place of a generation of `arun_tools`.

    Args:
        make: makes the answer, in a thread.
    """

    def __init__(self, make: Callable[[], Answer]) -> None:
        self._make = make
        self.generation: Generation | None = None
        self.answer: Answer | None = None

    async def events(self) -> AsyncIterator[Event]:
        self.answer = await in_thread(self._make)
        async with self.answer.started() as generations:
            (self.generation,) = generations
            async for delta in deltas(generations):
                if delta.event is not None:
                    yield delta.event

    def __await__(self) -> Any:
        assert self.generation is not None
        return self.generation.__await__()

    def cancel(self) -> None:
        if self.generation is not None:
            self.generation.cancel()


class ServedTools:
    """The answer to a body with tools of servers: of several rounds, of which the last one has no calls.

    Raises ApiError.
    """

    def __init__(
        self, make: Callable[[ChatBody], Answer], body: ChatBody, client: McpClient, tools: list[McpTool]
    ) -> None:
        given = {"receipt": body.rest.get("receipt", False), **{name: getattr(body, name) for name in OF_ONE}}
        for name, value in given.items():
            usual = 1 if name == "n" else False
            if value != usual:
                raise invalid(name, f"{usual} beside tools of servers", value)
        self._make = make
        self.body: ChatBody = body
        self.client: McpClient = client
        self.tools: dict[str, McpTool] = {tool.name: tool for tool in tools}
        self.rounds: list[Round] = []

    def stream_chat(self, messages: Iterable[Mapping[str, Any]], **fields: Any) -> Round:
        """The next round. The last possible round makes no calls, so that there is an answer."""
        is_last = len(self.rounds) + 1 >= MAX_STEPS
        changes = {**fields, "messages": list(messages)} | ({"tool_choice": "none"} if is_last else {})
        make, body = self._make, self.body  # a reference to `self` would be a circle, freed late
        self.rounds.append(Round(lambda: make(body.model_copy(update=changes))))
        return self.rounds[-1]

    async def parts(self) -> AsyncGenerator[dict[str, Any]]:
        """The deltas of all rounds, and one with ``mcp_calls`` for each call that was run."""
        queue: asyncio.Queue[Event | CallResult | Exception | None] = asyncio.Queue(64)
        running = asyncio.ensure_future(self._run(queue))
        round_with_text = 0
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, CallResult):
                    yield {"mcp_calls": [self._as_json(event)]}
                elif isinstance(event, (TextPart, ReasoningPart)):
                    if isinstance(event, TextPart) and round_with_text not in (0, len(self.rounds)):
                        yield {"content": "\n\n"}
                    round_with_text = len(self.rounds) if isinstance(event, TextPart) else round_with_text
                    yield delta_of(event, CallIds())
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self, queue: asyncio.Queue[Event | CallResult | Exception | None]) -> None:
        """Puts all events, and the end or the error. Cancelled, it puts nothing: nobody takes it any more."""
        definitions = [tool.definition for tool in self.tools.values()]
        try:
            await arun_tools(
                self,
                self.body.messages,
                definitions,
                self.client,
                max_steps=MAX_STEPS,
                timeout=None,
                progress=queue.put,
                tool_choice=self.body.tool_choice,
            )
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    def _as_json(self, done: CallResult) -> dict[str, Any]:
        """A call that was run, in the form of an item of OpenAI's responses."""
        tool, result = self.tools[done.call.name], done.result
        return {
            "type": "mcp_call",
            "server_label": tool.server,
            "name": tool.own_name,
            "arguments": done.call.text,
            "output": None if result.failed else str(result.value),
            "error": result.error,
        }

    @property
    def finish_reason(self) -> str:
        last = self.rounds[-1].generation
        assert last is not None
        return str(last.finish_reason)

    def usage(self) -> dict[str, Any]:
        """Numbers of tokens of all rounds."""
        usages = [each.generation.usage for each in self.rounds if each.generation is not None]
        n_prompt = sum(usage.prompt_tokens for usage in usages)
        n_completion = sum(usage.generated_tokens for usage in usages)
        total = {"prompt_tokens": n_prompt, "completion_tokens": n_completion}
        return {"usage": {**total, "total_tokens": n_prompt + n_completion}}

    async def whole(self) -> Response:
        """The answer as one object."""
        async with aclosing(self.parts()) as parts:
            found = [part async for part in parts]
        message = whole_message(found)
        message["mcp_calls"] = [call for part in found for call in part.get("mcp_calls", ())]
        answer = self.rounds[-1].answer
        assert answer is not None
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}]
        return JsonAnswer({**answer.head("chat.completion"), "choices": choices, **self.usage()})

    async def lines(self) -> AsyncIterator[str]:
        """The answer as chunks."""
        head: dict[str, Any] = {}
        more: dict[str, Any] = {"usage": None} if self.body.wants_usage else {}
        async with aclosing(self.parts()) as parts:
            async for part in parts:
                answer = self.rounds[-1].answer
                if not head and answer is not None:
                    head = answer.head("chat.completion.chunk")
                    first = {"role": "assistant", "content": None}
                    yield data_line({**head, "choices": [choice(0, first)], **more})
                yield data_line({**head, "choices": [choice(0, part)], **more})
        answer = self.rounds[-1].answer
        assert answer is not None
        head = head or answer.head("chat.completion.chunk")
        yield data_line({**head, "choices": [choice(0, {}, self.finish_reason)], **more})
        if self.body.wants_usage:
            yield data_line({**head, "choices": [], **self.usage()})
        yield DONE
