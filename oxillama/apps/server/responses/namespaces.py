"""Functions of the tools of OpenAI's responses, also those that a tool of type ``namespace`` groups.

Chat templates know names alone, so a function of a namespace is shown as ``NAMESPACE__NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from oxillama.apps.server.errors import invalid, refuse_others
from oxillama.text.toolcalls.definitions import MOST_NAME, definition_of

TOOL_FIELDS = ("type", "name", "description", "parameters", "strict", "defer_loading", "allowed_callers")
NAMESPACE = "namespace"
DEFAULTS = {"description": None, "parameters": None, "strict": True}
"""What a function has in an answer where the body does not say."""


class Functions:
    """The functions among the tools of a body. Tools of other kinds are left out.

    Args:
        tools: of the body.

    Attributes:
        definitions: in OpenAI's form for chats, under the names that templates show.
        own_names: (namespace, name) of the functions of namespaces, by these names.

    Raises:
        ApiError: a tool has other fields, or no name.
        ConfigError: one of a namespace is no valid tool.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.definitions: list[dict[str, Any]] = []
        self.own_names: dict[str, tuple[str, str]] = {}
        self._names: dict[tuple[str, str], str] = {}
        found = list(_functions(tools))
        taken = {tool["name"] for _, space, tool in found if space is None}
        told: set[str] = set()
        for where, space, tool in found:
            name, about = tool["name"], tool.get("description")
            if space is not None:
                own = space["name"], name
                if own in self._names:
                    raise invalid(f"{where}.name", "a name of its own in its namespace", name)
                ways = chain((f"{space['name']}__{name}", name), (f"{name}_{i}" for i in count(2)))
                name = next(way for way in ways if way not in taken and len(way) <= MOST_NAME)
                taken.add(name)
                self.own_names[name], self._names[own] = own, name
                if space.get("description") and space["name"] not in told:  # once, with its first function
                    told.add(space["name"])
                    about = "\n\n".join(filter(None, (about, f"{space['name']}: {space['description']}")))
            more = {} if about is None else {"description": about}
            function = {"name": name, **more, "parameters": tool.get("parameters") or {}}
            if space is not None:
                definition_of(function, where)  # an error names its place in the namespace
            self.definitions.append({"type": "function", "function": function})

    def name(self, name: str, namespace: Any = None) -> str:
        """The name that a template shows of a function, which the tools need not have any more.

        A function of a namespace may be named without the namespace, if the name is clear.
        """
        if isinstance(namespace, str) and namespace:
            return self._names.get((namespace, name), f"{namespace}__{name}")
        alike = [shown for shown, own in self.own_names.items() if own[1] == name]
        is_clear = len(alike) == 1 and name not in [each["function"]["name"] for each in self.definitions]
        return alike[0] if is_clear else name

    def asked(self, tool: Mapping[str, Any]) -> list[Any]:
        """The shown names of the functions that an entry of a ``tool_choice`` names."""
        kind, name = tool.get("type"), tool.get("name")
        if kind == NAMESPACE:
            return [shown for shown, own in self.own_names.items() if own[0] == name]
        if kind != "function":
            return []
        return [self.name(name, tool.get("namespace")) if isinstance(name, str) else name]


def _functions(
    tools: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any] | None, Mapping[str, Any]]]:
    """The place of each function, its namespace or None, and the function. Raises ApiError."""
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type") == "function":
            yield where, None, _checked(where, tool, TOOL_FIELDS)
        elif tool.get("type") == NAMESPACE:
            _checked(where, tool, ("type", "name", "description", "tools"))
            inner = tool.get("tools")
            if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
                raise invalid(f"{where}.tools", "a list of tools", inner)
            for j, each in enumerate(inner):
                if each.get("type") == "function":
                    yield f"{where}.tools[{j}]", tool, _checked(f"{where}.tools[{j}]", each, TOOL_FIELDS)


def _checked(where: str, tool: Mapping[str, Any], fields: Sequence[str]) -> Mapping[str, Any]:
    refuse_others(where, tool, fields)
    for name in ("name", "description"):
        if not isinstance(tool.get(name), str) and (name == "name" or tool.get(name) is not None):
            raise invalid(f"{where}.{name}", "a text", tool.get(name))
    return tool


def shown_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools of an answer: functions, and namespaces with their functions."""
    found = []
    for tool in tools:
        if tool.get("type") == "function":
            found.append({**DEFAULTS, **tool})
        elif tool.get("type") == NAMESPACE:
            found.append({**tool, "tools": shown_tools(tool["tools"])})
    return found
