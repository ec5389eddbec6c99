"""Messages of every format with calls, and what they are to be taken apart into."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from oxillama.text.toolcalls import (
    GRAMMARS,
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    MessageParser,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolCallGrammar,
)
from oxillama.text.toolcalls.schemas import type_of

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {
        "name": "write",
        "parameters": {
            "properties": {
                "path": {"type": "string"},
                "text": {"anyOf": [{"type": "string"}]},
                "mode": {"enum": ["a", "w"]},
                "lines": {"type": ["integer", "null"]},
                "title": {"type": ["string", "null"]},
                "tags": {"type": "array"},
                "force": {"type": "boolean"},
            }
        },
    },
    {
        "name": "plan",
        "parameters": {
            "properties": {
                "steps": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"id": {"type": "integer"}, "label": {}}},
                },
                "at": {"$ref": "#/$defs/At"},
                "any": {},
            },
            "$defs": {
                "At": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "object"}}}
            },
        },
    },
]


@dataclass
class Parsed:
    """A message taken apart."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def joined(events: Iterable[Event]) -> list[Event]:
    """The events, with neighbouring parts of one text, reasoning or call joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextPart) and isinstance(last, TextPart):
            found[-1] = TextPart(last.text + event.text)
        elif isinstance(event, ReasoningPart) and isinstance(last, ReasoningPart):
            found[-1] = ReasoningPart(last.text + event.text)
        elif (
            isinstance(event, ArgumentsPart) and isinstance(last, ArgumentsPart) and last.index == event.index
        ):
            found[-1] = ArgumentsPart(last.index, last.text + event.text)
        else:
            found.append(event)
    return found


def events_of(
    grammar: ToolCallGrammar | str,
    pieces: Iterable[str],
    tools: Any = TOOLS,
    in_reasoning: bool = False,
    **options: bool,
) -> list[Event]:
    grammar = GRAMMARS[grammar] if isinstance(grammar, str) else grammar
    parser = MessageParser(grammar, tools, in_reasoning, **options)
    found = [event for piece in pieces for event in parser.feed(piece)]
    return joined(found + parser.finish())


def calls_of(events: Iterable[Event]) -> list[ToolCall]:
    return [event.call for event in events if isinstance(event, CallEnd)]


def parsed(grammar: ToolCallGrammar | str, text: str, **options: Any) -> Parsed:
    events = events_of(grammar, [text], **options)
    return Parsed(
        "".join(event.text for event in events if isinstance(event, TextPart)),
        "".join(event.text for event in events if isinstance(event, ReasoningPart)),
        [(call.name, call.args) for call in calls_of(events)],
        [event.text for event in events if isinstance(event, CallFailed)],
    )


@dataclass(frozen=True)
class Writer:
    """Writes calls as a model does.

    Attributes:
        call: a pattern with ``{name}``, the numbers ``{i}`` from 0 and ``{n}`` from 1, and ``{args}``.
        argument: a pattern with ``{key}``, ``{value}``, ``{type}`` and ``{is_string}``; "" for JSON.
        around: a pattern with ``{calls}``.
    """

    call: str
    argument: str = ""
    around: str = "{calls}"
    between: str = ""

    def __call__(self, *calls: tuple[str, dict[str, Any]]) -> str:
        texts = []
        for i, (name, args) in enumerate(calls):
            inside = "".join(self.written(*each) for each in args.items())
            inside = inside if self.argument else json.dumps(args)
            texts.append(self.call.format(name=name, i=i, n=i + 1, args=inside))
        return self.around.format(calls=self.between.join(texts))

    def written(self, key: str, value: Any) -> str:
        shown, is_string = value if isinstance(value, str) else json.dumps(value), isinstance(value, str)
        words = {"type": type_of(value), "is_string": str(is_string).lower()}
        return self.argument.format(key=key, value=shown, **words)

    def one(self, name: str, **args: str) -> str:
        """One call."""
        return self((name, args))


HY = ":opensource"
NS = "]<]minimax[>["

tags = Writer(
    "<tool_call>\n<function={name}>\n{args}</function>\n</tool_call>",
    "<parameter={key}>\n{value}\n</parameter>\n",
).one
"""As Qwen3-Coder."""
keys = Writer(
    "<tool_call>{name}\n{args}</tool_call>", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
).one
"""As GLM."""
dsml = Writer(
    '<｜DSML｜invoke name="{name}">\n{args}</｜DSML｜invoke>\n',
    '<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n',
    "<｜DSML｜function_calls>\n{calls}</｜DSML｜function_calls>",
)
"""As DeepSeek V3.2."""
v31 = Writer(
    "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{args}<｜tool▁call▁end｜>",
    around="<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>",
)
"""As DeepSeek V3.1."""
kimi = Writer(
    "<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{args}<|tool_call_end|>",
    around="<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>",
)
"""As Kimi K2."""
minimax = Writer(
    '<invoke name="{name}">\n{args}</invoke>\n',
    '<parameter name="{key}">{value}</parameter>\n',
    "<minimax:tool_call>\n{calls}</minimax:tool_call>",
)
"""As MiniMax M2."""
seed = Writer(
    "<seed:tool_call>\n<function={name}>\n{args}</function>\n</seed:tool_call>",
    "<parameter={key}>{value}</parameter>\n",
).one
"""As Seed-OSS."""
hunyuan = Writer(
    f"<tool_call{HY}>{{name}}<tool_sep{HY}>\n{{args}}</tool_call{HY}>\n",
    f"<arg_key{HY}>{{key}}</arg_key{HY}>\n<arg_value{HY}>{{value}}</arg_value{HY}>\n",
    f"<tool_calls{HY}>\n{{calls}}</tool_calls{HY}>",
)
"""As Hunyuan 3."""
kimi_k3 = Writer(
    '<|open|>call tool="{name}" index="{n}"<|sep|>{args}<|close|>call<|sep|>',
    '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
    "<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>",
)
"""As Kimi K3."""
minicpm = Writer('<function name="{name}">{args}</function>', '<param name="{key}">{value}</param>').one
"""As MiniCPM 5."""
atem = Writer(
    ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{args}</atem:invoke>\n'
    "</atem:function_calls>",
    '<atem:parameter name="{key}">{value}</atem:parameter>\n',
).one
"""As Muse Glimmer, with the recipient."""
solar = Writer(
    "<|tool_call:begin|>abcdefghi{i}<|tool_call:name|>{name}<|tool_call:args|>{args}<|tool_call:end|>",
    around="<|tool_calls|>{calls}",
)
"""As Solar Open."""
cohere = Writer(
    '    {{"tool_call_id": "{i}", "tool_name": "{name}", "parameters": {args}}}',
    around="<|START_ACTION|>[\n{calls}\n]<|END_ACTION|>",
    between=",\n",
)
"""As Command R7B."""


def minimax_m3(*calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as MiniMax M3 writes them."""

    def nested(value: Any) -> str:
        if isinstance(value, dict):
            return "".join(f"{NS}<{k}>{nested(v)}{NS}</{k}>" for k, v in value.items())
        if isinstance(value, list):
            return "".join(f"{NS}<item>{nested(v)}{NS}</item>" for v in value)
        return value if isinstance(value, str) else json.dumps(value)

    inside = "".join(f'{NS}<invoke name="{name}">{nested(args)}{NS}</invoke>\n' for name, args in calls)
    return f"{NS}<tool_call>\n{inside}{NS}</tool_call>"


PLAN = {"steps": [{"id": 1, "label": "x"}, {}], "at": {"x": -1.5, "y": {"z": "q"}}}
NESTED = {"path": "a}\"{'\\", "tags": [{"x": [1, {}]}, "]", None], "text": "é\n</tool_call>"}
"""Braces, quotes and delimiters inside strings."""
CODE = "  if a < b:\n    <b>1</b>"
LONG: dict[str, list[tuple[str, list[tuple[str, dict[str, Any]]]]]] = {
    "qwen": [
        ('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>', [("ping", {})]),
        (f'<tool_call>{{"name": "write", "arguments": {json.dumps(NESTED)}}}</tool_call>',
         [("write", NESTED)]),
        ('<tool_call>[{"name": "ping"}, {"name": "ping", "args": {"a": 1}}]</tool_call>',
         [("ping", {}), ("ping", {"a": 1})]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "ping"}</tool_call>', [("ping", {"a": 1})]),
        ('<tool_call>{"type": "function", "function": {"name": "ping", "parameters": {"a": {}}}}</tool_call>',
         [("ping", {"a": {}})]),
        ('<tool_call>{"name": "ping", "arguments": "{\\"a\\": 1}"}</tool_call>', [("ping", {"a": 1})]),
        ('<tool_call>{"name": "ping", "arguments": null}</tool_call>', [("ping", {})]),
    ],
    "qwen-xml": [
        (tags("ping"), [("ping", {})]),
        (tags("write", path="x\n", text=CODE, lines="3", tags='["a"]', force="true"),
         [("write", {"path": "x\n", "text": CODE, "lines": 3, "tags": ["a"], "force": True})]),
        (tags("write", path="3", title="null", lines="null", mode="w"),
         [("write", {"path": "3", "title": None, "lines": None, "mode": "w"})]),
        (tags("write", title="3", tags="none", lines="many"),
         [("write", {"title": "3", "tags": "none", "lines": "many"})]),
        (tags("other", a="1", b="x", c='{"d": [2]}', d='"q"'),
         [("other", {"a": 1, "b": "x", "c": {"d": [2]}, "d": '"q"'})]),
        (tags("ping")[len("<tool_call>\n"):], [("ping", {})]),
        (tags("write", tags='["</parameter>", "\\n</parameter>"]'),
         [("write", {"tags": ["</parameter>", "\n</parameter>"]})]),
        (tags("write", tags='["a'), [("write", {"tags": '["a'})]),
        (tags("write", tags="[x] y"), [("write", {"tags": "[x] y"})]),
        ('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>', [("ping", {})]),
    ],
    "glm": [
        (keys("ping"), [("ping", {})]),
        ("<tool_call>ping</tool_call>", [("ping", {})]),
        (keys("write", path=" 1 ", text="<arg_key>", lines="2"),
         [("write", {"path": " 1 ", "text": "<arg_key>", "lines": 2})]),
    ],
    "llama3": [
        ('{"name": "ping", "parameters": {"a": 1}}', [("ping", {"a": 1})]),
        ('<|python_tag|>{"type": "function", "name": "other", "parameters": {}}<|eom_id|>', [("other", {})]),
        ('{"name": "ping", "parameters": {}}; {"name": "write", "parameters": {"path": "{"}}',
         [("ping", {}), ("write", {"path": "{"})]),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "ping", "arguments": {"a": "]"}, "id": "abc"}, '
         '{"name": "ping", "arguments": {}}]',
         [("ping", {"a": "]"}), ("ping", {})]),
        ('[TOOL_CALLS]ping[ARGS]{"a": {"b": 1}}', [("ping", {"a": {"b": 1}})]),
        ('[TOOL_CALLS]ping[CALL_ID]123456789[ARGS]{}', [("ping", {})]),
        ('[TOOL_CALLS]ping{"a": 1}', [("ping", {"a": 1})]),
    ],
    "deepseek": [
        (v31(("ping", {}), ("write", {"path": "<｜tool▁call▁end｜>"})),
         [("ping", {}), ("write", {"path": "<｜tool▁call▁end｜>"})]),
        ('<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n'
         '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("ping", {"a": 1})]),
    ],
    "kimi": [
        (kimi(("ping", {}), ("write", {"path": "<|tool_call_end|>"})),
         [("ping", {}), ("write", {"path": "<|tool_call_end|>"})]),
        (kimi(("ping", {"a": 1})).replace("functions.ping:0", "ping"), [("ping", {"a": 1})]),
    ],
    "minimax": [
        (minimax(("ping", {}), ("write", {"path": "3", "lines": "3", "text": "\n a"})),
         [("ping", {}), ("write", {"path": "3", "lines": 3, "text": "\n a"})]),
        (minimax(("write", {"tags": '["</parameter>"]'})), [("write", {"tags": ["</parameter>"]})]),
    ],
    "seed": [
        (seed("ping"), [("ping", {})]),
        (seed("write", path="3", lines="3", text="\n a\n"),
         [("write", {"path": "3", "lines": 3, "text": "\n a\n"})]),
    ],
    "lfm2": [
        ("<|tool_call_start|>[ping()]<|tool_call_end|>", [("ping", {})]),
        ("<|tool_call_start|>[write(path='it\\'s <|tool_call_end|>', lines=-3, "
         "tags=[1.5, \"x\", {'a': None}]), "
         'ping(a=true, b=False, c="\\/\\d\\ud83d\\ude00")]<|tool_call_end|>',
         [("write", {"path": "it's <|tool_call_end|>", "lines": -3, "tags": [1.5, "x", {"a": None}]}),
          ("ping", {"a": True, "b": False, "c": "/\\d\U0001f600"})]),
        ('<|tool_call_start|>[{"name": "ping", "arguments": {"a": null}}]<|tool_call_end|>',
         [("ping", {"a": None})]),
        ("<|tool_call_start|>a.b(c={})<|tool_call_end|>", [("a.b", {"c": {}})]),
    ],
    "granite": [
        ('<|tool_call|>[{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {"a": 1}}]',
         [("ping", {}), ("ping", {"a": 1})]),
    ],
    "nemotron": [
        ('<TOOLCALL>[{"name": "ping", "arguments": {"a": "</TOOLCALL>"}}]</TOOLCALL>',
         [("ping", {"a": "</TOOLCALL>"})]),
    ],
    "apriel": [
        ('<tool_calls>[{"name": "ping", "arguments": {}, "id": "7"}]</tool_calls>', [("ping", {})]),
    ],
    "hunyuan": [
        (hunyuan(("ping", {}), ("write", {"path": "3", "lines": "3", "text": f"<tool_call{HY}>"})),
         [("ping", {}), ("write", {"path": "3", "lines": 3, "text": f"<tool_call{HY}>"})]),
        (hunyuan(("ping", {})).removeprefix(f"<tool_calls{HY}>\n"), [("ping", {})]),
    ],
    "kimi-k3": [
        (kimi_k3(("ping", {}), ("write", {"path": "3", "lines": 3, "tags": ["<|close|>argument<|sep|>"]})),
         [("ping", {}), ("write", {"path": "3", "lines": 3, "tags": ["<|close|>argument<|sep|>"]})]),
        (kimi_k3(("other", {"a": "true", "b": True, "c": None, "d": {"e": 1}})),
         [("other", {"a": "true", "b": True, "c": None, "d": {"e": 1}})]),
        (kimi_k3(("ping", {"a": 1})).replace('"a"', '"a&amp;&quot;b"'), [("ping", {'a&"b': 1})]),
    ],
    "solar": [
        (solar(("ping", {}), ("write", {"path": "<|tool_call:end|>"})),
         [("ping", {}), ("write", {"path": "<|tool_call:end|>"})]),
        (solar(("ping", {})).removeprefix("<|tool_calls|>"), [("ping", {})]),
    ],
    "minimax-m3": [
        (minimax_m3(("ping", {}), ("write", {"path": "3", "lines": 3, "tags": ["a", "]<]minimax[>"]})),
         [("ping", {}), ("write", {"path": "3", "lines": 3, "tags": ["a", "]<]minimax[>"]})]),
        (minimax_m3(("plan", PLAN)), [("plan", PLAN)]),
        (minimax_m3(("plan", {"steps": [], "any": ""})), [("plan", {"steps": [], "any": ""})]),
        (minimax_m3(("plan", {"steps": "[]", "any": f'{{"{NS}</any>": 1}}'})),
         [("plan", {"steps": [], "any": {f"{NS}</any>": 1}})]),
        (minimax_m3(("plan", {"any": {"a": [1, {"b": "c"}]}})), [("plan", {"any": {"a": [1, {"b": "c"}]}})]),
    ],
    "minimax-m1": [
        ('<tool_calls>\n{"name": "ping", "arguments": {}}\n{"name": "ping", "arguments": {"a": 1}}\n'
         "</tool_calls>", [("ping", {}), ("ping", {"a": 1})]),
    ],
    "minicpm": [
        (minicpm("ping"), [("ping", {})]),
        (minicpm("write", path="3", lines="3", text="<![CDATA[a</param>\n]] <b>]]>"),
         [("write", {"path": "3", "lines": 3, "text": "a</param>\n]] <b>"})]),
        (minicpm("write", lines="<![CDATA[3]]>", title="<![CDATA[3]]>", tags='["</param>"]'),
         [("write", {"lines": 3, "title": "3", "tags": ["</param>"]})]),
    ],
    "functionary-v3.1": [
        ('<function=ping>{"a": "</function>"}</function>', [("ping", {"a": "</function>"})]),
        ("<function=ping>{}</function>\n<function=ping>{}</function>", [("ping", {}), ("ping", {})]),
    ],
    "apertus": [
        ('<|tools_prefix|>[{"ping": {}}, {"write": {"path": "<|tools_suffix|>"}}]<|tools_suffix|>',
         [("ping", {}), ("write", {"path": "<|tools_suffix|>"})]),
        ('<|tools_prefix|>{"name": {"arguments": 1}}<|tools_suffix|>', [("name", {"arguments": 1})]),
    ],
    "cohere": [(cohere(("ping", {}), ("ping", {"a": 1})), [("ping", {}), ("ping", {"a": 1})])],
    "command-r": [
        ('Action:\n```json\n[\n    {\n        "tool_name": "ping",\n        "parameters": {\n'
         '            "a": "```"\n        }\n    }\n]```', [("ping", {"a": "```"})]),
        ('Action: ```json\n[{"tool_name": "ping", "parameters": {}}]\n```', [("ping", {})]),
    ],
    "gigachat": [
        ('<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "ping", "arguments": {"a": 1}}',
         [("ping", {"a": 1})]),
    ],
    "gigachat-v3.1": [
        ('<|function_call|>{"name": "ping", "arguments": {"a": 1}}', [("ping", {"a": 1})]),
    ],
    "firefunction": [
        ('functools[{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {"a": "]"}}]',
         [("ping", {}), ("ping", {"a": "]"})]),
    ],
    "functionary-v3.2": [
        ('ping\n{"a": ">>>ping\\n"}', [("ping", {"a": ">>>ping\n"})]),
        ('>>>ping\n{}>>>write\n{"path": ">>>"}', [("ping", {}), ("write", {"path": ">>>"})]),
    ],
    "muse": [
        (atem("ping"), [("ping", {})]),
        (f"{atem('ping')}<|eom|><|start|>assistant{atem('write', path='3', lines='3', text=' a ')}<|eot|>",
         [("ping", {}), ("write", {"path": "3", "lines": 3, "text": " a "})]),
        (f"<|start|>assistant{atem('write', tags=json.dumps(['</atem:parameter>']))}",
         [("write", {"tags": ["</atem:parameter>"]})]),
    ],
    "deepseek-dsml": [
        (dsml(("ping", {}), ("write", {"path": "3", "lines": 3})),
         [("ping", {}), ("write", {"path": "3", "lines": 3})]),
        (dsml(("other", {"a": "true", "b": [1]})), [("other", {"a": "true", "b": [1]})]),
        (dsml(("ping", {})).replace("function_calls", "tool_calls"), [("ping", {})]),
    ],
    "gemma": [
        ("<|tool_call>call:ping{}<tool_call|>", [("ping", {})]),
        ('<|tool_call>call:write{path:<|"|>a{}"\n<|"|>,lines:-2.5e1,tags:[<|"|>x<|"|>,[],{}],'
         'o:{n:null,t:true}}<tool_call|>',
         [("write", {"path": 'a{}"\n', "lines": -25.0, "tags": ["x", [], {}], "o": {"n": None, "t": True}})]),
    ],
    "function-gemma": [
        ("<start_function_call>call:write{lines:1,lines:2}<end_function_call>", [("write", {"lines": 2})]),
        ("<start_function_call>call:write{path:<escape>a,b<escape>}<end_function_call>",
         [("write", {"path": "a,b"})]),
    ],
    "harmony": [
        ('<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"a": "}"}<|call|>',
         [("ping", {"a": "}"})]),
        (' to=functions.ping<|channel|>commentary<|message|>{}', [("ping", {})]),
        ('<|channel|>commentary to=functions.write<|message|>{"path": "<|end|>"}<|call|>',
         [("write", {"path": "<|end|>"})]),
    ],
}  # fmt: skip
"""Calls, and what they come to, by format."""

ALL = {**GRAMMARS, "Qwen": ToolCallGrammar.Qwen, "Mistral": ToolCallGrammar.Mistral}
PARTS = """
<function= <parameter=a> </parameter> </function> <arg_key> </arg_key> <arg_value> </arg_value> [ARGS]
[CALL_ID] <｜tool▁sep｜> <｜tool▁call▁end｜> ``` json call: <｜DSML｜invoke </｜DSML｜invoke>
<｜DSML｜parameter name= string="true" <|"|> <|channel|>final <|message|> <|start|>assistant <|return|>
to=functions. to=x <|sep|> <|open|>call tool= key= type="number" ]<]minimax[>[ <item> </item> <a> all
<param <![CDATA[ ]]> <|tool_call:name|> <|tool_call:args|> <tool_sep:opensource> <arg_key:opensource>
</arg_key:opensource> <arg_value:opensource> </arg_value:opensource> <|eom|> <atem:invoke <atem:parameter
ping {"name":"ping", "arguments": {"name" { } [ ] " \\ , : > < = ; a é 1 null -2.5 "a"
write path
"""
DELIMITERS = [(*g.opens, g.close, *g.dropped, *(g.reasoning or ())) for g in ALL.values()]
TOKENS = sorted({*PARTS.split(), " ", "\n", "\n\n", "\0", "\u2028", *sum(DELIMITERS, ())} - {""})
WHOLE = sorted({text for cases in LONG.values() for text, _ in cases})


def check(text: str, events: list[Event]) -> None:
    """Calls begin, take arguments and end or fail, one after the other; nothing is made up."""
    open, arguments, n_begun = None, "", 0
    for event in events:
        if isinstance(event, CallStart):
            assert (open, event.index) == (None, n_begun)
            open, arguments, n_begun = event, "", n_begun + 1
        elif isinstance(event, ArgumentsPart):
            assert open is not None and event.index == open.index and event.text
            arguments += event.text
        elif isinstance(event, CallEnd):
            assert open is not None and (event.index, event.call.name) == (open.index, open.name)
            assert event.call.text == arguments
            assert event.call.args == event.call.arguments == json.loads(arguments)
            open = None
        elif isinstance(event, CallFailed):
            assert event.index == (None if open is None else open.index)
            assert event.text in text and event.reason
            open = None
        else:
            assert open is None and event.text
    assert open is None
    written = [e.text for e in events if isinstance(e, (TextPart, ReasoningPart, CallFailed))]
    at = 0
    for part in written:  # in order, each character once
        for char in part:
            at = text.index(char, at) + 1
