"""Limits of chat templates: source, parse tree, input, output, and the deadline of a rendering."""

from __future__ import annotations

import time
from typing import Any

import pytest

from oxillama.errors import ChatTemplateError
from oxillama.text.chat import sandbox, template
from oxillama.text.chat.template import ChatTemplate


def render(source: str, content: str = "Hi there", **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render([{"role": "user", "content": content}], **kwargs)


def forever(body: str) -> str:
    """Loops that only the deadline ends."""
    return "{% for i in range(99999) %}{% for j in range(99999) %}" + body + "{% endfor %}{% endfor %}"


# --------------------------------------------------------------------------- the deadline


@pytest.mark.parametrize(
    "source",
    [
        forever(""),
        forever("{{ i }}"),
        forever("{% set x = 1 %}"),
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% set x %}" + forever("x") + "{% endset %}{{ x }}",
        "{% macro f() %}" + forever("x") + "{% endmacro %}{{ f() | length }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(49) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}" + forever("{% call f() %}{% endcall %}"),
        "{% for x in [[0] * 9999] * 9999 recursive %}{% if x %}{{ loop(x) }}{% endif %}{% endfor %}",
    ],
    ids=lambda value: value[-60:],
)
def test_a_rendering_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template, "MAX_SECONDS", 0.05)
    with pytest.raises(ChatTemplateError, match=r"stopped, it took longer than 0\.05 s"):
        render(source)


def test_a_deadline_is_of_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ChatTemplate("{% for i in range(5) %}{{ i }}{% endfor %}")
    monkeypatch.setattr(template, "MAX_SECONDS", 0.05)
    with pytest.raises(ChatTemplateError, match="stopped"):
        render(forever(""))
    monkeypatch.setattr(template, "MAX_SECONDS", 60)
    time.sleep(0.1)
    assert compiled.render([]) == "01234"


LOOKS_BACK = """
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- set found = namespace(name='tool') %}
        {%- for other in messages %}
            {%- for c in other.tool_calls or [] %}
                {%- if c.id == m.tool_call_id %}{% set found.name = c.function.name %}{% endif %}
            {%- endfor %}
        {%- endfor %}
        {{- found.name + m.content + ';' }}
    {%- else %}
        {%- set later = namespace(answer=false) %}
        {%- for other in messages[loop.index:] if not other.tool_calls %}
            {%- set later.answer = true %}
        {%- endfor %}
        {{- m.role + (m.content or '') + (m.tool_calls | tojson if m.tool_calls else '') }}
    {%- endif %}
{%- endfor %}"""
"""A template that looks for the call of each result, and for what follows each call."""


def test_a_conversation_of_hundreds_of_messages_renders() -> None:
    messages: list[dict[str, Any]] = []
    for i in range(200):
        call = {"id": f"c{i}", "type": "function", "function": {"name": f"f{i}", "arguments": {"line": i}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": str(i)})
    text = ChatTemplate(LOOKS_BACK).render(messages)
    assert "f0" in text and text.endswith("f199199;")


# --------------------------------------------------------------------------- sizes


@pytest.fixture
def small_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_OUTPUT", 5000)


DOUBLE = (
    "{{% set n = namespace(x={start}) %}}{{% for i in range(64) %}}{{% set n.x = {step} %}}{{% endfor %}}"
)
SIZE = "expected a value of size up to"


@pytest.mark.usefixtures("small_output")
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ 'a' * 10**9 }}", SIZE),
        ("{{ 10**9 * [0] }}", SIZE),
        (DOUBLE.format(start="'a'", step="n.x + n.x"), SIZE),
        (DOUBLE.format(start="'a'", step="n.x ~ n.x"), SIZE),
        (DOUBLE.format(start="[1]", step="n.x + n.x"), SIZE),
        (DOUBLE.format(start="'a'", step="[n.x, n.x] | join"), SIZE),
        (DOUBLE.format(start="'a'", step="'{}{}'.format(n.x, n.x)"), SIZE),
        (DOUBLE.format(start="7", step="n.x * n.x"), SIZE),
        ("{% set x %}{{ 'a' * 5000 }}a{% endset %}", SIZE),
        ("{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('a') }}", SIZE),
        ("{{ 2 ** (10 ** 9) }}", SIZE),
        ("{{ 'a' * 5000 }}a", SIZE),
        ("{% for i in range(5001) %}a{% endfor %}", SIZE),
        ("{{ range(10 ** 12) }}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "RecursionError"),
    ],
    ids=lambda value: value[-60:],
)
def test_sizes_are_limited(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        render(source)


@pytest.mark.usefixtures("small_output")
def test_sizes_up_to_the_limit_pass() -> None:
    assert render("{% set x = 'a' * 2500 %}{{ x }}{{ x }}") == "a" * 5000
    assert render("{{ 2 ** 100 * 3 }}{{ 1 ** (10 ** 9) }}{{ 2.0 ** 3 }}") == f"{2**100 * 3}18.0"


def test_loops_know_their_length() -> None:
    source = (
        "{% for x in VALUES %}{{ loop.length }}{{ loop.revindex }}{{ loop.last }} {% else %}none{% endfor %}"
    )
    for values in ("[1, 2]", "'ab'", "range(2)", "{1: 2, 3: 4}", "[1, 2] | map('string')"):
        assert render(source.replace("VALUES", values)) == "22False 21True "
    assert render(source.replace("VALUES", "nothing")) == "none"
    with pytest.raises(ChatTemplateError, match="not iterable"):
        render(source.replace("VALUES", "3"))


# --------------------------------------------------------------------------- compiling

NODES = f"up to {sandbox.MAX_NODES} nodes"
LEVELS = f"up to {sandbox.MAX_DEPTH} levels of syntax"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{1}}" * 40_000, NODES),
        ("{{ [" + "1," * 50_000 + "] }}", NODES),
        ("{{ " + "1" * 5000 + " }}", "cannot be compiled"),
        ("{{ " + "(" * 5000, "cannot be compiled"),
        ("{{ " + "not " * 5000 + "1 }}", "cannot be compiled"),
        ("{% if a %}" * 1000, "cannot be compiled"),
        ("{{ 1" + "+1" * 5000 + " }}", LEVELS),
        ("{{ 1" + "**1" * 3000 + " }}", LEVELS),
        ("{{ a" + ".a" * 3000 + " }}", LEVELS),
        ("x" * (template.MAX_SOURCE + 1), f"up to {template.MAX_SOURCE} characters"),
    ],
    ids=lambda value: value[:40],
)
def test_compiling_is_bounded(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        ChatTemplate(source)


def test_long_templates_are_within_the_limits() -> None:
    ChatTemplate("{% if a.b == 'c' %}{{ a['b'] + (c ~ d) | trim }}{% endif %}" * 1000)
    nested = "{{ " + "(" * 20 + "1" + ")" * 20 + " }}" + "{% if 1 %}" * 19 + "x" + "{% endif %}" * 19
    assert render(nested) == "1x"


def test_constants_are_not_evaluated_while_compiling() -> None:
    ChatTemplate("{% if false %}{{ 'a' * 10**12 }}{{ 2 ** 10**9 }}{{ 'a' | center(10**13) }}{% endif %}")


def test_long_conversations_are_within_the_limits() -> None:
    chatml = "{% for m in messages %}{{ '<|' + m.role + '|>' + m['content'] | trim + '\n' }}{% endfor %}"
    parts = [{"role": "user", "content": "word " * 40_000}] * 20
    assert len(ChatTemplate(chatml).render(parts)) > 3_900_000
    short = [{"role": "user", "content": "a"}] * 20_000
    assert len(ChatTemplate(chatml).render(short)) == 20_000 * len("<|user|>a\n")


# --------------------------------------------------------------------------- input


def test_input_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MAX_INPUT", 5000)
    shared: Any = ["x"]
    for _ in range(40):
        shared = [shared, shared]  # 2**40 elements when copied
    with pytest.raises(ChatTemplateError, match=r"tools.*: expected up to 5000 characters in all, got more"):
        render("", tools=shared)
    with pytest.raises(ChatTemplateError, match=r"messages.*: expected up to 5000 characters in all"):
        render("", content="x" * 5000)


def test_an_element_counts_as_32_characters() -> None:
    copy = template._PlainCopy()
    copy.copy([1, "abc", {"k": None}], "tools")
    assert copy.size == 32 * 5 + 3 + (len("k") + 32)
