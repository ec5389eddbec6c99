"""However a message is cut into pieces, its events are the same, and what they hold is what was written."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings, strategies as st

from oxillama.text.toolcalls import ArgumentsPart, MessageParser, TextPart
from tests.support.toolcalls import ALL, LONG, TOKENS, TOOLS, WHOLE, check, events_of, joined, keys

MESSAGES = st.lists(st.one_of(st.sampled_from(TOKENS), st.sampled_from(WHOLE)), max_size=12).map("".join)
CUT = st.lists(st.integers(0, 400), max_size=8)


@st.composite
def of_one_format(draw: st.DrawFn) -> tuple[str, str]:
    """A message of calls of one format, with pieces left out and put in."""
    name = draw(st.sampled_from(sorted(LONG)))
    texts = [text for text, _ in LONG[name]]
    message = "".join(
        draw(st.lists(st.sampled_from([*texts, " ", "So. ", "<think>", "</think>"]), max_size=4))
    )
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(message)))
        length = draw(st.integers(0, 12))
        message = message[:at] + draw(st.sampled_from(["", *TOKENS])) + message[at + length :]
    return name, message


CASES = st.one_of(st.tuples(st.sampled_from(sorted(ALL)), MESSAGES), of_one_format())


@settings(max_examples=400, deadline=None)
@given(CASES, CUT, st.booleans())
def test_every_cut_gives_the_same_events(case: tuple[str, str], cuts: list[int], thinking: bool) -> None:
    name, text = case
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    thinking = thinking and ALL[name].reasoning is not None
    wanted = events_of(ALL[name], [text], in_reasoning=thinking)
    assert events_of(ALL[name], pieces, in_reasoning=thinking) == wanted
    assert events_of(ALL[name], [*text, ""], in_reasoning=thinking) == wanted


@settings(max_examples=150, deadline=None)
@given(CASES, st.integers(0, 200))
def test_what_is_known_early_does_not_depend_on_cuts(case: tuple[str, str], length: int) -> None:
    """After each piece of a message, not only at its end."""
    name, text = case[0], case[1][:length]
    whole, slow = MessageParser(ALL[name], TOOLS), MessageParser(ALL[name], TOOLS)
    assert joined(whole.feed(text)) == joined([event for char in text for event in slow.feed(char)])


@settings(max_examples=300, deadline=None)
@given(CASES)
def test_events_are_in_order_and_whole(case: tuple[str, str]) -> None:
    name, text = case
    check(text, events_of(ALL[name], [text]))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab <>|[]{}\"':,\n", max_size=60), st.sampled_from(sorted(ALL)))
def test_text_without_calls_is_kept_to_the_letter(text: str, name: str) -> None:
    if name == "llama3" and text.lstrip().startswith("{"):
        text = "a" + text
    assert events_of(ALL[name], list(text)) == ([TextPart(text)] if text else [])


def test_broken_arguments_come_up_to_where_they_break() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {"a": ]}}</tool_call>'
    wanted = events_of("qwen", [text])
    assert wanted[1] == ArgumentsPart(0, '{"a": ')
    assert events_of("qwen", list(text)) == wanted


def test_long_arguments_take_time_as_they_are_long() -> None:
    """What was read of a call is not looked at again with each piece."""
    open_string = keys("write", path="").partition("</arg_value>")[0]
    for name, begin in (("qwen", '<tool_call>{"name": "ping", "args": {"a": "'), ("glm", open_string)):
        parser = MessageParser(ALL[name], TOOLS)
        parser.feed(begin)
        for _ in range(100):
            assert len(parser.feed("x" * 50)) == 1
            assert len(parser._source._text) <= 50
