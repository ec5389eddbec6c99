"""Conversations that chat templates are asked to write, and a small template of each of some formats."""

from __future__ import annotations

from typing import Any

Conversation = dict[str, Any]
"""``messages``, and what else a template is given."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "a town"},
                "days": {"type": "integer", "description": "how many"},
                "units": {"type": "array", "items": {"type": "string"}, "description": "to show"},
            },
            "required": ["place"],
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
TOOLS = [WEATHER, CLOCK]
ARGUMENTS: dict[str, Any] = {"place": 'Zürich "West"', "days": 2, "units": ["°C", "km/h"]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, reasoning: str = "", **more: Any) -> dict[str, Any]:
    """An answer; reasoning stands under both of the names that templates read."""
    thought = {"reasoning_content": reasoning, "thinking": reasoning} if reasoning else {}
    return {"role": "assistant", "content": text, **thought, **more}


def called(*calls: tuple[str, dict[str, Any] | str], text: str = "", reasoning: str = "") -> dict[str, Any]:
    """An answer with calls."""
    told = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return said(text, reasoning, tool_calls=told)


def result(i: int, name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{i}", "name": name, "content": text}


SYSTEM = {"role": "system", "content": "  You are brief. "}
ASK = user("How is the weather?")
ONE_CALL = [ASK, called(("weather", ARGUMENTS)), result(0, "weather", '{"sky": "blue"}')]
TWO_CALLS = [
    SYSTEM,
    ASK,
    called(("weather", ARGUMENTS), ("clock", {}), text="I look."),
    result(0, "weather", "blue"),
    result(1, "clock", "12:00"),
]
CONVERSATIONS: dict[str, Conversation] = {
    "user": {"messages": [ASK]},
    "without a prompt": {"messages": [ASK], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, ASK]},
    "turns": {"messages": [SYSTEM, user("Hi\n"), said(" Hello. "), user("<b>&amp;</b> é"), said("Ok"), ASK]},
    "answered": {"messages": [ASK, said("Good.")], "add_generation_prompt": False},
    "reasoning": {"messages": [ASK, said("Good.", "It is\nMay."), user("Why?")]},
    "thinking": {"messages": [ASK], "enable_thinking": True, "thinking": True},
    "no thinking": {"messages": [ASK], "enable_thinking": False, "thinking": False},
    "tools": {"messages": [SYSTEM, ASK], "tools": TOOLS},
    "one call": {"messages": ONE_CALL, "tools": TOOLS},
    "two calls": {"messages": TWO_CALLS, "tools": TOOLS},
    "answer to results": {"messages": [*TWO_CALLS, said("Blue.", "So."), user("Thanks")], "tools": TOOLS},
    "call with reasoning": {
        "messages": [ASK, called(("clock", {}), reasoning="The time."), result(0, "clock", "12:00")],
        "tools": TOOLS,
        "enable_thinking": True,
    },
    "arguments as text": {
        "messages": [
            ASK,
            {**called(("weather", '{"place": "Bern"}')), "content": None},
            result(0, "weather", "grey"),
        ],
        "tools": TOOLS,
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
}
"""By name. ``add_generation_prompt`` is True where it is not given."""
