"""Limits of chat templates: work, memory, lengths and compiling, all by counts."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from oxillama.chat import budget, guards, operations, template
from oxillama.chat.template import ChatTemplate
from oxillama.errors import ChatTemplateError

USER = {"role": "user", "content": "Hi there"}
SMALL = 1 << 20  # units of work of a rendering in most of these tests


class Account:
    """The budgets of the renderings of a test."""

    def __init__(self) -> None:
        self.budgets: list[budget.Budget] = []

    def open(self, given: int) -> budget.Budget:
        self.budgets.append(budget.Budget(given))
        return self.budgets[-1]

    @property
    def spent(self) -> int:
        """Units of work of the last rendering."""
        last = self.budgets[-1]
        return last.work - last.left


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()
    monkeypatch.setattr(template, "Budget", account.open)
    monkeypatch.setattr(budget, "MAX_WORK", SMALL)
    return account


def render(source: str, content: str = "Hi there", **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render([{"role": "user", "content": content}], **kwargs)


# Loops that end only with the budget
def forever(body: str) -> str:
    return "{% for i in range(99999) %}{% for j in range(99999) %}" + body + "{% endfor %}{% endfor %}"


DOUBLE = (
    "{{% set n = namespace(x={start}) %}}{{% for i in range(64) %}}{{% set n.x = {step} %}}{{% endfor %}}"
)
NEST = DOUBLE.format(start="[1]", step="[n.x, n.x]")
DEEP = "{% set n = namespace(x=(), y=()) %}" + (
    "{% for i in range(500) %}{% set n.x = (n.x,) %}{% set n.y = (n.y,) %}{% endfor %}"
)
LONG = "{% set s = 'a' * 100000 %}{% set l = [1] * 100000 %}"

WORK = "units of work"
LENGTH = "characters in a string"
LEVELS = "128 lists and dicts inside each other"


# --------------------------------------------------------------------------- work


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (forever(""), WORK),
        ("{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}", WORK),
        (forever("x" * 99), WORK),
        ("{% set x %}" + forever("x" * 99) + "{% endset %}{{ x }}", WORK),
        (forever("{% if false %}{% elif j.a %}{% endif %}"), WORK),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(49) }}",
            WORK,
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "50 calls inside each other"),
        ("{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "50 calls inside each other"),
        ("{% macro f() %}{{ caller() }}{% endmacro %}" + forever("{% call f() %}{% endcall %}"), WORK),
        ("{{ 'a' * 10**9 }}", WORK),
        ("{{ [0] * 10**9 }}", WORK),
        (DOUBLE.format(start="'a'", step="n.x + n.x"), WORK),
        (DOUBLE.format(start="'a'", step="n.x ~ n.x"), WORK),
        (DOUBLE.format(start="[1]", step="n.x + n.x"), "elements in a list"),
        (DOUBLE.format(start="'a'", step="n.x | replace('', n.x)"), WORK),
        (DOUBLE.format(start="'a'", step="n.x.replace('a', n.x + 'a')"), WORK),
        (DOUBLE.format(start="'a'", step="[n.x, n.x] | join"), WORK),
        (DOUBLE.format(start="'a'", step="''.join([n.x, n.x])"), WORK),
        (DOUBLE.format(start="'a'", step="'{}{}'.format(n.x, n.x)"), WORK),
        (DOUBLE.format(start="'a'", step="'%s%s' % (n.x, n.x)"), WORK),
        (NEST + "{{ n.x }}", WORK),
        (NEST + "{{ n.x | tojson }}", WORK),
        (NEST + "{{ n.x | string | length }}", WORK),
        (NEST + "{{ n.x == [n.x, n.x] }}", WORK),
        (NEST + "{{ n.x is eq([n.x, n.x]) }}", WORK),
        (NEST + "{{ [n.x] | sort }}", WORK),
        (NEST + "{{ [n.x].index([n.x]) }}", WORK),
        (NEST + "{{ [n.x] in [n.x] }}", WORK),
        (NEST + "{% for x in [1] %}{{ loop.changed(n.x) }}{% endfor %}", WORK),
        (DEEP + "{{ n.x == n.y }}", LEVELS),
        (DEEP + "{{ {}[n.x] }}", LEVELS),  # a hash
        (DEEP + "{{ {n.x: 1} }}", LEVELS),
        (DEEP + "{{ {}.get(n.x) }}", LEVELS),
        (DEEP + "{{ n.x in {} }}", LEVELS),
        (DEEP + "{{ [n.x] | unique }}", LEVELS),
        (DEEP + "{{ n.x }}", LEVELS),
        (LONG + "{{ s.find('a' * 1000 + 'b') }}", WORK),
        (LONG + "{{ s.rfind('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.rindex('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.index('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.count('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.rsplit('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.split('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.rpartition('b' + 'a' * 1000) }}", WORK),
        (LONG + "{{ s.replace('b' + 'a' * 1000, '') }}", WORK),
        (LONG + "{{ s | replace('b' + 'a' * 1000, '') }}", WORK),
        (LONG + "{{ ('b' + 'a' * 1000) in s }}", WORK),
        (LONG + "{{ ('b' + 'a' * 1000) is in s }}", WORK),
        (LONG + "{{ ('b' + 'a' * 1000) not in s }}", WORK),
        (LONG + "{{ s.strip('b' * 1000 ~ 'a') }}", WORK),
        (LONG + "{{ s | trim('b' * 1000 ~ 'a') }}", WORK),
        (LONG + "{{ s.split('a') }}", WORK),
        ("{{ (' a' * 100000).split() }}", WORK),
        ("{{ ('\n' * 100000).splitlines() }}", WORK),
        ("{{ ('\n' * 100000) | indent(999) }}", WORK),
        (LONG + "{{ s | list }}", WORK),
        (LONG + "{{ s | title }}", WORK),
        (LONG + "{{ s | join('b' * 100) }}", WORK),
        (LONG + forever("{{ s == s ~ '' }}"), WORK),
        (LONG + forever("{% set x = s[1:] %}"), WORK),
        (LONG + forever("{% set x = l[1:] %}"), WORK),
        (LONG + forever("{% set x = messages[0]['_' ~ s] %}"), WORK),
        (LONG + forever("{% set x = 'b' in l %}"), WORK),
        (LONG + "{{ l | map(attribute='a.b.c.d') }}", WORK),
        (LONG + "{{ l | map('upper') }}", WORK),
        (LONG + "{{ l | select('odd') }}", WORK),
        (LONG + "{{ l | unique }}", WORK),
        (LONG + "{{ l | sort }}", WORK),
        (LONG + "{{ l | sum }}", WORK),
        (LONG + "{{ l | string }}", WORK),
        (LONG + "{{ l | tojson(indent=16) }}", WORK),
        (LONG + "{{ l | tojson(separators=[s, s]) }}", WORK),
        ("{% macro f() %}{% endmacro %}" + LONG + forever("{% set x = f(*l) %}"), WORK),
        (LONG + forever("{% set x = loop.cycle(*l) %}"), WORK),
        ("{{ range(99999) | list | join('a' * 99) }}", WORK),
        ("{{ range(99999) | groupby('a') }}", WORK),
        (
            "{% set x = [-(10 ** 30)] | map(':tick') | list %}" + forever(""),
            "no filter named ':tick'",
        ),
    ],
    ids=lambda value: value[-60:],
)
def test_work_is_counted(account: Account, source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        render(source)


def test_the_count_is_the_same_every_time(account: Account) -> None:
    source = "{% for i in range(100) %}{{ i ~ 'x' }}{{ messages | tojson }}{% endfor %}"
    counts = set()
    for _ in range(3):
        render(source)
        counts.add(account.spent)
    assert len(counts) == 1


def test_a_search_costs_the_product_of_the_lengths(account: Account) -> None:
    def cost(part: int) -> int:
        render("{% set p = 'b' + 'a' * PART %}{{ s.rfind(p) }}".replace("PART", str(part)), s="a" * 10_000)
        return account.spent

    assert cost(800) - cost(400) > 10_000 * 400 // 20


@pytest.mark.parametrize(
    "operation",
    [
        *(
            "s[1:]",
            "s[::-1]",
            "l[1:]",
            "s == s ~ ''",
            "s ~ 'x'",
            "s | upper",
            "s.strip('b')",
            "s | trim",
            "s is upper",
        ),
        *(
            "l + l",
            "l == l + [] ",
            "l | list",
            "l | reverse",
            "l | sort",
            "l | max",
            "l | sum",
            "l | join",
            "l * 2",
        ),
        *(
            "l | map('abs')",
            "l | select",
            "l | unique",
            "l.count(1)",
            "l.copy()",
            "l.index(1)",
            "2 in l",
            "l | tojson",
        ),
        *(
            "'b' in s",
            "s in {}",
            "s.find('b')",
            "s.split()",
            "s.format()",
            "'{}'.format(s)",
            "'%s' % s",
            "s % ()",
        ),
        *(
            "s | safe",
            "s | e",
            "s | string ~ ''",
            "{s ~ 1: 1}",
            "{}[s ~ 1]",
            "s is filter",
            "s.partition('b')",
        ),
        *(
            "s < s ~ 'a'",
            "l < l + [1]",
            "s.splitlines()",
            "s | indent",
            "s | truncate",
            "s | title",
            "s.replace('b', '')",
        ),
    ],
)
def test_an_operation_on_a_long_value_is_charged(account: Account, operation: str) -> None:
    def spent(size: int) -> int:
        values = "{% set s = 'a' * SIZE %}{% set l = [1] * SIZE %}".replace("SIZE", str(size))
        render(values + "{% set x = " + operation + " %}")
        return account.spent

    made = 3  # units for making the values: a character and an element
    assert spent(1000) - spent(500) >= (made + 1) * 500


def test_each_node_that_runs_is_charged(account: Account) -> None:
    def cost(names: int) -> int:
        render("{% for i in range(100) %}{% set x = [" + "i," * names + "] %}{% endfor %}")
        return account.spent

    assert cost(50) - cost(0) >= 100 * 50 * budget.NODE


# --------------------------------------------------------------------------- what a value may be


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ 1 | round(-1000000000) }}", "round: expected a precision up to 100"),
        ("{{ 1.5 | round(1000000000, 'floor') }}", "round: expected a precision up to 100"),
        ("{{ 'a' | round(8, 'floor') }}", "expected a number, got str"),
        ("{{ '%100000000d' is odd }}", "expected a number, got str"),
        ("{{ '%100000000d' is even }}", "expected a number, got str"),
        ("{{ '%100000000d' is divisibleby(3) }}", "expected a number, got str"),
        ("{{ ([[1]] * 9) | sum(start=[]) }}", "expected a number, got list"),
        ("{{ ('f' * 9999) | int(base=16) }}", "expected a number of up to 1000 characters"),
        ("{{ ('1' * 9999) | float }}", "expected a number of up to 1000 characters"),
        ("{{ ('f' * 40) | int(base=16) }}", "128 bits in an integer"),
        ("{{ 1e300 | int }}", "128 bits in an integer"),
        ("{{ 2 ** 64 * 2 ** 64 }}", "128 bits in an integer"),
        ("{{ 2 ** (10 ** 9) }}", "an integer of at most 128 bits"),
        (DOUBLE.format(start="7", step="n.x * n.x"), "128 bits in an integer"),
        ("{{ (-8.0) ** 0.5 }}", "complex numbers are not available"),
        ("{{ {'a': 1}.keys() - {}.keys() }}", "expected a number"),
        ("{{ '%1000000000d' % 1 }}", "widths up to 999"),
        ("{{ '%*d' % (1000000000, 1) }}", "widths up to 999"),
        ("{{ '%(a)1000d' % {'a': 1} }}", "widths up to 999"),
        ("{{ '%.1000000000f' % 1 }}", "widths up to 999"),
        ("{{ '{:1000000000}'.format(1) }}", "widths up to 999"),
        ("{{ '{:{}}'.format(1, 1000000000) }}", "widths up to 999"),
        ("{{ ('%s' | safe) % '<' }}", "expected a plain string as format"),
        ("{{ 'x' | indent(1000000000, true) }}", "a width up to 999"),
        ("{{ [1] | tojson(indent=1000000000) }}", "an indent from 0 to 16"),
        ("{{ strftime_now('%1000000000d') }}", "without widths"),
        ("{{ [1] | map(attribute='a' * 999) }}", "an attribute of up to 256 characters"),
        ("{{ {2 ** 61: 1} }}", "expected a string or a small integer as key"),
        ("{{ {0.5: 1} }}", "expected a string or a small integer as key"),
        ("{{ dict([[1, 2]]) }}", "expected a dict, got list"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ [1] * 200000 }}", "131[0-9]{3} elements in a list"),
        ("{% for x in namespace() %}{% endfor %}", "expected plain data to loop over, got Namespace"),
        ("{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}", "expected plain data, got Namespace"),
        ("{{ range }}", "expected plain data"),
        ("{{ 'a' < 'b' < 'c' }}", "expected numbers in a chain"),
        ("{{ 'x'.ljust(1000000000) }}", "ljust.*unsafe"),
        ("{{ (1).to_bytes(1000000000, 'big') }}", "to_bytes.*unsafe"),
        ("{{ 'x' | safe | first | attr('a') }}", "attr"),
        ("{{ 'x' | center(1000000000) }}", "center"),
        ("{{ [1] | batch(1000000000, 0) | list }}", "batch"),
        ("{{ ('<!---->' * 9999) | striptags }}", "striptags"),
    ],
    ids=lambda value: value[:60],
)
def test_values_are_bounded(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 2 ** 100 }}", str(2**100)),
        ("{{ 1.25 | round(1) }}{{ 1.21 | round(1, 'ceil') }}", "1.21.3"),
        ("{{ '12' | int + '0x1f' | int(base=16) }}{{ 'x' | int(7) }}", "437"),
        ("{{ 'in 2024: %5.1f%% %s' % (1.25, 'a') }}", "in 2024:   1.2% a"),
        ("{{ '{text}{budget}{0!r:>5}'.format('a', text=1, budget=2) }}", "12  'a'"),
        ("{{ dict({'b': 1}, budget=2) }}{{ namespace(budget=2).budget }}", "{'b': 1, 'budget': 2}2"),
        ("{{ {1: 2, none: 3, true: 4} }}", "{1: 4, None: 3}"),
        ("{{ 1 < 2 < 3 }}{{ 3 > 2 >= 2 }}", "TrueTrue"),
        ("{{ ['b', 'a', 'b'] | unique | sort | join(',') }}", "a,b"),
        ("{{ ('<' | safe) + '<' }}{{ 'a' | safe }}", "<&lt;a"),
        ("{{ [{'a': 1}, {'a': 2}] | sum('a') }}{{ [3, 1] | min }}", "31"),
        ("{{ 'b' in {'b': 1} }}{{ 1 in [1] }}{{ 'x' not in 'abc' }}{{ [] == [1] }}", "TrueTrueTrueFalse"),
        ("{{ ' a  b '.split() }}{{ 'a-b'.rsplit('-', 1) }}{{ 'a\\nb'.splitlines() }}", "['a', 'b']" * 3),
        ("{% for x in 'ab' %}{{ loop.cycle('x', 'y') }}{{ loop.changed(x) }}{% endfor %}", "xTrueyTrue"),
    ],
)
def test_bounded_values_are_as_in_jinja(source: str, expected: str) -> None:
    assert render(source) == expected


# --------------------------------------------------------------------------- compiling

TOKENS = f"up to {guards.MAX_TOKENS} tokens"
NESTED = f"up to {guards.MAX_NESTING} nested statements and expressions"
SYNTAX = f"up to {guards.MAX_DEPTH} levels of syntax"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{1}}" * 40_000, TOKENS),
        ("{% if a %}{% endif %}" * 5000, TOKENS),
        ("{{ [" + "1," * 50_000 + "] }}", TOKENS),
        ("{{ " + "1" * 5000 + " }}", "up to 40 characters in a integer"),
        ("{{ " + "1_1" * 5000 + " }}", "up to 40 characters in a integer"),
        ("{{ 1." + "1" * 5000 + " }}", "up to 40 characters in a float"),
        ("{{ 0x" + "f" * 5000 + " }}", "up to 40 characters in a integer"),
        ("{{ " + "a" * 5000 + " }}", "up to 256 characters in a name"),
        ("{{ " + "(" * 5000, NESTED),
        ("{{ " + "[" * 40 + "]" * 40 + " }}", NESTED),
        ("{{ " + "not " * 5000 + "1 }}", NESTED),
        ("{{ " + "-" * 2000 + "1 }}", NESTED),
        ("{{ " + "1 if 0 else " * 1000 + "1 }}", NESTED),
        ("{% if a %}" * 1000, NESTED),
        ("{% if a %}" * 101 + "{% endif %}" * 101, NESTED),
        ("{{ 1" + "+1" * 5000 + " }}", SYNTAX),
        ("{{ 1" + "**1" * 3000 + " }}", SYNTAX),
        ("{{ 1" + " and 1" * 2000 + " }}", SYNTAX),
        ("{{ 1" + "|abs" * 3000 + " }}", SYNTAX),
        ("{{ a" + ".a" * 3000 + " }}", SYNTAX),
        ("{% block a %}{{ self.a() }}{% endblock %}", "Block is not available"),
        ("{% include 'x' %}", "Include is not available"),
        ("{% import 'x' as x %}", "Import is not available"),
        ("{% extends 'x' %}", "Extends is not available"),
        ("{% autoescape true %}{% endautoescape %}", "is not available"),
        ("x" * (template.MAX_SOURCE + 1), f"up to {template.MAX_SOURCE} characters"),
    ],
    ids=lambda value: value[:40],
)
def test_compiling_is_bounded(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        ChatTemplate(source)


def test_long_templates_are_within_the_limits() -> None:
    ChatTemplate("{% if a.b == 'c' %}{{ a['b'] + (c ~ d) | trim }}{% endif %}" * 250)
    assert (
        render("{{ " + "(" * 20 + "1" + ")" * 20 + " }}" + "{% if 1 %}" * 19 + "x" + "{% endif %}" * 19)
        == "1x"
    )


# --------------------------------------------------------------------------- scaling with the input


def test_work_grows_with_the_input(account: Account) -> None:
    turns = "{% for i in range(" + str(SMALL // 2 // budget.NODE + 2000) + ") %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=WORK):
        render(turns)
    assert render(turns, content="x" * 9999) == ""
    assert account.budgets[1].work - account.budgets[0].work == budget.WORK_PER_INPUT * (9999 - 8)


def test_output_is_limited_and_grows_with_the_input() -> None:
    source = "{% set x = 'x' * 1000000 %}{% for i in range(5) %}{{ x }}{% endfor %}"
    limit = r"stopped, it took more than 419\d{4} characters to write"
    with pytest.raises(ChatTemplateError, match=limit):
        render(source)
    assert len(render(source, content="x" * 120_000)) == 5_000_000


def test_a_string_is_limited_and_grows_with_the_input() -> None:
    source = "{{ ('x' * 5000000) | length }}"
    with pytest.raises(ChatTemplateError, match=LENGTH):
        render(source)
    assert render(source, content="x" * 120_000) == "5000000"


@pytest.mark.parametrize(
    "body", ["{% set x %}{{ s }}{{ s }}{% endset %}", "{{ f() | length }}", "{% set x = s ~ s %}"]
)
def test_a_string_of_a_block_is_limited(body: str) -> None:
    macro = "{% macro f() %}{{ s }}{{ s }}{% endmacro %}"
    with pytest.raises(ChatTemplateError, match=LENGTH):
        render("{% set s = 'x' * 3000000 %}" + macro + body)


def test_a_list_is_limited_and_grows_with_the_input() -> None:
    source = "{{ ([1] * 200000) | length }}"
    with pytest.raises(ChatTemplateError, match="elements in a list"):
        render(source)
    assert render(source, content="x" * 120_000) == "200000"


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


def test_an_element_counts_as_32_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = template._PlainCopy()
    copy.copy([1, "abc", {"k": None}], "tools")
    assert copy.size == 32 * 5 + 3 + (len("k") + 32)


def test_integers_of_the_input_are_bounded() -> None:
    assert render("{{ n }}", n=2**64) == str(2**64)
    with pytest.raises(ChatTemplateError, match=r"n: expected integers of up to 128 bits"):
        render("", n=2**128)


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "body",
    [
        "{% set n.l = [n.l, 'a' * 9999 ~ j] %}",
        "{% set n.l = [n.l, '\U0001f600' * 9999 ~ j] %}",
        "{% set n.l = [n.l, 'a' ~ j, {}, {'a': j}, namespace(), [[]]] %}",
        "{% set n.l = [n.l, ('\u20ac\u20ad' * 99) | list] %}",
        "{% set n.l = [n.l, ('ab ' * 99).split()] %}",
        "{% set n.l = [n.l, {'a': 1, 'b': 2} | items] %}",
        "{% set n.l = [n.l, {'a': 1, 'b': 2}.copy(), j.a, 'a'.upper] %}",
        "{% set n.l = [n.l, range(999) | list] %}",
        "{% set n.l = [n.l, ['\\x00' * 99] | tojson, ['\\x00' * 99] | string] %}",
        "{% set n.l = [n.l, ('<\U0001f600' * 99) | e, ('\u0390' * 99) | upper] %}",
        "{% set n.l = [n.l, '%999d' % j, '{:999}'.format(j)] %}",
        "{% macro f() %}{{ j }}{% endmacro %}{% set n.l = [n.l, f, f()] %}",
    ],
)
def test_memory_is_bounded_by_the_work(account: Account, body: str) -> None:
    compiled = ChatTemplate("{% set n = namespace(l=[]) %}" + forever(body))
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match=WORK):
            compiled.render([USER])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * SMALL


# --------------------------------------------------------------------------- random programs

_VALUES = [
    *("'a' * 3000", "'ab ' * 999", "'\U0001f600\\n' * 500", "[1] * 3000", "['ab'] * 999", "range(9999)", "f"),
    *(
        "-1.5e300",
        "0",
        "none",
        "nothing",
        "{'a': [1] * 99, 'b': 'x' * 999}",
        "messages",
        "'%9d{:9}'",
        "2 ** 100",
    ),
    *(
        "[[1, 2], [3]] * 99",
        "'a' | safe",
        "(1, 'x')",
        "{'k': 1}.items()",
        "namespace(a=1)",
        "loop",
        "3",
        "true",
    ),
]


def _program(choose: random.Random) -> str:
    """A loop over steps that apply an operation of the table to values and to what steps before made."""

    def value() -> str:
        return choose.choice([*_VALUES, "n.x", "n.x", "n.y"])

    def arguments(most: int) -> str:
        return ", ".join(value() for _ in range(choose.randint(0, most)))

    steps = []
    for _ in range(choose.randint(3, 9)):
        name = choose.choice(list(operations.TABLE))
        if name.startswith("|"):
            expression = f"({value()}) {name}({arguments(2)})"
        elif name.startswith("is "):
            test = name[3:]
            expression = f"[{value()}] | select('{test}', {value()}) | list"
            if test.isalpha():
                expression = choose.choice([expression, f"({value()}) is {test}({value()})"])
        elif name.endswith("()"):
            expression = f"{name[:-1]}{arguments(2)})"
            if name == "raise_exception()" and choose.random() < 0.9:
                continue
        elif "." in name:
            owner, attribute = name.split(".")
            owner = "loop" if owner == "loop" else f"({value()})"
            expression = f"{owner}.{attribute}" + choose.choice([f"({arguments(2)})"] * 5 + [""])
        elif name == "[:]":
            expression = f"({value()})[{choose.choice(['1:', '::-1', ':5', '::2'])}]"
        elif name == "[]":
            expression = f"({value()})[{value()}]"
        elif name == "{}":
            expression = f"{{{value()}: {value()}}}"
        else:
            expression = f"({value()}) {name} ({value()})"
        target = choose.choice(["n.x", "n.y"])
        steps.append(f"{{% set {target} = {expression} %}}")
    end = choose.choice(["", "{{ n.x }}", "{{ n.x ~ n.y }}"])
    start = "{% macro f() %}{{ varargs }}{% endmacro %}{% set n = namespace(x='a', y=[1]) %}"
    return start + "{% for i in range(9) %}" + "".join(steps) + end + "{% endfor %}"


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_end_within_the_limits(
    account: Account, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(budget, "MAX_WORK", SMALL // 4)
    choose = random.Random(seed)
    tracemalloc.start()
    try:
        for _ in range(25):
            source = _program(choose)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                assert isinstance(render(source), str)
                assert account.spent <= account.budgets[-1].work
            except ChatTemplateError:
                pass
            account.budgets.clear()
            assert tracemalloc.get_traced_memory()[1] - before < 6 * SMALL // 4, source
    finally:
        tracemalloc.stop()


def test_random_programs_use_the_whole_table() -> None:
    choose = random.Random(0)
    text = "".join(_program(choose) for _ in range(1500))
    parts = [name.strip("()[]{}:").removeprefix("is ").split(".")[-1] for name in operations.TABLE]
    assert [part for part in parts if part not in text] == []
