"""What the checks of clients share: the server, the registry, a tool and a schema."""

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
"""Tokens of a text that nobody waits for."""


class Answer(BaseModel):
    """What a schema asks for."""

    model_config = ConfigDict(extra="forbid")

    good: bool
    level: int = Field(ge=0, le=9)


@dataclass
class Server:
    """Where the server is, and what its model is called."""

    url: str
    model: str

    def running(self) -> float:
        """Requests that run now."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(r"^llamacpp:requests_processing\S* (\S+)$", text, re.MULTILINE)))

    def check_gone(self, began: bool = True) -> None:
        """Waits until no request runs; only what a client has left can have ended one that is so long."""
        assert began, "the text had ended before the client left"
        deadline = time.monotonic() + 10
        while self.running():
            assert time.monotonic() < deadline, "a request goes on whose client has gone"
            time.sleep(0.02)

    def check_leaving(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Asks for a long text, leaves once it runs, and waits until it runs no more."""

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
"""By package, then by what is checked."""

MODULES = {
    "openai-agents": "agents",
    "haystack-ai": "haystack",
    "llama-index-llms-openai-like": "llama_index",
    "pydantic-ai-slim": "pydantic_ai",
    "continue": "",
    "codex": "",
    "aider-chat": "aider",
}
"""Modules of packages whose names are others; "" for shapes of requests that need no package."""


def check(client: str, what: str) -> Callable[[Check], Check]:
    """Adds a check of a client."""

    def add(run: Check) -> Check:
        CHECKS.setdefault(client, {})[what] = run
        return run

    return add


def arguments_of(text: str | dict[str, Any]) -> None:
    """Asserts that the arguments of a call fit the tool."""
    found = json.loads(text) if isinstance(text, str) else text
    assert set(found) == {"city", "days"} and isinstance(found["days"], int), found


CALLS: list[tuple[str, int]] = []
"""What `weather` was called with."""


City = Annotated[str, Field(max_length=8)]
"""A text that random weights end."""


class Weather(BaseModel):
    """The arguments of `weather`."""

    city: City
    days: int


# libraries read its annotations: so they are no strings here
def weather(city: City, days: int) -> str:
    """Tells the weather.

    Args:
        city: The name of a city.
        days: The number of days.
    """
    CALLS.append((city, days))
    return f"sunny in {city}"


def check_called(n_before: int) -> None:
    """Asserts that `weather` was called, with what its types say."""
    assert len(CALLS) > n_before
    assert all(isinstance(city, str) and isinstance(days, int) for city, days in CALLS[n_before:])
