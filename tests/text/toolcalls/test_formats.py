"""Formats: what each writes, which a template writes, and what is told of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from oxillama.errors import ConfigError
from oxillama.text.toolcalls import (
    GRAMMARS,
    ArgumentsPart,
    CallEnd,
    CallStart,
    MessageParser,
    TextPart,
    ToolCall,
    ToolCallGrammar,
    grammar_of_template,
)
from oxillama.text.toolcalls.tool_grammar import OBJECT
from tests.support.tool_models import grammar_of
from tests.support.toolcalls import (
    ALL,
    HY,
    LONG,
    NS,
    TOOLS,
    Parsed,
    atem,
    calls_of,
    cohere,
    events_of,
    hunyuan,
    keys,
    kimi_k3,
    minimax_m3,
    parsed,
    solar,
    tags,
)

CASES = [(name, text, calls) for name, cases in LONG.items() for text, calls in cases]


@pytest.mark.parametrize("name, text, calls", CASES)
def test_calls(name: str, text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Each is its start, its arguments and its end, in order and numbered."""
    assert parsed(name, text) == Parsed(calls=calls)
    events = events_of(name, [text])
    assert len(events) == 3 * len(calls)
    for i, (tool, args) in enumerate(calls):
        start, arguments, end = events[3 * i : 3 * i + 3]
        assert isinstance(start, CallStart) and isinstance(arguments, ArgumentsPart)
        assert isinstance(end, CallEnd)
        assert (start.index, arguments.index, end.index, start.name) == (i, i, i, tool)
        assert end.call.text == arguments.text
        assert json.loads(arguments.text) == args


@pytest.mark.parametrize("name, text, calls", [case for case in CASES if not GRAMMARS[case[0]].headers])
def test_text_before_between_and_behind(
    name: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    if name == "llama3" and not text.startswith("<"):
        return  # without a delimiter, a call is the whole message
    assert parsed(name, f"I will:\n\n{text}\n{text}") == Parsed("I will:", calls=calls + calls)
    if name != "llama3":
        assert parsed(name, f"{text}\nDone. ").text == "Done. "


def test_ids_before_the_name() -> None:
    events = events_of("cohere", [cohere(("ping", {}), ("ping", {}))])
    assert [call.id for call in calls_of(events)] == ["0", "1"]
    assert [event.id for event in events if isinstance(event, CallStart)] == ["0", "1"]
    assert [call.id for call in calls_of(events_of("solar", [solar(("ping", {}))]))] == ["abcdefghi0"]


def test_a_list_begins_with_its_delimiter() -> None:
    """firefunction's has no other; what only looks like it is text."""
    assert parsed("firefunction", "import functools").text == "import functools"
    assert parsed("firefunction", "functools[1]") == Parsed("1]", failed=["functools["])


def test_ids() -> None:
    (call,) = calls_of(events_of("mistral", ["[TOOL_CALLS]ping[CALL_ID]123456789[ARGS]{}"]))
    assert (call.id, call.text) == ("123456789", "{}")
    (call,) = calls_of(events_of("mistral", ['[TOOL_CALLS][{"name": "ping", "arguments": {}, "id": "abc"}]']))
    assert call.id == "abc"


def test_arguments_come_as_they_are_written() -> None:
    parser = MessageParser(ToolCallGrammar.Qwen, TOOLS)
    assert parser.feed('Hm. <tool_call>{"name": "wri') == [TextPart("Hm.")]
    assert parser.feed('te", "arguments": {"pa') == [CallStart(0, "write"), ArgumentsPart(0, '{"pa')]
    assert parser.feed('th": "x') == [ArgumentsPart(0, 'th": "x')]
    assert parser.feed('"}') == [ArgumentsPart(0, '"}')]
    assert parser.feed("}\n</tool_") == [CallEnd(0, ToolCall("write", {"path": "x"}, text='{"path": "x"}'))]
    assert parser.feed("call>") == []


def test_strings_in_tags_come_as_they_are_written() -> None:
    """Where the tool's schema says that they are strings; else the whole value decides."""
    parser = MessageParser(GRAMMARS["qwen-xml"], TOOLS)
    parser.feed("<tool_call><function=write><parameter=text>\n")
    assert parser.feed('say "a') == [ArgumentsPart(0, 'say \\"a')]
    assert parser.feed("\n") == []
    assert parser.feed("b</para") == [ArgumentsPart(0, "\\nb")]
    parser.feed("meter><parameter=lines>\n")
    assert parser.feed("12") == []


def test_a_call_at_the_end_may_lack_what_closes_it() -> None:
    for name, text, close in (
        ("qwen", '<tool_call>{"name": "ping", "arguments": {}}', "</tool_call>"),
        ("qwen-xml", tags("ping").removesuffix("\n</tool_call>"), "</tool_call>"),
        ("gemma", "<|tool_call>call:ping{}", "<tool_call|>"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}", ""),
    ):
        assert parsed(name, text).calls == parsed(name, text + close).calls == [("ping", {})], name


# --- reasoning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glm", "deepseek", "deepseek-dsml"])
def test_reasoning(name: str) -> None:
    text, calls = LONG[name][0]
    wanted = Parsed("Well,", "It is\nso.", calls)
    assert parsed(name, f"<think>\nIt is\nso. \n</think>\n\nWell,\n\n{text}") == wanted
    assert parsed(name, f"It is\nso.</think>Well,{text}", in_reasoning=True) == wanted
    assert parsed(name, "<think>So.</think>Well.", in_reasoning=True) == Parsed("Well.", "So.")
    assert parsed(name, "</think>Well.", in_reasoning=True) == Parsed("Well.")
    assert parsed(name, "<think>\n\n</think>\n\nWell.").reasoning == ""
    assert parsed(name, "So. ", in_reasoning=True).reasoning == "So. "
    assert parsed(name, "Write <think> and </think>.") == Parsed("Write <think> and </think>.")


def test_calls_inside_reasoning() -> None:
    """A special token ends it; elsewhere a call that is only thought of stays a thought."""
    found = parsed("deepseek", f"Hm. {LONG['deepseek'][0][0]}", in_reasoning=True)
    assert (found.reasoning, len(found.calls)) == ("Hm.", 2)
    found = parsed(ToolCallGrammar.Mistral, "[THINK]As [TOOL_CALLS]ping[ARGS]{} does[/THINK]No.")
    assert found == Parsed("No.", "As [TOOL_CALLS]ping[ARGS]{} does")
    found = parsed("glm", f"So {keys('ping')} or not</think>{keys('ping')}", in_reasoning=True)
    assert found == Parsed("", f"So {keys('ping')} or not", [("ping", {})])


def test_reasoning_between_calls() -> None:
    found = parsed("glm", f"{keys('ping')}\n<think>So</think>{keys('ping')}")
    assert found == Parsed("", "So", [("ping", {})] * 2)


def test_channels_of_gemma() -> None:
    found = parsed("gemma", "<|channel>thought\nSo.<channel|>Well.<|channel>thought\n<channel|><channel|>")
    assert found == Parsed("Well.", "So.")
    assert parsed("gemma", "<|channel><|channel>thought<channel|>Well.") == Parsed("Well.")


def test_harmony() -> None:
    start = "<|start|>assistant"
    text = (
        "<|channel|>analysis<|message|>So.\n<|end|>"
        f"{start}<|channel|>commentary<|message|>I ask.<|end|>"
        f'{start}<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{{"a": 1}}<|call|>'
        f"{start} to=functions.write<|channel|>commentary<|message|>{{}}<|end|>"
        f"{start}<|channel|>commentary to=assistant<|channel|>final<|message|>Done.<|return|>"
    )
    assert parsed("harmony", text) == Parsed("I ask.Done.", "So.", [("ping", {"a": 1}), ("write", {})])
    assert parsed("harmony", "Well, to=x") == Parsed("Well, to=x")
    found = parsed("harmony", f"So.<|end|>{start}<|channel|>final<|message|>Yes.", in_reasoning=True)
    assert found == Parsed("Yes.", "So.")
    found = parsed("harmony", f"<|channel|>analysis<|message|>So{start}<|channel|>final<|message|>Yes.")
    assert found == Parsed("Yes.", "So")


def test_text_behind_the_end_of_a_message_is_an_answer() -> None:
    found = parsed("harmony", "<|channel|>analysis<|message|>So.<|end|>Yes.<|end|><|call|> More.")
    assert found == Parsed("Yes.More.", "So.")
    assert parsed("muse", " to=self<|message|>So.<|eom|>Yes.<|eot|>") == Parsed("Yes.", "So.")


def test_harmony_goes_on_behind_a_call_that_failed() -> None:
    call = "<|channel|>commentary to=functions.ping<|message|>{1}"
    found = parsed("harmony", f"{call}<|start|>assistant<|channel|>final<|message|>Done.")
    assert found == Parsed("Done.", failed=[call])
    assert parsed("harmony", " So", in_reasoning=True) == Parsed("", "So")


# --- parts that mean nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text, call",
    [
        (
            "kimi-k3",
            "So.<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response<|sep|>CALL<|close|>message<|sep|>",
            kimi_k3(("ping", {})),
        ),
        (
            "solar",
            "So.<|end|><|begin|>assistant<|content|>Well.<|end|><|begin|>assistantCALL<|calls|>",
            solar(("ping", {})),
        ),
        ("cohere", "So.<|END_THINKING|><|START_RESPONSE|>Well.<|END_RESPONSE|>CALL", cohere(("ping", {}))),
        ("cohere", "So.<|END_THINKING|><|START_TEXT|>Well.<|END_TEXT|>CALL", cohere(("ping", {}))),
        (
            "apriel",
            "So.\n[BEGIN FINAL RESPONSE]\nWell.\n[END FINAL RESPONSE]\nCALL",
            '<tool_calls>[{"name": "ping", "arguments": {}}]</tool_calls>',
        ),
        ("minimax-m3", "So.</mm:think>Well.CALL", minimax_m3(("ping", {}))),
        ("hunyuan", f"So.</think{HY}>Well.CALL", hunyuan(("ping", {}))),
        ("apertus", "So.<|inner_suffix|>Well.CALL", '<|tools_prefix|>[{"ping": {}}]<|tools_suffix|>'),
    ],
)
def test_texts_around_answers(name: str, text: str, call: str) -> None:
    """Marks around answers are not part of the text; the grammar writes the marks."""
    form = GRAMMARS[name]
    if form.reasoning is None:
        form = grammar_of_template(
            {"cohere": "<|START_ACTION|><|END_THINKING|>"}.get(name, "<tool_calls>[[BEGIN FINAL RESPONSE]")
        )
    assert form.name == name and form.reasoning is not None
    whole = text.replace("CALL", call)
    found = parsed(form, whole, in_reasoning=True)
    assert found == parsed(form, form.reasoning[0] + whole) == Parsed("Well.", "So.", [("ping", {})])
    written = whole.removesuffix("<|calls|>")
    for choice, message in (
        ("auto", written),
        ("required", written.replace("Well.", "")),
        ("none", text.removesuffix("<|calls|>").replace("CALL", "")),
    ):
        assert grammar_of(form, choice, in_reasoning=True).matches(message), choice
    plain = parsed(form.without_calls(), text.replace("CALL", "").replace("<|calls|>", ""), in_reasoning=True)
    assert plain == Parsed("Well.", "So.")


def test_a_turn_without_reasoning_may_close_it() -> None:
    assert parsed("minimax-m3", "</mm:think>Well.").text == "Well."


# --- messages within the message --------------------------------------------------------------------


def test_recipients() -> None:
    start = "<|start|>assistant"
    text = (
        f" to=self<|message|>So.\n<|eom|>{start} to=user<|message|>I ask.<|eom|>"
        f"{start}{atem('ping', a='1')}<|eom|>{start}<|message|>Done.<|eot|>"
    )
    assert parsed("muse", text) == Parsed("I ask.Done.", "So.", [("ping", {"a": 1})])
    assert parsed("muse", "<|message|>Hi.<|eot|>") == Parsed("Hi.")
    assert parsed("muse", "Hi. to=you") == Parsed("Hi. to=you")
    quoted = atem("ping").partition("<|message|>")[2]
    assert parsed("muse", f" to=user<|message|>Write {quoted}<|eot|>") == Parsed(f"Write {quoted}")
    found = parsed("muse", f" to=self<|message|>Write {quoted}<|eom|>{start} to=user<|message|>No.")
    assert found == Parsed("No.", f"Write {quoted}")
    found = parsed("muse", f" to=ping<|message|>print(1)<|eom|>{start} to=user<|message|>Done.")
    assert found == Parsed("Done.", failed=["to=ping<|message|>print(1)<|eom|>"])
    found = parsed("muse", f" to=ping<|eom|>{start}{atem('ping')}")
    assert found == Parsed(calls=[("ping", {})], failed=["to=ping<|eom|>"])


def test_reasoning_that_the_prompt_begins_where_a_message_is_made_of_several() -> None:
    text = "So.<|eom|><|start|>assistant to=user<|message|>No."
    assert parsed("muse", text, in_reasoning=True) == Parsed("No.", "So.")
    assert grammar_of(GRAMMARS["muse"], "auto", in_reasoning=True).matches(text)


def test_recipients_of_functionary() -> None:
    """The prompt ends with the mark before the first; behind it comes text to all, or a tool's name."""
    name = "functionary-v3.2"
    found = parsed(name, 'all\nI ask. >>> 1 + 1>>>ping\n{"a": 1}>>>all\nDone.')
    assert found == Parsed("I ask. >>> 1 + 1Done.", calls=[("ping", {"a": 1})])
    assert parsed(name, "Hello.\nYou.") == Parsed("Hello.\nYou.")
    assert parsed(name, ">>>all\nHello.") == Parsed("Hello.")
    assert parsed(name, "ping\n{1}>>>all\nDone.") == Parsed("Done.", failed=["ping\n{1}"])
    assert parsed(name, "stranger\n{}", tools=None) == Parsed(calls=[("stranger", {})])
    assert parsed(name, "stranger\n{}") == Parsed("stranger\n{}")


def test_nested_tags() -> None:
    """A value that begins with a tag is an object or an array, by the tool's schema and by its tag."""
    begin = f'{NS}<tool_call>\n{NS}<invoke name="write">{NS}<tags>'
    end = f"{NS}</tags>{NS}</invoke>\n{NS}</tool_call>"
    found = parsed(
        "minimax-m3", f"{begin}{NS}<item>a{NS}</item>\n {NS}<item>{NS}<b>1{NS}</b>{NS}</item>{end}"
    )
    assert found.calls == [("write", {"tags": ["a", {"b": 1}]})]
    assert parsed("minimax-m3", f"{begin}a{end}").calls == [("write", {"tags": "a"})]
    found = parsed("minimax-m3", f"{begin}{NS}<item>a{NS}</item>{NS}<b>1{NS}</b>{end}")
    assert (found.calls, found.failed != []) == ([], True)


# --- which format -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, name, reasoning",
    [
        ("<|start|>{{ role }}<|channel|>final<|message|>", "harmony", "<|channel|>analysis<|message|>"),
        ("{{ x }}<｜DSML｜invoke </think>", "deepseek-dsml", "<think>"),
        ("<｜tool▁calls▁begin｜>{{ x }}", "deepseek", "<think>"),
        ("<tool_call>{{ name }}<arg_key>", "glm", "<think>"),
        ("<tool_call>\n<function={{ name }}>\n<parameter=", "qwen-xml", None),
        ("<tool_call>\n<function={{ name }}>\n<parameter= </think>", "qwen-xml", "<think>"),
        ("<|tool_call>call:{{ name }}", "gemma", "<|channel>thought"),
        ("<start_function_call>call:", "function-gemma", None),
        ("[INST][TOOL_CALLS]", "mistral", None),
        ("[INST][TOOL_CALLS][/THINK]", "mistral", "[THINK]"),
        ("<|im_start|><tool_call>{{ x }}", "qwen", None),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi", None),
        ('<minimax:tool_call>{{ x }}<invoke name="', "minimax", "<think>"),
        ("<seed:tool_call>{{ x }}<function=", "seed", "<seed:think>"),
        ("<|im_start|>List of tools: <|tool_list_start|>[", "lfm2", None),
        ("<|im_start|><|tool_call_start|>[</think>", "lfm2", "<think>"),
        ("<|im_start|><|tool_call:begin|>", "none", None),
        ("<|start_of_role|>respond with <|tool_call|> followed by a list </think>", "granite", "<think>"),
        ("<TOOLCALL>[{{ x }}]</TOOLCALL>", "nemotron", None),
        ("<tool_calls>[{{ x }}]</tool_calls>", "apriel", None),
        ("<|im_start|><tool_call>{{ x }}</think>", "qwen", "<think>"),
        ('<|start_header_id|>{"name": function name, "parameters": dictionary of', "llama3", None),
        ("<|start_header_id|>{{ role }}", "none", None),
        ("<|im_start|></think>", "none", "<think>"),
        ("<tool_calls>[<tool_call>", "apriel", None),
        ("<tool_calls>[ [BEGIN FINAL RESPONSE]", "apriel", "Here are my reasoning steps:"),
        ("<atem:function_calls><|eom|><|start|>", "muse", "<|start|>assistant to=self<|message|>"),
        ("{{ '>>>all' }}{{ '>>>' + name }}", "functionary-v3.2", None),
        ("<function={{ name }}>{{ args }}</function>", "functionary-v3.1", None),
        ("<|open|><|close|><|sep|>{{ tag('argument') }}", "kimi-k3", "<|open|>think<|sep|>"),
        ("<|think|><|tool_call:begin|><|tool_call:args|>", "solar", "<|think|>"),
        (f'{NS}<tool_call><invoke name="', "minimax-m3", "<mm:think>"),
        ('<tool_calls>\\n{"name": ', "minimax-m1", "<think>"),
        ('<function name="{{ f }}"><param name="{{ p }}"></think>', "minicpm", "<think>"),
        ("{% set s = ':opensource' %}<arg_key{}>", "hunyuan", "<think:opensource>"),
        ("<|tools_prefix|>[", "apertus", "<|inner_prefix|>"),
        ("<|START_THINKING|><|END_THINKING|><|START_ACTION|>[", "cohere", "<|START_THINKING|>"),
        ('Action:```json[{"tool_name": "', "command-r", None),
        ("<|role_sep|><|message_sep|>{{ turn('function call') }}", "gigachat", None),
        ("<|role_sep|><|message_sep|><|function_call|>", "gigachat-v3.1", None),
        (" functools[{{ calls }}]", "firefunction", None),
        ('<|im_start|>{{ "List of tools: [" }}', "lfm2", None),
        ("", "none", None),
    ],
)
def test_the_format_of_a_template(source: str, name: str, reasoning: str | None) -> None:
    found = grammar_of_template(source)
    assert found.name == name
    assert (found.reasoning or (None,))[0] == reasoning


def test_ids_of_numbered_calls() -> None:
    """The template writes the result with the id."""
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    (call,) = calls_of(events_of("kimi", [text]))
    assert (call.name, call.id) == ("ping", "functions.ping:3")


def test_a_number_beyond_all_floats_in_python() -> None:
    text = '<|tool_call_start|>[ping(a=[-1e999, {"b": 2}])]<|tool_call_end|>'
    (call,) = calls_of(events_of("lfm2", [text]))
    assert call.text == '{"a": [-1e999, {"b": 2}]}'


@pytest.mark.parametrize(
    "call",
    [
        "[ping(1)]", "[ping(**a)]", "[ping(a=b)]", "[ping(a=1, a=2)]", "[1]", "[]", "ping", "[ping(a=1",
        "[ping(a={1})]", "[ping(a=b'x')]", "[ping(a=1.e999)]", "[ping(a=f'x')]", '[{"name": "ping"}]',
        "[ping(a=" + "[" * 3000 + ")]",
    ],
)  # fmt: skip
def test_what_is_no_call_in_python(call: str) -> None:
    found = parsed("lfm2", f"<|tool_call_start|>{call}<|tool_call_end|>")
    assert found.calls == []
    assert "".join(found.failed).startswith("<|tool_call_start|>")


def test_delimiters() -> None:
    for form, open, close in (
        (ToolCallGrammar.Llama3, "<|python_tag|>", "<|eom_id|>"),
        (ToolCallGrammar.Qwen, "<tool_call>", "</tool_call>"),
        (ToolCallGrammar.Mistral, "[TOOL_CALLS]", ""),
        (ToolCallGrammar.Custom("<<", ">>"), "<<", ">>"),
        (GRAMMARS["none"], "", ""),
    ):
        assert (form.open_delimiter(), form.close_delimiter()) == (open, close)


def test_delimiters_of_your_own() -> None:
    grammar = ToolCallGrammar.Custom("<<", ">>", ("(", ")"))
    found = parsed(
        grammar, '(Hm.) Yes <<{"name": "ping", "args": {"a": ">>"}}>> <<<function=ping></function>>>'
    )
    assert found == Parsed("Yes", "Hm.", [("ping", {"a": ">>"}), ("ping", {})])
    brackets = ToolCallGrammar.Custom("[", "]")
    call = '[{"name": "ping", "arguments": {}}]'
    assert parsed(brackets, f"a {call} b") == Parsed("ab", calls=[("ping", {})])
    assert grammar_of(brackets, "required", [{"name": "ping"}]).matches(call)
    for open, close in (("", ">>"), ("<<", " "), (1, ">>")):
        with pytest.raises(ConfigError, match="expected a text that is not empty"):
            ToolCallGrammar.Custom(open, close)  # type: ignore[arg-type]


def test_formats_as_plain_data() -> None:
    for form in ALL.values():
        assert ToolCallGrammar.of(json.loads(json.dumps(asdict(form)))) == form
    for fields, message in (
        ({"calls": ["<call>$name</call>"]}, r"calls: expected one of \$json, \$members, .* in each pattern"),
        ({"calls": ["$name$value"]}, r"calls: expected one of \$json, .* pattern, got '\$name\$value'"),
        ({"argument": "<key>$key"}, r"calls: expected one of \$value in each pattern, got '<key>\$key'"),
        ({"calls": ["$name$arguments"]}, r"argument: expected a text, for the calls have \$arguments"),
        ({"calls": ["$name$members"]}, r"quote: expected a text, for the calls have \$members"),
        ({"calls": ["$name$elements"]}, r"mark: expected a text, for the calls have \$elements"),
        ({"headers": ["$name:"]}, "headers: expected none without turns, answers, and what"),
        ({"calls": ["$tool$json"]}, r"calls: expected no words but \$key, .* in each pattern, got"),
        ({"calls": ["$name costs 3$ $json"]}, r"calls: expected no words but \$key, .* in each pattern"),
        ({"turns": ["<"]}, "turns: expected what begins a message, what ends its header, and what ends the"),
        ({"wrapping": ["<"]}, "wrapping: expected a text before and one after a string"),
        ({"reasoning": ["<"]}, "reasoning: expected a text before and one after it"),
        ({"framing": [""]}, "framing: expected strings that are not empty"),
        ({"style": "x"}, "message_format: expected fields of a format"),
        ({"opens": []}, "opens: expected a text that a call begins with"),
    ):
        with pytest.raises(ConfigError, match=message):
            ToolCallGrammar.of({"name": "own", "calls": [OBJECT], "opens": ["<<"], "close": ">>", **fields})


def test_prompts_that_end_in_reasoning() -> None:
    assert ToolCallGrammar.Qwen.begins_in_reasoning("<|im_start|>assistant\n<think>\n")
    assert not ToolCallGrammar.Qwen.begins_in_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n")
    assert not GRAMMARS["none"].begins_in_reasoning("<think>")


def test_without_a_format_all_is_text() -> None:
    text = " \n<tool_call><think>{}\n "
    assert events_of("none", text) == [TextPart(text)]
    reasoned = replace(GRAMMARS["none"], reasoning=("<think>", "</think>"))
    assert parsed(reasoned, "<think>So</think> Yes") == Parsed("Yes", "So")
