"""Tools as chat templates take them, from JSON, Python functions, and classes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docstring_parser import ParseError, parse

from oxillama.base.config import checks
from oxillama.errors import ConfigError, GrammarError
from oxillama.text.grammar.python_types import schema_of_arguments, schema_of_type
from oxillama.text.grammar.schema.dialects import LIST, NAMED, ONE

Definition = dict[str, Any]
"""``{"type": "function", "function": {"name": ..., "description": ..., "parameters": JSON schema}}``.

The function has all three, and the schema has properties.
"""

MOST_TOOLS = 1024
MOST_NAME = 128
FORBIDDEN = frozenset("<>{}[]()\"'`,;=|｜▁\\")
"""Characters that a tool's name may not have: some format could not write them."""


def definitions(tools: Sequence[Any]) -> list[Definition]:
    """The definitions of tools.

    Args:
        tools: each a mapping (a function in OpenAI's form or alone), a Python function, a dataclass, or a
            class with ``model_json_schema()`` (pydantic).

    Raises:
        ConfigError: a tool is of another type, has no name that every format can write, or the name of
            another tool.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise checks.refuse("tools", "a list of tools", tools)
    if len(tools) > MOST_TOOLS:
        raise ConfigError(f"tools: expected at most {MOST_TOOLS}, got {len(tools)}")
    found = [definition_of(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names = [definition["function"]["name"] for definition in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(f"tools[{i}]: expected a name of its own, got {name} again")
    return found


def definition_of(tool: Any, where: str = "tool") -> Definition:
    """The definition of one tool; ``where`` names it in messages. Raises ConfigError."""
    if isinstance(tool, Mapping):
        return _of_mapping(tool, where)
    if isinstance(tool, type):
        return _of_class(tool, where)
    if callable(tool):
        return _of_function(tool, where)
    raise checks.refuse(where, "a function, a class or a JSON definition", tool)


def name_of(tool: Any) -> str:
    """The name that a function or class has as a tool."""
    named = tool if hasattr(tool, "__name__") else type(tool)
    return str(named.__name__)


def _of_mapping(tool: Mapping[str, Any], where: str) -> Definition:
    try:
        plain = json.loads(json.dumps(tool, allow_nan=False, default=_as_dict))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: expected JSON values, got others: {error}") from error
    if plain.get("type", "function") != "function":
        raise checks.refuse(f"{where}: type", "function", plain["type"])
    function = plain.get("function", {k: v for k, v in plain.items() if k != "type"})
    if not isinstance(function, dict):
        raise checks.refuse(f"{where}: function", "an object", function)
    return _checked(function, where)


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _checked(function: dict[str, Any], where: str) -> Definition:
    """The definition, after checks of its name and schema. Raises ConfigError.

    Templates add descriptions to texts and loop over properties, so a definition has empty ones where the
    tool has none. llama.cpp gives templates an empty description, too (``common_chat_tools_parse_oaicompat``
    in its ``common/chat.cpp``).
    """
    name = function.get("name")
    bad = not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not name.isprintable()
    if bad or any(char.isspace() or char in FORBIDDEN for char in str(name)):
        wanted = f"1 to {MOST_NAME} printable characters without spaces, brackets, quotes and commas"
        raise checks.refuse(f"{where}: name", wanted, name)
    description, parameters = function.get("description"), function.get("parameters")
    if description is not None and not isinstance(description, str):
        raise checks.refuse(f"{where}: description", "a text", description)
    if parameters is not None and not isinstance(parameters, dict):
        raise checks.refuse(f"{where}: parameters", "a JSON schema of an object", parameters)
    empty = [key for key in ("properties", "required") if (parameters or {}).get(key, 0) is None]
    schema = {key: value for key, value in (parameters or {}).items() if key not in empty}
    if not isinstance(schema.get("properties", {}), dict):
        raise checks.refuse(f"{where}: parameters: properties", "an object", schema["properties"])
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise checks.refuse(f"{where}: parameters: required", "a list of names", required)
    if "description" not in function:
        function = {"name": name, "description": "", **function}
    schema = schema or {"type": "object"}
    schema.setdefault("properties", {})
    return {
        "type": "function",
        "function": {**function, "description": description or "", "parameters": _described(schema)},
    }


def _described(schema: Any) -> Any:
    """A schema with empty descriptions in the place of null ones, in its subschemas too."""
    if isinstance(schema, list):
        return [_described(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            found[key] = {name: _described(each) for name, each in value.items()}
        elif key in ONE | LIST:
            found[key] = _described(value)
        elif key == "description" and value is None:
            found[key] = ""
    return found


def _of_class(kind: type, where: str) -> Definition:
    """The definition of a class, whose fields are the arguments."""
    if not (hasattr(kind, "model_json_schema") or dataclasses.is_dataclass(kind)):
        raise checks.refuse(where, "a dataclass or a class with model_json_schema()", kind)
    schema: Any = _schema(lambda: schema_of_type(kind), where)
    defs = schema.get("$defs", {})
    if "$ref" in schema and schema["$ref"].startswith("#/$defs/"):  # the class itself
        schema = {**defs[schema["$ref"].removeprefix("#/$defs/")], "$defs": defs}
    is_own = "__doc__" in vars(kind) and not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    about = (inspect.getdoc(kind) if is_own else None) or ""
    parameters = {key: value for key, value in schema.items() if key not in ("title", "description", "$id")}
    return _checked({"name": kind.__name__, "description": about, "parameters": parameters}, where)


def _of_function(function: Callable[..., Any], where: str) -> Definition:
    """The definition of a function: annotations give the types, the docstring the descriptions."""
    hints, signature = signature_of(function, where)
    required = [name for name, parameter in signature.items() if parameter.default is parameter.empty]
    schema = _schema(lambda: schema_of_arguments(hints, required), where)
    about, described = _docstring(function)
    for name, value in schema["properties"].items():
        if name in described:
            value.setdefault("description", described[name])
        default = signature[name].default
        if default is not None and type(default) in (str, int, float, bool):
            value.setdefault("default", default)
    parameters = json.loads(json.dumps(schema))
    return _checked({"name": name_of(function), "description": about, "parameters": parameters}, where)


def signature_of(
    function: Callable[..., Any], where: str = "tool"
) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    """Annotations and parameters of a function, by name.

    Raises ConfigError for a parameter that a call cannot name.
    """
    try:
        parameters = inspect.signature(function).parameters
        source = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(getattr(source, "__wrapped__", source), include_extras=True)
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise ConfigError(f"{where}: the signature of {name_of(function)} is unknown: {error}") from error
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            got = f"{parameter} of {name_of(function)}"
            raise ConfigError(f"{where}: expected parameters with names, got {got}")
    return {name: hints.get(name, Any) for name in parameters}, dict(parameters)


def _schema(make: Callable[[], Any], where: str) -> Any:
    try:
        return make()
    except GrammarError as error:
        raise ConfigError(f"{where}: {error}") from error


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The descriptions of the function and of each parameter in a docstring."""
    text = inspect.getdoc(function) if inspect.isroutine(function) else inspect.getdoc(type(function))
    try:
        found = parse(text or "")
    except ParseError:
        return text or "", {}
    parts = [part for part in (found.short_description, found.long_description) if part]
    return "\n\n".join(parts), {p.arg_name: p.description for p in found.params if p.description}


# --- which of them ------------------------------------------------------------------------------------

CHOICES = ("auto", "none", "required")


def chosen(choice: Any, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What a ``tool_choice`` asks for, as `message_rules` has it, and the tools that may be called.

    Raises:
        ConfigError: the choice is not in `CHOICES` and names no known tool.
    """
    if isinstance(choice, str) and choice in CHOICES:
        return choice, tuple(names)
    name = choice
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        known = ", ".join((*CHOICES, *names))
        raise checks.refuse("tool_choice", f"one of {known[:1000]}", choice)
    return "one", (name,)
