"""Messages as chat templates take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oxillama.errors import ConfigError
from oxillama.text.chat.fitting import tool_variables
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.toolcalls import grammar_of_template
from tests.support.fitted import fitted
from tests.support.toolcalls import parsed

CALL = {"id": "a", "type": "function", "function": {"name": "ping", "arguments": {}}}


@pytest.mark.parametrize(
    "source, message, thinking",
    [
        ("{{ messages[0].thinking }}", {"content": ""}, "why"),
        ("{{ messages[0].thinking }}", {"content": "text"}, "why"),
        ("{{ messages[0].thinking }}", {"content": "text", "tool_calls": [CALL]}, "why"),
        ("{{ messages[0].thinking }}", {"content": "text", "thinking": "else"}, "else"),
        ("<|channel|>{{ messages[0].thinking }}", {"content": "text"}, "why"),
        ("<|channel|>{{ messages[0].thinking }}", {"content": "", "tool_calls": [CALL]}, "why"),
        ("<|channel|>{{ messages[0].thinking }}", {"content": "text", "tool_calls": [CALL]}, None),
        ("{{ messages[0].reasoning_content }}", {"content": ""}, None),
    ],
)
def test_templates_that_know_reasoning_by_another_name(
    source: str, message: dict[str, Any], thinking: str | None
) -> None:
    """All but gpt-oss's beside text and a call, of which it takes one."""
    told = {"role": "assistant", "reasoning_content": "why", **message}
    (found,) = fitted([told], ChatTemplate(source))
    assert found.get("thinking") == thinking
    assert found["reasoning_content"] == "why"


# --- templates that take tools, calls and results in their own way -------------------------------------


def call_of(i: int, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{i}", "type": "function", "function": function}


def result_of(i: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{i}", "name": "ping", "content": text}


TOLD = "{% for m in messages %}[{{ m.role }}]{{ m.content }}CALLS{% endfor %}"
EACH = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}{% endfor %}"
FIRST = "{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
ONE = "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}" + FIRST
TWO_CALLS = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "So.",
        "tool_calls": [call_of(0, "ping", {"n": 0}), call_of(1, "ping", {"n": 1})],
    },
    result_of(1, "one"),
    result_of(0, "zero"),
    {"role": "user", "content": "b"},
]


@pytest.mark.parametrize("writes", [FIRST, ONE + "{% endif %}"])
def test_templates_of_one_call_get_a_message_for_each(writes: str) -> None:
    template = ChatTemplate(TOLD.replace("CALLS", writes))
    told = fitted(TWO_CALLS, template)
    assert [message["role"] for message in told] == ["user", *["assistant", "tool"] * 2, "user"]
    assert [len(message.get("tool_calls") or ()) for message in told] == [0, 1, 0, 1, 0, 0]
    assert [message["content"] for message in told] == ["a", "I look.", "zero", "", "one", "b"]
    assert told[1]["reasoning_content"] == "So." and not told[3].get("reasoning_content")
    text = template.render(told)
    assert '{"n": 0}' in text and '{"n": 1}' in text


def test_templates_of_several_calls_get_messages_as_they_are() -> None:
    template = ChatTemplate(TOLD.replace("CALLS", EACH))
    told = fitted(TWO_CALLS, template)
    assert [len(message.get("tool_calls") or ()) for message in told] == [0, 2, 0, 0, 0]


def test_results_without_ids_follow_their_calls_in_order() -> None:
    plain = [{k: v for k, v in m.items() if k != "tool_call_id"} for m in TWO_CALLS]
    told = fitted(plain, ChatTemplate(TOLD.replace("CALLS", FIRST)))
    assert [m["content"] for m in told] == ["a", "I look.", "one", "", "zero", "b"]


def test_calls_that_a_template_leaves_out_are_written_into_the_content() -> None:
    arguments = {"s": 'é"', "l": [1, {"x": True}]}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call_of(0, "ping", arguments)]},
        result_of(0, "b"),
    ]
    for marks in ("<tool_call>", "<|im_start|><|tool_call_start|>", "<TOOLCALL></TOOLCALL>", "functools["):
        template = ChatTemplate(TOLD.replace("CALLS", "") + f"{{# {marks} #}}")
        form = grammar_of_template(template.source)
        told = fitted(messages, template)
        content = told[1]["content"]
        assert content.startswith("I look.\n")
        assert parsed(form, content).calls == [("ping", arguments)], content
        assert template.render(told).count(content) == 1
    for comment in ("{# <arg_key> #}", ""):  # a format of tags, and no format of calls
        content = fitted(messages, ChatTemplate(TOLD.replace("CALLS", "") + comment))[1]["content"]
        assert json.loads(content.removeprefix("I look.\n")) == {"name": "ping", "arguments": arguments}


def test_objects_where_text_is_written_in_another_form() -> None:
    """As Kimi K3's template does, whose model writes objects key by key."""
    keys = "{% for k, v in a.items() %}<arg_key>{{ k }}</arg_key>{{ v | tojson }}{% endfor %}"
    arguments = "{% set a = m.tool_calls[0].function.arguments %}{% if a is string %}{{ a }}{% else %}"
    calls = "{% if m.tool_calls %}" + arguments + keys + "{% endif %}{% endif %}"
    template = ChatTemplate(TOLD.replace("CALLS", calls))
    told = {"role": "assistant", "content": "", "tool_calls": [call_of(0, "f", '{"n": 1}')]}
    found = fitted([*TWO_CALLS[:1], told], template)
    assert found[1]["tool_calls"][0]["function"]["arguments"] == {"n": 1}


def test_messages_in_the_form_before_tools() -> None:
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": {"name": "ping", "arguments": '{"n": 1}'}},
        {"role": "function", "name": "ping", "content": "b"},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    _, call, result, refusal = fitted(said, ChatTemplate(TOLD.replace("CALLS", EACH)))
    assert call["tool_calls"][0]["function"] == {"name": "ping", "arguments": {"n": 1}}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["tool_calls"][0]["id"])
    assert refusal["content"] == "No." and "refusal" not in refusal


def test_reasoning_by_its_third_name() -> None:
    told = {"role": "assistant", "content": "", "reasoning_content": "why"}
    assert fitted([told], ChatTemplate("{{ m.reasoning }}"))[0]["reasoning"] == "why"
    (found,) = fitted([told], ChatTemplate("{{ m.reasoning or m.reasoning_content }}"))
    assert "reasoning" not in found


def test_the_variables_of_tools() -> None:
    tools = [{"type": "function", "function": {"name": "ping", "parameters": {}}}]
    assert tool_variables(ChatTemplate("{{ tools }}"), tools) == {"tools": tools}
    assert tool_variables(ChatTemplate("{% if xml_tools %}{{ xml_tools }}{% endif %}"), tools) == {
        "xml_tools": tools
    }
    found = tool_variables(ChatTemplate("functools[{{ functions + datetime }}"), tools)
    assert json.loads(found["functions"]) == tools and set(found) == {"functions", "datetime"}
    without = tool_variables(ChatTemplate("functools[{{ functions + datetime }}"), None)
    assert without["functions"] == "" and without["datetime"]
    assert tool_variables(ChatTemplate("{{ tools }}"), None) == {}
    for source in ("tools", "{{ functions }}", "functools["):
        with pytest.raises(ConfigError, match="tools: expected a chat template that tells the model of them"):
            tool_variables(ChatTemplate(source), tools)
