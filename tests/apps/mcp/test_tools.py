"""Names of tools and texts of results; without the package `mcp`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from oxillama.apps.mcp.tools import McpTool, result_of, tools_of, why_not_compiled, with_unique_names


def listed(*names: str, schema: Any = None) -> list[Any]:
    """Tools as a server lists them."""
    return [
        SimpleNamespace(
            name=name, description=None, annotations=None, input_schema=schema or {"type": "object"}
        )
        for name in names
    ]


def converted(server: str, items: list[Any], known: Sequence[McpTool] = ()) -> list[McpTool]:
    return tools_of(server, items, known, why_not_compiled, 60)


def names_of(*pairs: tuple[str, str]) -> list[str]:
    tools = [tool for server, name in pairs for tool in converted(server, listed(name))]
    return [tool.name for tool in with_unique_names(tools)]


def test_names_are_unique_and_such_as_clients_take() -> None:
    kept = [("files", "read"), ("a-b", "c_d"), ("s", "x" * 61)]
    pairs = [*kept, ("a", "b c"), ("a", "b/c"), ("ü", "ü"), ("s", "x" * 62)]
    names = names_of(*pairs)
    assert names[:3] == [f"{server}__{name}" for server, name in kept]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert names_of(*reversed(pairs)) == names[::-1]  # whoever answers first


def test_a_tool_that_changes_has_another_digest() -> None:
    one, same = converted("a", listed("b", "c"))[0], converted("a", listed("b"))[0]
    other = converted("a", listed("b", schema={"type": "object", "properties": {"x": {}}}))[0]
    assert one.digest == same.digest != other.digest


def test_tools_are_compiled_once_and_within_a_time() -> None:
    compiled = []

    def compile(definition: Any) -> str | None:
        compiled.append(definition["function"]["name"])
        return "no" if definition["function"]["name"] == "a__no" else None

    first = tools_of("a", listed("b", "no"), (), compile, 60)
    again = tools_of("a", listed("b", "no", "c"), first, compile, 60)
    assert compiled == ["a__b", "a__no", "a__no", "a__c"]
    assert [tool.refused for tool in again] == [None, "no", None]
    late = tools_of("a", listed("b", "d"), first, compile, -1)
    assert late[0].refused is None and "to compile within -1 s" in (late[1].refused or "")


def found(*parts: Any, error: bool = False, structured: Any = None) -> Any:
    return SimpleNamespace(content=list(parts), is_error=error, structured_content=structured)


def text(value: str) -> Any:
    return SimpleNamespace(type="text", text=value)


def test_results() -> None:
    assert result_of(found(text("a"), text("b")), 100).value == "a\nb"
    assert result_of(found(structured={"a": 1}), 100).value == '{"a": 1}'
    assert result_of(found(text("no"), error=True), 100).error == "no"
    assert result_of(found(error=True), 100).error == "the tool failed and gave no reason"
    assert result_of(found(text("x" * 101)), 100).value == "x" * 100 + "\n[cut: 100 of 101 characters]"
    assert result_of(found(text("\ud800")), 100).value == "?"
    image = SimpleNamespace(type="image", mime_type="image/png", data="")
    link = SimpleNamespace(type="resource_link", uri="file:///a")
    inside = SimpleNamespace(type="resource", resource=SimpleNamespace(uri="a", text="inside"))
    blob = SimpleNamespace(type="resource", resource=SimpleNamespace(uri="a"))
    assert str(result_of(found(image, link, inside, blob), 1000).value).split("\n") == [
        "[image, image/png: left out]",
        "[a link: file:///a]",
        "inside",
        "[a file, a: left out]",
    ]


def test_the_definition_of_a_tool_without_a_schema() -> None:
    function = McpTool("a__b", "a", "b").definition["function"]
    assert function["parameters"] == {"type": "object", "properties": {}}
