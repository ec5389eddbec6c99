"""What chat templates write of calls is read as those calls.

tools/compare_templates.py tries published templates.
"""

from __future__ import annotations

import pytest

from oxillama.text.chat.fitting import tool_variables
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.toolcalls import GRAMMARS, grammar_of_template
from tests.support.conversations import ASK, CONVERSATIONS, called
from tests.support.family_templates import FAMILIES
from tests.support.fitted import fitted, rule_names
from tests.support.written_calls import read_calls


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_that_templates_write(name: str) -> None:
    source = FAMILIES[name]
    form = grammar_of_template(source)
    assert form.name == name
    assert read_calls(name, source, form) == []


def test_what_is_read_wrongly_is_told() -> None:
    (first, *_) = read_calls("x", FAMILIES["qwen"], GRAMMARS["nemotron"])
    assert "x: a call: read []" in first
    found = read_calls("x", FAMILIES["glm"].replace("</arg_value>", "</arg_value>\t"), GRAMMARS["glm"])
    assert found and all("its grammar has not" in line for line in found)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_conversation_is_written(name: str) -> None:
    """The text has each call and each result once."""
    template = ChatTemplate(FAMILIES[name])
    for title, given in CONVERSATIONS.items():
        messages = fitted(given["messages"], template)
        tools = given.get("tools")
        values = {} if tools is None else tool_variables(template, tools)
        text = template.render(messages, **values)
        for message in given["messages"]:
            for call in message.get("tool_calls") or ():
                assert call["function"]["name"] in text.partition("<user>")[2], title
            if message["role"] == "tool":
                assert message["content"] in text, title


def test_texts_of_templates() -> None:
    told = [ASK, called(("clock", {}), ("clock", {}), text="I look.")]
    texts = {}
    for name in ("cohere", "functionary-v3.2", "gigachat-v3.1", "muse"):
        template = ChatTemplate(FAMILIES[name])
        text = template.render(fitted(told, template), add_generation_prompt=False)
        texts[name] = text.partition("weather?")[2]
        assert ("one call each" in rule_names(told, template)) == (name == "gigachat-v3.1")
    assert texts["functionary-v3.2"] == "<bot>>>>all\nI look.>>>clock\n{}>>>clock\n{}"
    call = '<|function_call|>{"name": "clock", "arguments": {}}'
    assert texts["gigachat-v3.1"] == f"<bot><|role_sep|>I look.{call}<bot><|role_sep|>{call}"
    begin = "<bot><|START_TEXT|>I look.<|END_TEXT|><|START_ACTION|>[\n"
    assert texts["cohere"].startswith(f'{begin}    {{"tool_call_id": "0", "tool_name": "clock"')
    assert texts["muse"].count("<|eom|><|start|>assistant to=clock<|message|>") == 2
