"""What looks like a call and is none comes back as it was written, with the reason."""

from __future__ import annotations

import pytest

from oxillama.errors import ConfigError
from oxillama.text.toolcalls import (
    GRAMMARS,
    CallEnd,
    CallFailed,
    CallStart,
    MessageParser,
    TextPart,
    ToolCallGrammar,
)
from oxillama.text.toolcalls.incoming_text import MAX_DEPTH, IncomingText, MalformedCall
from tests.support.toolcalls import (
    HY,
    NS,
    TOOLS,
    Parsed,
    events_of,
    hunyuan,
    keys,
    kimi_k3,
    minicpm,
    minimax_m3,
    parsed,
    tags,
)

GOOD = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("qwen", "<tool_call>{'name': 'ping'}</tool_call>", "expected a member's name in quotes"),
        ("qwen", "<tool_call>ping</tool_call>", "expected {, got 'p'"),
        ("qwen", "<tool_call></tool_call>", "expected {, got '<'"),
        ("qwen", '<tool_call>{"arguments": {}}</tool_call>', "expected a name and arguments"),
        ("qwen", '<tool_call>{"name": "a b", "arguments": {}}</tool_call>', "the name of a tool, got 'a b'"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": [1]}</tool_call>', "expected an object, got"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": "x"}</tool_call>', "arguments: expected JSON"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {"a": 1,}}</tool_call>',
         "arguments: expected JSON"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {"a": NaN}}</tool_call>', "NaN is not JSON"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {"a": [1}}</tool_call>', "'}' out of place"),
        ("qwen", '<tool_call>{"name": "ping", "note": 1}</tool_call>',
         "expected name and arguments, got 'note'"),
        ("qwen", '<tool_call>{"name": "ping", "name": "ping"}</tool_call>', "name twice"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {}, "args": {}}</tool_call>', "arguments twice"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {}', "expected , or }, got the end"),
        ("qwen", '<tool_call>{"name": "pi', "expected the end of a JSON value"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": {"a": "', "expected the end of a JSON value"),
        ("qwen", '<tool_call>{"name": "ping", "arguments": ' + '{"a":' * 101 + "</tool_call>",
         "at most 100 levels"),
        ("qwen-xml", "<tool_call><function=ping</function></tool_call>", "expected <function=NAME>"),
        ("qwen-xml", "<tool_call><function=ping>a</function></tool_call>",
         "expected <parameter= or </function>"),
        ("qwen-xml", tags("ping").replace("</function>", ""), "expected <parameter= or </function>, got '<'"),
        ("qwen-xml", "<tool_call><function=write><parameter=path>a", "expected </parameter>, got the end"),
        ("qwen-xml", tags("write", path="a").replace("<parameter=path>", "<parameter=>"), "with a name"),
        ("qwen-xml", "<function=a><parameter=b>1</parameter><parameter=b>1</parameter></tool_call>",
         "every argument once"),
        ("glm", "<tool_call>pi", "expected <tool_call>NAME, got 'pi'"),
        ("glm", keys("a b"), "expected the name of a tool, got 'a b'"),
        ("glm", "<tool_call>ping<arg_key>a", "expected <arg_key>KEY</arg_key>"),
        ("glm", "<tool_call>ping<arg_key>a</arg_key>1</tool_call>", "expected <arg_value>, got '1'"),
        ("llama3", "<|python_tag|>print(1)<|eom_id|>", "expected {, got 'p'"),
        ("mistral", "[TOOL_CALLS]ping[ARGS][1]", "arguments: expected an object, got '[1]'"),
        ("mistral", "[TOOL_CALLS]ping", "expected NAME{ or NAME[ARGS] or NAME[CALL_ID], got 'ping'"),
        ("deepseek", "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>",
         "expected <｜tool▁call▁begin｜> or <｜tool▁calls▁end｜>, got 'x'"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "expected <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>"),
        ("deepseek-dsml", '<｜DSML｜function_calls><｜DSML｜invoke name=ping></｜DSML｜function_calls>',
         'expected <｜DSML｜invoke name=" or </｜DSML｜function_calls>, got'),
        ("gemma", "<|tool_call>ping{}<tool_call|>", "expected call:NAME{, got 'ping'"),
        ("gemma", "<|tool_call>call:ping<tool_call|>", "expected call:NAME{"),
        ("gemma", "<|tool_call>call:ping{a:b}<tool_call|>", "expected a value, got 'b'"),
        ("gemma", '<|tool_call>call:ping{a:<|"|>b}<tool_call|>', 'expected <|"|>, got the end'),
        ("gemma", "<|tool_call>call:ping{a:" + "[" * 60 + "<tool_call|>", "at most 50 levels"),
        ("harmony", "<|channel|>commentary to=functions.ping<|message|>{1}<|call|>",
         "arguments: expected JSON"),
        ("harmony", "<|channel|>commentary to=python<|message|>print(1)<|end|>",
         "functions.NAME, got one of 'python'"),
        ("harmony", "<|channel|>commentary to=functions.ping", "expected a header and <|message|>"),
        ("hunyuan", f"<tool_calls{HY}>ping</tool_calls{HY}>",
         f"expected <tool_call{HY}> or </tool_calls{HY}>, got 'p'"),
        ("hunyuan", hunyuan(("ping", {})).replace(f"</tool_call{HY}>", ""), f"or </tool_call{HY}>, got '<'"),
        ("kimi-k3", kimi_k3(("ping", {})).replace(' index="1"', " n=1"),
         'expected <|open|>call tool="NAME" index="'),
        ("kimi-k3", kimi_k3(("ping", {"a": 1})).replace('key="a"', "key=a"),
         'expected <|open|>argument key=" or'),
        ("solar", "<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>ping<|tool_call:end|>",
         "expected NAME<|tool_call:args|>"),
        ("minimax-m3", f"{NS}<tool_call>ping{NS}</tool_call>", "expected "),
        ("minimax-m3", minimax_m3(("write", {"path": "a"})).replace("</path>", "</p>"),
         "the end of the text"),
        ("minimax-m3", minimax_m3(("other", {"a": 1})).replace(f"{NS}</a>", f"{NS}</a>{NS}<a>1{NS}</a>"),
         "every member once, got 'a' twice"),
        ("minicpm", '<function name="ping"><param>1</param></function>',
         'expected <param name=" or </function>'),
        ("minicpm", minicpm("ping", a="<![CDATA[1"), "expected "),
        ("functionary-v3.1", "<function=ping>[1]</function>", "arguments: expected an object"),
        ("apertus", '<|tools_prefix|>[{"ping": 1}]<|tools_suffix|>',
         "arguments: expected an object, got '1'"),
        ("apertus", '<|tools_prefix|>[{"ping": {}, "a": {}}]<|tools_suffix|>', "expected }, got ','"),
        ("cohere", "<|START_ACTION|>[]<|END_ACTION|>", "expected {, got ']'"),
        ("gigachat-v3.1", '<|function_call|>{"arguments": {}}', "expected a name and arguments"),
        ("muse", "to=ping<|message|>{}<|eom|>", "expected <atem:function_calls>, got '{'"),
        ("functionary-v3.2", "ping\n[1]", "arguments: expected an object, got '[1]'"),
    ],
)  # fmt: skip
def test_malformed_calls(name: str, text: str, reason: str) -> None:
    (failed,) = [event for event in events_of(name, [text]) if isinstance(event, CallFailed)]
    assert (
        failed.text == text.removesuffix("[TOOL_CALLS]" if name == "mistral" else "\0") or name == "mistral"
    )
    assert reason in failed.reason
    assert parsed(name, text).calls == []
    assert parsed(name, text).text == ""


def test_what_follows_a_malformed_call_is_read() -> None:
    events = events_of("qwen", [f"One. <tool_call>{{'a'</tool_call> Two. {GOOD}"])
    assert [type(event).__name__ for event in events] == [
        *("TextPart", "CallFailed", "TextPart", "CallStart", "ArgumentsPart", "CallEnd"),
    ]
    assert (events[0], events[2]) == (TextPart("One."), TextPart("Two."))


@pytest.mark.parametrize(
    "broken", ['<tool_call>{"name": "x', '<tool_call>{"name": "x", "arguments": {"a": "']
)
def test_an_open_string_does_not_swallow_the_next_call(broken: str) -> None:
    for text in (f"{broken}</tool_call>", broken):
        assert parsed("qwen", f"{text}{GOOD}") == Parsed(calls=[("ping", {})], failed=[text])


@pytest.mark.parametrize(
    "name, broken, good",
    [
        ("mistral", "[TOOL_CALLS]pi<x>", "[TOOL_CALLS]ping[ARGS]{}"),
        ("functionary-v3.1", "<function=ping>{]</function>", "<function=ping>{}</function>"),
        ("functionary-v3.1", "<function=ping>{}", "<function=ping>{}</function>"),
    ],
)
def test_a_call_without_an_outer_delimiter_does_not_swallow_the_next_one(
    name: str, broken: str, good: str
) -> None:
    assert parsed(name, f"{broken}{good}") == Parsed(calls=[("ping", {})], failed=[broken])


def test_behind_many_calls_that_fail_all_is_text() -> None:
    """Each may have the rest of the message read again, so their number is limited."""
    broken = '<tool_call>{"'
    assert parsed("qwen", broken * 100 + GOOD) == Parsed(broken * 68 + GOOD, failed=[broken] * 32)
    assert parsed("qwen", broken * 31 + GOOD).calls == [("ping", {})]


def test_a_list_keeps_its_sound_calls() -> None:
    for name, sound, rest in (
        ("qwen", '<tool_call>[{"name": "ping"}', ', {"nam": 1}]</tool_call>'),
        ("minimax-m1", '<tool_calls>\n{"name": "ping"}', "\nping\n</tool_calls>"),
        ("qwen", '<tool_call>{"name": "ping"}', "}</tool_call>"),
    ):
        assert parsed(name, sound + rest) == Parsed(calls=[("ping", {})], failed=[rest])


def test_a_call_that_fails_late_says_which_it_was() -> None:
    events = events_of("qwen", ['<tool_call>{"name": "ping", "arguments": {"a": 1 2}}</tool_call>'])
    assert isinstance(events[0], CallStart)
    failed = events[-1]
    assert isinstance(failed, CallFailed)
    assert failed.index == 0
    assert not any(isinstance(event, CallEnd) for event in events)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}', '{"name": "ping"}', '{"name": "stranger", "parameters": {}}',
        '{"a": {"b": 1}}', "{x}", '{"name": ', 'So: {"name": "ping", "parameters": {}}', "```json\n{}\n```",
    ],
)  # fmt: skip
def test_json_that_is_no_call_is_text(text: str) -> None:
    """Where calls have no delimiter, one is the whole message, with arguments and the name of a tool."""
    assert parsed("llama3", text) == Parsed(text)
    assert parsed("llama3", '{"name": "stranger", "parameters": {}}', tools=None).calls == [("stranger", {})]


def test_arguments_of_the_parser() -> None:
    parser = MessageParser(GRAMMARS["qwen"])
    parser.feed("a")
    parser.finish()
    assert parser.finish() == []
    with pytest.raises(ConfigError, match="text: expected none behind the end of the message, got 'b'"):
        parser.feed("b")
    with pytest.raises(ConfigError, match="grammar: expected a ToolCallGrammar, got str"):
        MessageParser("qwen")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"tools\[1\]: expected a function with a name"):
        MessageParser(ToolCallGrammar.Qwen, [*TOOLS[:1], {"function": {}}])
    with pytest.raises(ConfigError, match="in_reasoning: expected False, for qwen has no reasoning"):
        MessageParser(GRAMMARS["qwen"], in_reasoning=True)


@pytest.mark.parametrize("depth, fits", [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_levels_of_json_are_counted(depth: int, fits: bool) -> None:
    source, pieces = IncomingText(), list[str]()
    source.push("[" * depth + "]" * depth)
    parsing = source.json(pieces.append)
    with pytest.raises(StopIteration if fits else MalformedCall):
        next(parsing)
    assert "".join(pieces) == "[" * depth + "]" * (depth if fits else 0)
