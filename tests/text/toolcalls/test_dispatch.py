"""Definitions of tools from Python, and calls that are run."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import threading
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
from pydantic import BaseModel, Field

from oxillama import ConfigError
from oxillama.text.toolcalls import (
    FunctionDispatcher,
    NoOpDispatcher,
    ToolCall,
    ToolDispatcher,
    definitions,
    run_tools,
)
from oxillama.text.toolcalls.arguments import converted
from oxillama.text.toolcalls.definitions import chosen


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclasses.dataclass
class Place:
    """Somewhere."""

    name: str
    when: Optional[datetime.date] = None  # noqa: UP045


class Search(BaseModel):
    """Finds a thing."""

    text: str = Field(description="what to find")
    most: int = Field(3, ge=1)


class Pair(TypedDict):
    a: int


def weather(
    city: Annotated[str, "a city"],
    unit: Unit = Unit.CELSIUS,
    days: Literal[1, 2] = 1,
    place: Place | None = None,
    tags: frozenset[str] = frozenset(),
    most: Annotated[int, Field(ge=2, description="at most")] = 3,
    other: Any = None,
) -> str:
    """Tells the weather.

    In detail.

    Args:
        unit: of the temperature
        days: how many
    """
    return f"{city} {unit} {days} {place} {sorted(tags)} {most} {other}"


def test_a_function_becomes_a_definition() -> None:
    (found,) = definitions([weather])
    function = found["function"]
    assert (found["type"], function["name"]) == ("function", "weather")
    assert function["description"] == "Tells the weather.\n\nIn detail."
    schema = function["parameters"]
    assert schema["required"] == ["city"] and schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["city"] == {"type": "string", "description": "a city"}
    assert properties["unit"] == {"enum": ["c", "k"], "description": "of the temperature"}
    assert properties["days"] == {"enum": [1, 2], "description": "how many", "default": 1}
    assert properties["tags"]["uniqueItems"] and properties["most"]["description"] == "at most"
    assert schema["$defs"]["Place"]["required"] == ["name"]
    assert any(part.get("minimum") == 2 for part in schema["$defs"].values())


def test_other_docstrings() -> None:
    def numpy(a: int) -> None:
        """Does.

        Parameters
        ----------
        a : int
            The first.
        """

    def sphinx(a: int) -> None:
        """Does.

        :param a: The first.
        """

    for found in definitions([numpy, sphinx]):
        assert found["function"]["parameters"]["properties"]["a"]["description"] == "The first."


def test_classes_and_json() -> None:
    plain = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
    found = [tool["function"] for tool in definitions([Search, Place, plain, {"function": {"name": "g"}}])]
    assert [tool["name"] for tool in found] == ["Search", "Place", "f", "g"]
    assert found[0]["description"] == "Finds a thing." and found[0]["parameters"]["required"] == ["text"]
    assert found[1]["parameters"]["required"] == ["name"] and found[1]["description"] == "Somewhere."
    assert found[2] == {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    assert found[3]["parameters"] == {"type": "object", "properties": {}}


PORT = {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}


def silent(port: str) -> str:
    return port


@dataclasses.dataclass
class Silent:
    port: str


@pytest.mark.parametrize(
    "tool",
    [
        silent,
        Silent,
        {"name": "f", "parameters": PORT},
        {"type": "function", "function": {"name": "f", "description": None, "parameters": PORT}},
        {"name": "f"},
        {"name": "f", "description": None, "parameters": None},
        {"name": "f", "parameters": {}},
        {"name": "f", "parameters": {"type": "object", "properties": None, "required": None}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"description": None}}}},
        {"name": "f", "parameters": {"type": "object", "additionalProperties": {"description": None}}},
    ],
)
def test_templates_find_each_text_that_they_join(tool: Any) -> None:
    ((function,),) = [[each["function"] for each in definitions([tool])]]
    assert list(function)[:2] == ["name", "description"] and function["description"] == ""
    assert function["parameters"]["type"] == "object" and isinstance(
        function["parameters"]["properties"], dict
    )
    assert "null" not in json.dumps(function)


def test_a_complete_definition_stays_as_it_is() -> None:
    data = {"description": None}  # no description of anything
    parameters = {"properties": {"a": {"default": data, "enum": [data], "description": "A."}}, "x": None}
    whole = {"parameters": parameters, "description": "d", "name": "f", "strict": True}
    (found,) = definitions([{"type": "function", "function": whole}])
    assert json.dumps(found) == json.dumps({"type": "function", "function": whole})


def stars(*args: int) -> None: ...


def unknown(a: complex) -> None: ...


@pytest.mark.parametrize(
    "tool, reason",
    [
        (stars, r"tools\[0\]: expected parameters with names, got \*args"),
        (unknown, r"tools\[0\]: schema: no JSON schema is known"),
        (int, r"tools\[0\]: expected a dataclass or a class with"),
        ({"name": "x", "parameters": []}, "parameters: expected a JSON schema of an object"),
        ({"name": "x", "parameters": {"properties": 3}}, "properties: expected an object"),
        ({"name": "x", "parameters": {"required": 3}}, "required: expected a list of names, got 3"),
        ({"name": "x", "description": 3}, "description: expected a text"),
        ({"name": "<x>"}, "name: expected 1 to 128 printable characters"),
        ({"name": "x\u2028y"}, "name: expected 1 to 128 printable characters"),
        ({"type": "web_search"}, "type: expected function, got 'web_search'"),
        ({"name": "x", "extra": {1, 2}}, "expected JSON values"),
        ({"function": []}, "function: expected an object"),
    ],
)
def test_what_is_no_tool(tool: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        definitions([tool])


def test_choices() -> None:
    assert chosen("auto", ["a", "b"]) == ("auto", ("a", "b"))
    assert chosen("a", ["a", "b"]) == chosen({"function": {"name": "a"}}, ["a", "b"]) == ("one", ("a",))
    assert chosen({"name": "b"}, ["a", "b"]) == ("one", ("b",))
    for wrong in ("c", {"function": 3}, {}, 3):
        with pytest.raises(ConfigError, match="tool_choice: expected one of auto, none, required, a"):
            chosen(wrong, ["a"])


def test_arguments_are_what_annotations_ask_for() -> None:
    runner = FunctionDispatcher([weather, Search, Place])
    assert isinstance(runner, ToolDispatcher)
    args = {
        "city": "B",
        "unit": "k",
        "place": {"name": "x", "when": "2026-01-02"},
        "tags": ["b", "a"],
        "days": 2,
    }
    found = runner.dispatch(ToolCall("weather", args))
    place = Place("x", datetime.date(2026, 1, 2))
    assert (found.error, found.value) == (None, f"B Unit.KELVIN 2 {place} ['a', 'b'] 3 None")
    assert runner.dispatch(ToolCall("Search", {"text": "x"})).value == Search(text="x")
    assert runner.dispatch(ToolCall("Place", {"name": "x"})).value == Place("x")
    for call, reason in (
        (ToolCall("weather", {"city": "B", "unit": "f"}), "ValueError: unit: expected one of"),
        (ToolCall("weather", {"city": 3}), "TypeError: city: expected str, got 3"),
        (ToolCall("weather", {}), "TypeError: .*city"),
        (ToolCall("other"), "LookupError: expected one of weather, Search, Place, got 'other'"),
        (ToolCall("Search", {"text": "x", "most": 0}), "ValidationError"),
    ):
        result = runner.dispatch(call)
        assert result.failed and result.error is not None
        with pytest.raises(ValueError, match=reason):
            raise ValueError(result.error)
    assert NoOpDispatcher().dispatch(ToolCall("x")).failed


@pytest.mark.parametrize(
    "value, kind, wanted",
    [
        (1, float, 1.0),
        (2.0, int, 2),
        (1.5, Decimal, Decimal("1.5")),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 1], set[int], {1}),
        ({"a": ["k"]}, dict[str, list[Unit]], {"a": [Unit.KELVIN]}),
        ({"a": 2.0}, Pair, {"a": 2}),
        ("x", int | str, "x"),
        (3, int | str, 3),
        (None, int | None, None),
        ("12345678123456781234567812345678", uuid.UUID, uuid.UUID(int=0x12345678123456781234567812345678)),
        (True, Literal[1, True], True),
        ([1], Any, [1]),
    ],
)
def test_conversions(value: Any, kind: Any, wanted: Any) -> None:
    found = converted(value, kind)
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    "value, kind", [("1", int), (True, int), (True, float), (3, str), ("x", list[int]), ({}, int | str)]
)
def test_conversions_that_fail(value: Any, kind: Any) -> None:
    with pytest.raises(TypeError, match="arguments: expected"):
        converted(value, kind)


def test_coroutines_run() -> None:
    async def wait(n: int) -> int:
        await asyncio.sleep(0)
        return n

    runner = FunctionDispatcher([wait, weather])
    assert runner.dispatch(ToolCall("wait", {"n": 3})).value == 3
    assert asyncio.run(runner.adispatch(ToolCall("wait", {"n": 3}))).value == 3
    assert runner.is_async(ToolCall("wait")) and not runner.is_async(ToolCall("weather"))


class Answers:
    """An engine whose answers are given."""

    def __init__(self, *answers: list[ToolCall]) -> None:
        self.answers = list(answers)
        self.seen: list[Any] = []

    def stream_chat(self, messages: Any, **fields: Any) -> Answers:
        self.seen.append((list(messages), fields))
        self.tool_calls = self.answers.pop(0)
        self.text, self.reasoning = "" if self.tool_calls else "Done.", "So."
        self.finish_reason = "tool_calls" if self.tool_calls else "stop"
        return self

    def events(self) -> Any:
        return iter(())

    def result(self) -> Answers:
        return self

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None: ...


def test_calls_of_one_answer_run_together() -> None:
    """Each waits for the other one."""
    meeting = threading.Barrier(2, timeout=60)

    def meet(name: str) -> str:
        meeting.wait()
        return name

    engine = Answers([ToolCall("meet", {"name": "a"}, "id-a"), ToolCall("meet", {"name": "b"})], [])
    run = run_tools(engine, [{"role": "user", "content": "x"}], [meet], tool_choice="required", timeout=None)
    assert [told.result.value for told in run.results] == ["a", "b"] and run.text == "Done."
    assert [m.get("tool_call_id") for m in run.messages] == [None, None, "id-a", "call00001", None]
    assert [fields["tool_choice"] for _, fields in engine.seen] == ["required", "auto"]
    assert run.messages[1]["reasoning_content"] == "So." and run.finish_reason == "stop"


def test_a_call_that_takes_too_long_is_an_error() -> None:
    ends = threading.Event()

    def wait() -> None:
        ends.wait(60)

    run = run_tools(Answers([ToolCall("wait")], []), [], [wait], timeout=0.01)
    assert run.results[0].result.error == "wait: expected a result within 0.01 seconds, got none"
    assert run.messages[1]["content"].startswith("Error: wait")
    ends.set()


def test_what_ends_a_process_ends_a_call_only() -> None:
    def leave() -> None:
        raise SystemExit(3)

    run = run_tools(Answers([ToolCall("leave")], []), [], [leave])
    assert run.results[0].result.error == "SystemExit: 3"
