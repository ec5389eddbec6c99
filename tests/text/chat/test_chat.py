"""Chat templates: rendering as `transformers` does it, and the limits of the sandbox."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS

from oxillama import InferenceEngine
from oxillama.errors import ChatTemplateError
from oxillama.text.chat.template import ChatTemplate
from tests.support.paths import TEMPLATES
from tests.support.tiny_file import write_tiny_model

USER = {"role": "user", "content": "Hi there"}
TALK = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

HEADERS = """{{ bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content ~ '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{{ '\n' }}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

INSTRUCT = """
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content %}
  {%- set rest = messages[1:] %}
{%- else %}
  {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('roles must alternate') }}
  {%- endif %}
  {%- if message.role == 'user' %}
    {{- '[INST] ' }}{% if loop.last and system is defined %}{{ system + '\n\n' }}{% endif %}
    {{- message.content + ' [/INST]' }}
  {%- else %}
    {{- ' ' + message.content + eos_token }}
  {%- endif %}
{%- endfor %}"""


def render(source: str, messages: Any = (USER,), **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>", clock=lambda: datetime(2026, 3, 1)).render(
        list(messages), **kwargs
    )


def test_chatml() -> None:
    assert render(CHATML, [USER]) == "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, [USER], add_generation_prompt=False) == "<|im_start|>user\nHi there<|im_end|>\n"


def test_headers_and_tools() -> None:
    text = render(HEADERS, TALK[:2], add_generation_prompt=False)
    assert text == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
    )
    tools = [{"name": "é", "parameters": {}}]
    assert render(HEADERS, [], tools=tools, add_generation_prompt=False).endswith(
        '[\n  {\n    "name": "é",\n    "parameters": {}\n  }\n]'
    )


def test_instruct_and_its_exception() -> None:
    assert render(INSTRUCT, TALK) == "<s>[INST] Hi there [/INST] Hello.</s>[INST] Be brief.\n\nBye [/INST]"
    with pytest.raises(ChatTemplateError, match="refuses these messages: roles must alternate"):
        render(INSTRUCT, [USER, USER])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi there"}]'),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ messages | map(attribute='role') | tojson(indent=1) }}", '[\n "user"\n]'),
        ("{{ strftime_now('%d %b %Y') }}", "01 Mar 2026"),
        ("{% generation %}x{{ 1 }}{% endgeneration %}", "x1"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ loop.last }}{% endfor %}", "1True"),
        (
            "{% set n = namespace(x=0) %}{% for c in 'abc' %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
            "3",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) ~ f('a') }}", "<1><a>"),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('-') }}",
            "Hi there",
        ),
        (
            "{{ messages[-1].content.split(' ')[0] }}{{ 'a{}b{:>3}'.format(1, 2) }}{{ '%02d' % 7 }}",
            "Hia1b  207",
        ),
        ("{{ messages[0].missing }}|{{ messages[0].missing is defined }}|{{ documents }}", "|False|None"),
        ("{{ enable_thinking }}{{ '<' }}", "True<"),
        (
            "{{ messages[::-1] | length }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ 'ab' * 2 }}{{ [1] + [2] }}",
            "110243abab[1, 2]",
        ),
    ],
)
def test_environment(source: str, expected: str) -> None:
    assert render(source, enable_thinking=True) == expected


def test_all_names_of_jinja_are_there() -> None:
    """Filters, tests and functions of Jinja, except random text."""
    environment = ChatTemplate("")._environment
    assert set(DEFAULT_FILTERS) <= set(environment.filters) and set(DEFAULT_TESTS) <= set(environment.tests)
    assert set(DEFAULT_NAMESPACE) - {"lipsum"} <= set(environment.globals)
    for source, expected in {
        "{{ '<%s>' | format('a') }}{{ 'a b' | wordcount }}{{ 'a' | center(3) }}|": "<a>2 a |",
        "{% for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}": "user1",
        "{% for row in [1, 2, 3] | batch(2) %}{{ row }}{% endfor %}": "[1, 2][3]",
        "{% set j = joiner(', ') %}{% for x in 'ab' %}{{ j() }}{{ x }}{% endfor %}": "a, b",
        "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}": "xyx",
    }.items():
        assert render(source) == expected


def test_an_empty_template_is_no_template(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", chat_template=" \n")
    with InferenceEngine.from_gguf(path, num_threads=1) as engine:
        assert list(engine.tokenizer.templates) == []
        with pytest.raises(ChatTemplateError, match=r"expected one of the file's \(none\), got 'default'"):
            engine.chat([USER])


# --------------------------------------------------------------------------- the sandbox


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
        "{{ '{a.__class__.x}'.format_map({'a': 1}) }}",
    ],
)
def test_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_a_format_has_no_private_attributes() -> None:
    assert render("{{ '<{a.__class__}>'.format_map({'a': 1}) }}") == "<>"


def test_messages_are_not_changed_and_not_shared() -> None:
    class Trap(str):
        def strip(self, *args: Any) -> str:
            raise AssertionError("a method of the caller's object was called")

    messages = [{"role": "user", "content": Trap(" a ")}]
    assert render("{{ messages[0].content.strip() }}", messages) == "a"


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("hello", "messages: expected a list of mappings, got str"),
        (USER, "messages: expected a list of mappings, got dict"),
        (["hello"], r"messages\[0\]: expected a mapping, got str"),
        ([USER, {"content": "x"}], r"messages\[1\]: expected a role, got None"),
        ([{"role": 3, "content": "x"}], "expected a role, got 3"),
        ([{"role": "user"}], "expected content or tool_calls"),
        ([{"role": "user", "content": 3}], "content: expected a string or a list of parts, got int"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\]: expected a mapping with a type"),
        (
            [{"role": "user", "content": "x", "n": object()}],
            r"messages\[0\].n: expected plain data, got object",
        ),
        ([{"role": "user", "content": "x", 3: 4}], "expected strings as keys"),
    ],
)
def test_malformed_messages(messages: Any, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        ChatTemplate(CHATML).render(messages)


def test_nested_data_is_bounded() -> None:
    deep: Any = 1
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="expected at most 64 levels"):
        ChatTemplate(CHATML).render([USER], tools=deep)


def test_content_forms() -> None:
    parts = [{"type": "text", "text": "x"}]
    assert render("{{ messages[0].content[0].text }}", [{"role": "user", "content": parts}]) == "x"
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert render("{{ messages[0].tool_calls[0].name }}", [call]) == "f"


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{% endif %}", "{{ x | nosuchfilter }}", "{% nosuchtag %}"]
)
def test_invalid_source(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        ChatTemplate(source)


def test_failure_inside_a_template_is_told() -> None:
    with pytest.raises(ChatTemplateError, match="ZeroDivisionError"):
        render("{{ 1 // 0 }}")
    with pytest.raises(ChatTemplateError, match="'dict object' has no attribute 'a'"):
        render("{{ messages[0].a.b }}")


@pytest.mark.skipif(not TEMPLATES, reason="templates absent: python tools/fetch_vocabs.py")
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_published_template_renders(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    properties = {"x": {"type": "string", "description": "d"}}
    parameters = {"type": "object", "properties": properties, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    messages = [{"role": "user", "content": "a marked question"}]
    assert "a marked question" in template.render(messages, tools=[tool], functions="[]", datetime="now")


def test_a_template_of_the_configuration_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", chat_template="{{ 'of the file' }}")
    messages = [{"role": "user", "content": "hi"}]
    found = []
    (tmp_path / "given.jinja").write_text("given")
    for template in (None, "chatml", tmp_path / "given.jinja"):
        with InferenceEngine.from_gguf(path, num_threads=1, chat_template=template) as engine:
            found.append(engine.tokenizer.apply_chat_template(messages))
    assert found == ["of the file", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "given"]
