"""The loops of Python clients, and the tool of the loops."""

# libraries evaluate the annotations of `weather`, so this module has no `from __future__ import annotations`
import json
from collections.abc import Callable
from typing import Any, Literal

from tests.support.clients.words import ABOUT, CITIES, FURTHER, PARAMETERS, QUESTION, RESULT, SYSTEM, TOOL

MODEL = "scripted"
ASK = {"role": "user", "content": QUESTION}
MORE = {"role": "user", "content": FURTHER}
HEAD = {"role": "system", "content": SYSTEM}
CHAT_TOOL = {"type": "function", "function": {"name": TOOL, "description": ABOUT, "parameters": PARAMETERS}}
CALLED: list[str] = []
"""The arguments with which frameworks called `weather`."""

Loop = Callable[[str, bool], list[str]]
"""Runs the loop with a server's URL, as a stream or whole. Returns the two answers; checks the call."""

LOOPS: dict[str, Loop] = {}


def loop(name: str) -> Callable[[Loop], Loop]:
    """A decorator that registers a loop by the name of the package and, in brackets, its variant."""

    def add(run: Loop) -> Loop:
        LOOPS[name] = run
        return run

    return add


def weather(city: Literal["needleoslo", "needlerome"]) -> str:
    """needletool Tells the weather.

    Args:
        city: The name of a city.
    """
    CALLED.append(city)
    return result_of({"city": city})


def result_of(arguments: Any) -> str:
    """The tool's result. Checks the arguments."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(found) == {"city"} and found["city"] in CITIES, found
    return f"{RESULT} sunny"
