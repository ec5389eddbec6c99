"""Common parts of the checks of clients: the server, the registry, a tool and a schema."""

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

USER = [{"role": "user", "content": "hello world"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS},
}
CALLED = {"type": "function", "function": {"name": "weather"}}
LONG = 3000
"""Tokens of a text that is longer than a client waits."""


class Answer(BaseModel):
    """An answer with a schema."""

    model_config = ConfigDict(extra="forbid")

    good: bool
    level: int = Field(ge=0, le=9)


@dataclass
class Server:
    """The URL of a server, and the name of its model."""

    url: str
    model: str

    def running(self) -> float:
        """The number of requests that run now."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(r"^llamacpp:requests_processing\S* (\S+)$", text, re.MULTILINE)))

    def check_gone(self, began: bool = True) -> None:
        """Waits until no request runs: a request this long ends in time only if the server stops it."""
        assert began, "the text had ended before the client left"
        deadline = time.monotonic() + 10
        while self.running():
            assert time.monotonic() < deadline, "a request goes on whose client has gone"
            time.sleep(0.02)

    def check_leaving(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Asks for a long text, disconnects while it runs, and waits until the server has stopped it."""

        async def main() -> None:
            task = asyncio.ensure_future(ask())
            while not self.running():
                await asyncio.sleep(0.01)
                assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.check_gone(task.cancelled())

        asyncio.run(main())


Check = Callable[[Server], Any]
CHECKS: dict[str, dict[str, Check]] = {}
"""The checks by package and by title."""

MODULES = {
    "openai-agents": "agents",
    "haystack-ai": "haystack",
    "llama-index-llms-openai-like": "llama_index",
    "pydantic-ai-slim": "pydantic_ai",
    "continue": "",
    "codex": "",
    "aider-chat": "aider",
}
"""The module of a package if its name differs; "" for requests that need no package."""


def check(client: str, what: str) -> Callable[[Check], Check]:
    """A decorator that adds a check of a client."""

    def add(run: Check) -> Check:
        CHECKS.setdefault(client, {})[what] = run
        return run

    return add


def arguments_of(text: str | dict[str, Any]) -> None:
    """Asserts that the arguments of a call fit the tool."""
    found = json.loads(text) if isinstance(text, str) else text
    assert set(found) == {"city", "days"} and isinstance(found["days"], int), found


CALLS: list[tuple[str, int]] = []
"""The arguments of the calls of `weather`."""


City = Annotated[str, Field(max_length=8)]
"""A short text, so that random weights end it."""


class Weather(BaseModel):
    """The arguments of `weather`."""

    city: City
    days: int


# libraries evaluate the annotations, so this module has no `from __future__ import annotations`
def weather(city: City, days: int) -> str:
    """Tells the weather.

    Args:
        city: The name of a city.
        days: The number of days.
    """
    CALLS.append((city, days))
    return f"sunny in {city}"


def check_called(n_before: int) -> None:
    """Asserts that `weather` was called with arguments of its types."""
    assert len(CALLS) > n_before
    assert all(isinstance(city, str) and isinstance(days, int) for city, days in CALLS[n_before:])
