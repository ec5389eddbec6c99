"""Grammars of messages: whatever follows them is read as calls that are valid, and as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from oxillama import GrammarError
from oxillama.text.toolcalls import GRAMMARS, CallFailed, ToolCallGrammar
from tests.support.spread import pairs
from tests.support.tool_models import SCHEMAS, TOOLS, grammar_of, random_text, vocabulary_of
from tests.support.toolcalls import (
    atem,
    calls_of,
    cohere,
    dsml,
    events_of,
    hunyuan,
    keys,
    kimi_k3,
    minicpm,
    minimax_m3,
    solar,
    tags,
    v31,
)

FORMATS = {name: form for name, form in GRAMMARS.items() if form.has_calls}
FORMATS["Qwen"] = ToolCallGrammar.Qwen
FORMATS["Mistral"] = ToolCallGrammar.Mistral
FORMATS["qwen-xml with reasoning"] = replace(GRAMMARS["qwen-xml"], reasoning=("<think>", "</think>"))
FORMATS["custom"] = ToolCallGrammar.Custom("<<call:", ":end>>")


@pytest.mark.parametrize(
    ("name", "choice", "parallel"), pairs(FORMATS, ["auto", "required", "one", "none"], [True, False])
)
def test_every_call_is_valid(name: str, choice: str, parallel: bool) -> None:
    form, n_ends, n_calls = FORMATS[name], 0, 0
    for special in (False, True):
        vocabulary, tokens, ids, end = vocabulary_of(form, special)
        for in_reasoning in (False, True) if form.reasoning else (False,):
            grammar = grammar_of(form, choice, parallel=parallel, in_reasoning=in_reasoning, special=ids)
            for seed in range(10):
                text, is_whole = random_text(grammar, vocabulary, tokens, end, seed, 300)
                read = form if choice != "none" else form.without_calls()
                events = events_of(read, [text], TOOLS, in_reasoning=in_reasoning, constrained=True)
                calls = calls_of(events)
                failed = [event for event in events if isinstance(event, CallFailed)]
                assert len(failed) <= (0 if is_whole else 1), text
                for call in calls:
                    jsonschema.validate(call.args, SCHEMAS[call.name])
                    n_calls += 1
                assert len(calls) <= 1 or (parallel and choice != "one"), text
                assert choice != "one" or all(call.name == "write" for call in calls), text
                assert not calls or choice != "none", text
                assert calls or not is_whole or choice not in ("required", "one"), text
                n_ends += is_whole
    assert n_ends and bool(n_calls) == (choice != "none")


WRITE = {"path": "a.txt", "tags": ["x", "</parameter>"]}
PING = '{"name": "ping", "arguments": {}}'
USUAL = {
    "qwen": [f"Well, <tool_call\n\n<tool_call>\n{PING}\n</tool_call>", f"<tool_call>{PING}</tool_call>"],
    "Qwen": [f"<think>\nAs <tool_call> is.\n</think>\n\n<tool_call>\n{PING}\n</tool_call>", "No call."],
    "qwen-xml": [tags("ping"), tags("write", path="a\nb", tags='["</parameter>"]', lines="null", n="x")],
    "glm": [keys("ping"), keys("write", path="a", tags="[]", n="4")],
    "llama3": ['{"name": "ping", "parameters": {}}', '{"answer": 1}', "A { b", '<|python_tag|>{"name":"ping",'
               '"parameters":{}}', '{"name": "ping", "parameters": {}}; {"name": "ping", "parameters": {}}'],
    "mistral": [f"[TOOL_CALLS][{PING}]", "[TOOL_CALLS]ping[ARGS]{}",
                "[TOOL_CALLS]ping[CALL_ID]abcdefgh9[ARGS]{}",
                "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[ARGS]{}"],
    "deepseek": [v31(("ping", {}), ("write", WRITE)), "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
                 "<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"],
    "deepseek-dsml": [dsml(("ping", {}), ("write", WRITE))],
    "gemma": ["<|tool_call>call:ping{}<tool_call|>", "<|tool_call>call:write{"
              'path:<|"|>a"<|"|>,tags:[<|"|>x<|"|>]}<tool_call|>', "<|channel>thought\nSo.<channel|>Well."],
    "function-gemma": ["<start_function_call>call:write{tags:[],path:<escape>a<escape>}<end_function_call>"],
    "harmony": ["<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary "
                "to=functions.ping <|constrain|>json<|message|>{}", "<|channel|>final<|message|>Well."],
    "hunyuan": [hunyuan(("ping", {}), ("write", {"path": "a", "tags": "[]"}))],
    "kimi-k3": [kimi_k3(("ping", {}), ("write", WRITE)), f"<|open|>response<|sep|>{kimi_k3(('ping', {}))}"],
    "solar": [solar(("ping", {}), ("write", WRITE)), "<|begin|>assistant<|content|>Well.<|end|>"],
    "minimax-m3": [minimax_m3(("ping", {}), ("write", WRITE)), minimax_m3(("write", {"path": "",
        "tags": []}))],
    "minimax-m1": [f"<tool_calls>\n{PING}\n{PING}\n</tool_calls>"],
    "minicpm": [minicpm("ping"), minicpm("write", path="<![CDATA[</param>]]>", tags='["</param>"]'),
                f"{minicpm('ping')}\n{minicpm('ping')}"],
    "functionary-v3.1": ["<function=ping>{}</function>",
        "<function=ping>{}</function><function=ping>{}</function>"],
    "functionary-v3.2": ["ping\n{}", "ping\n{}>>>ping\n{}", "all\nWell: >>> 1"],
    "muse": [atem("ping"), f"{atem('ping')}<|eom|><|start|>assistant{atem('ping')}",
             " to=user<|message|>Well.<|eom|><|start|>assistant to=self<|message|>So."],
    "apertus": ['<|tools_prefix|>[{"ping": {}}, {"ping": {}}]<|tools_suffix|>'],
    "cohere": [cohere(("ping", {}), ("write", WRITE))],
    "command-r": ['Action:\n```json\n[\n    {\n        "tool_name": "ping",\n'
                  '        "parameters": {}\n    }\n]```'],
    "gigachat": ['<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "ping", "arguments": {}}'],
    "gigachat-v3.1": ['<|function_call|>{"name": "ping", "arguments": {}}'],
    "firefunction": [f" functools[{PING}, {PING}]"],
    "custom": [f"<<call:{PING}:end>>"],
}  # fmt: skip


@pytest.mark.parametrize("name, text", [(name, text) for name, texts in USUAL.items() for text in texts])
def test_what_models_write_is_allowed(name: str, text: str) -> None:
    assert grammar_of(FORMATS[name], "auto").matches(text)
    n_calls = len(calls_of(events_of(FORMATS[name], [text], TOOLS, constrained=True)))
    assert grammar_of(FORMATS[name], "required").matches(text) == (
        n_calls > 0 and not text.startswith("Well")
    )
    assert grammar_of(FORMATS[name], "auto", parallel=False).matches(text) == (n_calls < 2)


@pytest.mark.parametrize(
    "name, text",
    [
        ("qwen", '<tool_call>\n{"name": "pong", "arguments": {}}\n</tool_call>'),
        ("qwen", '<tool_call>\n{"name": "ping", "arguments": {"a": 1}}\n</tool_call>'),
        ("qwen", "<tool_call> is a tag"),
        ("Qwen", f"<think>x</think><tool_call>\n{PING}"),
        ("qwen-xml", tags("write", path="a")),
        ("qwen-xml", tags("write", path="a", tags="[]", lines="2")),
        ("qwen-xml", tags("write", path="a", tags="[]", n="6")),
        ("glm", keys("write", path="a", tags="x")),
        ("llama3", '{"name": "pong", "parameters": {}}'),
        ("llama3", '{"name": "ping", "parameters": {}} {"a": 1}'),
        ("mistral", "[TOOL_CALLS]ping[ARGS][]"),
        ("gemma", "<|tool_call>call:write{path:1,tags:[]}<tool_call|>"),
        ("gigachat", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{PING}" * 2),
        ("kimi-k3", kimi_k3(("write", {"path": 1, "tags": []}))),
        ("kimi-k3", kimi_k3(("write", {"path": "a"}))),
        ("minimax-m3", minimax_m3(("write", {"path": "a", "tags": [], "lines": 2}))),
        ("minimax-m3", minimax_m3(("write", {"tags": []}))),
        ("minicpm", minicpm("write", path="<![CDATA[a", tags="[]")),
        ("muse", atem("ping").replace("to=ping", "to=write")),
        ("functionary-v3.2", "pong\n{}"),
        ("harmony", "<|channel|>commentary to=python<|message|>1"),
        ("harmony", "<|channel|>commentary to=functions.pingjson<|message|>{}"),
    ],
)
def test_what_is_no_valid_call_is_not_allowed(name: str, text: str) -> None:
    assert not grammar_of(FORMATS[name], "auto").matches(text)


def test_a_call_inside_reasoning_is_free() -> None:
    grammar = grammar_of(ToolCallGrammar.Qwen, "auto")
    assert grammar.matches("<think><tool_call>what</think>So.")
    assert not grammar.matches("Well. <think><tool_call>what</think>So.")  # no reasoning behind text
    begun = grammar_of(ToolCallGrammar.Qwen, "required", in_reasoning=True)
    assert begun.matches(f"So <tool_call> it is.</think><tool_call>{PING}</tool_call>")
    assert not begun.matches(f"<tool_call>{PING}</tool_call>")


def test_properties_of_arguments_in_tags_come_in_any_order() -> None:
    grammar = grammar_of(GRAMMARS["qwen-xml"], "auto")
    assert grammar.matches(tags("any", s="ab", l="xx"))
    assert grammar.matches(tags("any", l="xx", s="ab"))
    twice = "<parameter=s>\na\n</parameter>\n</function>"
    assert not grammar.matches(tags("any", l="xx", s="ab").replace("</function>", twice))
    assert not grammar.matches(tags("any", s="ab"))


@pytest.mark.parametrize("name", ["qwen", "qwen-xml", "lfm2"])
def test_any_number_of_arguments_come_in_any_order(name: str) -> None:
    keys = [f"a{i}" for i in range(12)]
    parameters = {"properties": {key: {"type": "integer"} for key in keys}, "required": keys[4:6]}
    grammar = grammar_of(FORMATS[name], "required", [{"name": "t", "parameters": parameters}])

    def call(*chosen: str) -> str:
        args = ", ".join(f'"{key}": 1' for key in chosen)
        return {
            "qwen": f'<tool_call>{{"name": "t", "arguments": {{{args}}}}}</tool_call>',
            "qwen-xml": tags("t", **dict.fromkeys(chosen, "1")),
            "lfm2": f"<|tool_call_start|>[t({', '.join(f'{key}=1' for key in chosen)})]<|tool_call_end|>",
        }[name]

    assert grammar.matches(call(*keys)) and grammar.matches(call(*keys[::-1]))
    assert grammar.matches(call("a5", "a4")) and grammar.matches(call("a11", "a5", "a0", "a4"))
    assert not grammar.matches(call()) and not grammar.matches(call("a4")) and not grammar.matches(call("a0"))
    if name != "qwen-xml":  # whose call here takes no name twice
        assert not grammar.matches(call("a4", "a5", "a4"))


@pytest.mark.parametrize(
    "name, parameters, reason",
    [
        ("qwen", {"type": "array"}, "tool t: parameters: expected an object's schema, got type 'array'"),
        ("qwen", {"properties": {"a": {"$ref": "#/nowhere"}}}, "tool t: .*nowhere"),
        ("qwen", {"properties": {"a": {"pattern": r"(x)\1"}}}, "tool t: .*"),
        ("glm", {"properties": {"a": {}}, "minProperties": 1}, "minProperties cannot be enforced"),
        ("glm", {"properties": {"a": {}}, "propertyNames": {}}, "propertyNames cannot be enforced"),
        ("glm", {"patternProperties": {r"(x)\1": {}}}, "tool t: .*"),
        ("glm", {"patternProperties": {str(i): {} for i in range(9)}}, "at most 8 patternProperties"),
        ("glm", {"properties": {"a": False}, "required": ["a"]}, "requires 'a', which is not among"),
        ("glm", {"properties": {"a>": {}}}, "expected names that this format can write, got 'a>'"),
        ("glm", {"properties": {"a": {}}, "required": ["b"]}, "requires 'b', which is not among"),
        ("qwen", {"properties": {"a": False}, "required": ["a"]}, "no value meets"),
    ],
)
def test_schemas_that_cannot_be_enforced(name: str, parameters: Any, reason: str) -> None:
    tool = {"name": "t", "parameters": parameters}
    with pytest.raises(GrammarError, match=reason):
        grammar_of(FORMATS[name], "required", [tool])


def test_what_is_not_strict_is_left_out() -> None:
    tool = {"name": "t", "strict": False, "parameters": {"properties": {"a": {}}, "minProperties": 1}}
    assert grammar_of(GRAMMARS["glm"], "required", [tool]).matches("<tool_call>t</tool_call>")


def test_formats_without_calls() -> None:
    with pytest.raises(GrammarError, match="expected a format with calls, got none"):
        grammar_of(GRAMMARS["none"], "auto")
    with pytest.raises(GrammarError, match="does not end as it begins"):
        grammar_of(ToolCallGrammar.Custom("[[", "]]"), "auto")


def test_references_to_other_arguments() -> None:
    parameters = {"properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}}}
    tools = [{"name": "t", "parameters": parameters}]
    grammar = grammar_of(GRAMMARS["qwen-xml"], "required", tools)
    assert grammar.matches(tags("t", c="3"))
    assert not grammar.matches(tags("t", c="x"))
    (call,) = calls_of(events_of("qwen-xml", [tags("t", c="3")], tools))
    assert json.loads(call.text) == {"c": 3}


NESTED_TOOL: dict[str, Any] = {
    "name": "plan",
    "parameters": {
        "type": "object",
        "properties": {
            "steps": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}, "label": {"type": "string"}},
                    "required": ["id"],
                },
            },
            "any": {"type": ["string", "object"]},
            "unique": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        },
    },
}


@pytest.mark.parametrize(
    "args, is_allowed",
    [
        ({"steps": [{"id": 1, "label": "x"}, {"id": 2}]}, True),
        ({"steps": [{"label": "x", "id": 1}]}, True),
        ({"steps": []}, False),
        ({"steps": [{"id": 1}] * 3}, False),
        ({"steps": [{"label": "x"}]}, False),
        ({"steps": [{"id": "x"}]}, False),
        ({"steps": [{"id": 1, "more": 1}]}, False),
        ({"any": "text"}, True),
        ({"any": '{"a": 1}'}, True),
        ({"any": " ]<]minimax[>[<a>"}, False),
        ({"unique": '["b", "a"]'}, True),
        ({"unique": '["a", "a"]'}, False),
        ({"unique": ["a"]}, False),
    ],
)
def test_nested_values(args: dict[str, Any], is_allowed: bool) -> None:
    """What plain keywords describe stands in tags; what needs others, or may be a text, in JSON."""
    grammar = grammar_of(GRAMMARS["minimax-m3"], "required", [NESTED_TOOL])
    assert grammar.matches(minimax_m3(("plan", args))) == is_allowed


@pytest.mark.parametrize("name", ["minimax-m3", "kimi-k3", "minicpm", "muse", "hunyuan"])
def test_nested_values_of_any_text(name: str) -> None:
    """However they are nested, they are read as what their schema allows."""
    vocabulary, tokens, ids, end = vocabulary_of(FORMATS[name], True)
    grammar = grammar_of(FORMATS[name], "required", [NESTED_TOOL], special=ids, parallel=False)
    n_calls = 0
    for seed in range(60):
        text, _ = random_text(grammar, vocabulary, tokens, end, seed, 200)
        for call in calls_of(events_of(FORMATS[name], [text], [NESTED_TOOL], constrained=True)):
            jsonschema.validate(call.args, NESTED_TOOL["parameters"])
            n_calls += 1
    assert n_calls > 0


@pytest.mark.parametrize(
    ("name", "before", "between", "after"),
    [
        ("mistral", "[TOOL_CALLS][", ", ", "]"),
        ("minimax-m1", "<tool_calls>\n", "\n", "\n</tool_calls>"),
        ("qwen", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    ],
)
def test_a_message_that_must_call_has_at_most_128_calls(
    name: str, before: str, between: str, after: str
) -> None:
    grammar = grammar_of(FORMATS[name], "required")
    for n, is_allowed in ((1, True), (128, True), (129, False)):
        assert grammar.matches(before + between.join([PING] * n) + after) is is_allowed
