"""Schemas of `benchmarks.grammar --models`: what Python types ask for, and unions of the calls of tools.

Each comes with texts that meet it and texts that do not.
"""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType

from benchmarks.grammar_texts import TEXT, closed_object
from oxillama.text.grammar.python_types import schema_of_type

Sample = tuple[str, dict[str, Any], list[dict[str, Any]]]
"""A name, a schema or structural tag, and tests: ``{"data": ..., "valid": ...}``, or a ``text`` for data."""


class Colour(enum.Enum):
    """A choice of texts."""

    RED = "red"
    GREEN = "green"
    BLUE = "blue"


Mail = NewType("Mail", Annotated[str, {"format": "email"}])  # type: ignore[valid-newtype]
Minutes = NewType("Minutes", Annotated[int, {"minimum": 1}])  # type: ignore[valid-newtype]


@dataclass
class Person:
    """Scalars with bounds."""

    name: Annotated[str, {"minLength": 1, "maxLength": 80}]
    age: Annotated[int, {"minimum": 0, "maximum": 150}]
    email: Mail | None
    colour: Colour


@dataclass
class Ingredient:
    """Part of a recipe."""

    name: str
    amount: Annotated[float, {"exclusiveMinimum": 0}]
    unit: Literal["g", "kg", "ml", "l", "piece", "spoon"]


@dataclass
class Recipe:
    """Lists of objects and of texts."""

    title: str
    ingredients: Annotated[list[Ingredient], {"minItems": 1, "maxItems": 40}]
    steps: Annotated[list[str], {"minItems": 1}]
    minutes: Minutes | None


@dataclass
class Line:
    """Part of an invoice."""

    sku: Annotated[str, {"pattern": "^[A-Z]{2}-[0-9]{4,6}$"}]
    quantity: Annotated[int, {"minimum": 1, "maximum": 999}]
    price: Annotated[float, {"minimum": 0}]


@dataclass
class Invoice:
    """Dates, patterns and nested objects."""

    number: Annotated[str, {"pattern": "^INV-[0-9]{8}$"}]
    issued: datetime.date
    customer: Person
    lines: list[Line]
    paid: bool


@dataclass
class Event:
    """Times, a list with a bound, a dictionary."""

    title: Annotated[str, {"maxLength": 120}]
    start: datetime.datetime
    end: datetime.datetime | None
    attendees: Annotated[list[Mail], {"maxItems": 10}]
    labels: dict[str, str]


@dataclass
class Review:
    """What models are asked to judge."""

    sentiment: Literal["positive", "neutral", "negative"]
    score: Literal[1, 2, 3, 4, 5]
    reasons: Annotated[list[Annotated[str, {"maxLength": 200}]], {"minItems": 1, "maxItems": 5}]
    quote: str | None


@dataclass
class Node:
    """Recursion."""

    label: str
    weight: int | float
    children: list[Node]


@dataclass
class Circle:
    """Part of a union, told apart by a constant."""

    kind: Literal["circle"]
    radius: Annotated[float, {"exclusiveMinimum": 0}]


@dataclass
class Box:
    """Part of a union."""

    kind: Literal["box"]
    width: float
    height: float
    filled: bool


@dataclass
class Group:
    """Part of a union that refers to the union."""

    kind: Literal["group"]
    members: list[Circle | Box | Group]


@dataclass
class Drawing:
    """A union of objects."""

    title: str
    shapes: list[Circle | Box | Group]


@dataclass
class Ticket:
    """Many fields, most of them scalars."""

    id: Annotated[str, {"format": "uuid"}]
    title: Annotated[str, {"minLength": 5, "maxLength": 100}]
    body: str
    status: Literal["open", "waiting", "closed", "duplicate"]
    priority: Annotated[int, {"minimum": 1, "maximum": 5}]
    severity: Literal["low", "middle", "high"] | None
    reporter: Person
    assignee: Person | None
    tags: Annotated[list[Annotated[str, {"pattern": "^[a-z0-9-]{1,20}$"}]], {"maxItems": 8}]
    opened: datetime.datetime
    estimate: Annotated[float, {"minimum": 0, "maximum": 1000, "multipleOf": 0.5}]
    public: bool


@dataclass
class Settings:
    """A dictionary of unions."""

    name: str
    values: dict[str, int | float | bool | str | list[str]]
    parent: Settings | None


ADA = {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "colour": "green"}
TIMES = {"start": "2024-05-01T09:30:00Z", "end": None}
TICKET = {
    "id": "3f2b8c1e-9d54-4c0e-8a3b-6f1d2e7a9b05",
    "title": "The page stays empty",
    "body": "Steps:\n1. open it\n2. wait",
    "status": "open",
    "priority": 2,
    "severity": "high",
    "reporter": ADA,
    "assignee": None,
    "tags": ["page", "regression-2"],
    "opened": "2024-05-01T09:30:00Z",
    "estimate": 2.5,
    "public": True,
}
RECIPE = {
    "title": "Pancakes",
    "ingredients": [
        {"name": "flour", "amount": 200, "unit": "g"},
        {"name": "milk", "amount": 0.4, "unit": "l"},
    ],
    "steps": ["Mix.", "Let it rest for ten minutes.", "Fry."],
    "minutes": 30,
}
INVOICE = {
    "number": "INV-20240017",
    "issued": "2024-05-01",
    "customer": ADA,
    "lines": [
        {"sku": "AB-1234", "quantity": 2, "price": 9.99},
        {"sku": "XY-123456", "quantity": 10, "price": 0},
    ],
    "paid": False,
}
SHAPES = [
    {"kind": "circle", "radius": 2.5},
    {"kind": "group", "members": [{"kind": "box", "width": 1, "height": 2, "filled": True}]},
]
TREE = {"label": "a", "weight": 1, "children": [{"label": "b", "weight": 0.5, "children": []}]}
SETTINGS = {"name": "theme", "values": {"dark": True, "size": 12, "fonts": ["serif"]}, "parent": None}
EVENT = {"title": "Stand-up", **TIMES, "attendees": ["ada@example.org"], "labels": {"room": "4.12"}}
REVIEW = {"sentiment": "negative", "score": 2, "reasons": ["It broke after a week."], "quote": None}

MODELS: tuple[tuple[type, dict[str, Any], dict[str, Any]], ...] = (
    (Person, ADA, {"age": 151}),
    (Recipe, RECIPE, {"steps": []}),
    (Invoice, INVOICE, {"issued": "2024-02-30"}),
    (Event, EVENT, {"attendees": ["nobody"]}),
    (Review, REVIEW, {"score": 6}),
    (Node, TREE, {"children": [{"label": "b"}]}),
    (Drawing, {"title": "Logo", "shapes": SHAPES}, {"shapes": [{"kind": "box", "radius": 1}]}),
    (Ticket, TICKET, {"estimate": 0.25}),
    (Settings, SETTINGS, {"values": {"dark": None}}),
)
"""Types with a value, and the part of it that must not be so."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "search_web": {"query": TEXT, "results": {"type": "integer", "minimum": 1, "maximum": 20}},
    "send_mail": {"to": {"type": "string", "format": "email"}, "subject": TEXT, "body": TEXT},
    "read_file": {"path": TEXT, "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    "run_code": {"language": {"enum": ["python", "sql", "bash"]}, "code": TEXT},
    "write_file": {"path": TEXT, "content": TEXT, "append": {"type": "boolean"}},
    "list_folder": {"path": TEXT, "depth": {"type": "integer", "minimum": 0, "maximum": 9}},
    "translate": {"text": TEXT, "to": {"type": "string", "pattern": "^[a-z]{2}(-[A-Z]{2})?$"}},
    "convert_money": {"amount": {"type": "number", "minimum": 0}, "into": {"enum": ["EUR", "USD", "JPY"]}},
    "book_table": {"name": TEXT, "at": {"type": "string", "format": "date-time"}, "guests": {"minimum": 1}},
    "play_music": {"title": TEXT, "artist": {"anyOf": [TEXT, {"type": "null"}]}},
    "set_alarm": {"at": {"type": "string", "format": "time"}, "days": {"type": "array", "items": TEXT}},
    "find_route": {"from": TEXT, "to": TEXT, "by": {"enum": ["car", "train", "bike", "foot"]}},
    "make_chart": {"title": TEXT, "values": {"type": "array", "items": {"type": "number"}, "minItems": 1}},
    "query_table": {"table": TEXT, "where": {"type": "object", "additionalProperties": TEXT}},
    "resize_image": {"path": TEXT, "width": {"type": "integer", "minimum": 1, "maximum": 8192}},
    "open_ticket": {"title": TEXT, "priority": {"type": "integer", "minimum": 1, "maximum": 5}},
    "remember": {"key": TEXT, "value": TEXT},
    "define_word": {"word": {"type": "string", "minLength": 1, "maxLength": 40}},
    "finish": {"answer": TEXT, "is_sure": {"type": "boolean"}},
}
"""Arguments of twenty tools; all are required."""

CALLS = (
    ("get_weather", {"city": "Oslo", "unit": "celsius"}, {"unit": "kelvin"}),
    ("run_code", {"language": "sql", "code": 'SELECT "a" FROM b;'}, {"language": "perl"}),
    ("make_chart", {"title": "Rain", "values": [1, 2.5, 4]}, {"values": []}),
    ("finish", {"answer": "It rains.", "is_sure": True}, {"is_sure": "yes"}),
)
"""Calls of tools, and an argument that must not be so."""


def union(n: int) -> dict[str, Any]:
    """Any call of the first ``n`` tools, as an object of a name and arguments."""
    calls = [
        closed_object({"name": {"const": name}, "arguments": closed_object(PARAMETERS[name])})
        for name in list(PARAMETERS)[:n]
    ]
    return {"anyOf": calls}


def tests(good: Mapping[str, Any], wrong: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A value that is valid, and the same with a part that is not."""
    return [{"data": dict(good), "valid": True}, {"data": {**good, **wrong}, "valid": False}]


def models() -> list[Sample]:
    """The types of `MODELS`, as JSON schemas."""
    found: list[Sample] = []
    for kind, good, wrong in MODELS:
        schema = schema_of_type(kind)
        assert isinstance(schema, dict)
        found.append((kind.__name__, schema, tests(good, wrong)))
    return found


def calls(n: int) -> list[tuple[str, dict[str, Any]]]:
    """Calls of the first ``n`` tools, with tests of the arguments."""
    known = list(PARAMETERS)[:n]
    return [(name, test) for name, good, wrong in CALLS if name in known for test in tests(good, wrong)]


def unions() -> list[Sample]:
    """Unions of 5 and of 20 tools."""
    found: list[Sample] = []
    for n in (5, 20):
        made = [{**test, "data": {"name": name, "arguments": test["data"]}} for name, test in calls(n)]
        found.append((f"{n} tools", union(n), made))
    return found


def tags() -> list[Sample]:
    """Structural tags of 5 and of 20 tools: free text, and calls behind ``<call=``. Tests are texts."""
    found: list[Sample] = []
    for n in (5, 20):
        structures = [
            {"begin": f"<call={name}>", "schema": closed_object(PARAMETERS[name]), "end": "</call>"}
            for name in list(PARAMETERS)[:n]
        ]
        texts = [
            {
                "text": f"Let me see.\n<call={name}>{json.dumps(test['data'])}</call>\n",
                "valid": test["valid"],
            }
            for name, test in calls(n)
        ]
        found.append((f"{n} tags", {"structures": structures, "triggers": ["<call="]}, texts))
    return found
