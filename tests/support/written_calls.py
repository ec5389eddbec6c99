"""Whether what a chat template writes of calls is read as those calls, and is in its format's grammar."""

from __future__ import annotations

from typing import Any

from oxillama.errors import OxiLlamaError
from oxillama.text.chat.fitting import tool_variables
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.toolcalls import ToolCallGrammar
from tests.support.conversations import ARGUMENTS, ASK, TOOLS, called
from tests.support.fitted import fitted, rule_names
from tests.support.tool_models import grammar_of
from tests.support.toolcalls import parsed

TURNS = {
    "a call": called(("weather", ARGUMENTS)),
    "no arguments": called(("clock", {})),
    "two calls": called(("weather", ARGUMENTS), ("clock", {})),
    "text and a call": called(("weather", ARGUMENTS), text="I look."),
    "reasoning and a call": called(("weather", ARGUMENTS), reasoning="It is May."),
}
"""Turns with calls."""


def shared(one: str, other: str) -> str:
    """What two texts begin with."""
    return one[: next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))]


def turn_of(template: ChatTemplate, form: ToolCallGrammar, message: dict[str, Any]) -> tuple[str, str] | None:
    """A prompt and what a template writes behind it in the place of the answer; None if they do not fit."""
    why = ""
    values = tool_variables(template, TOOLS)
    told = fitted([ASK, message], template)
    prompt = template.render([ASK], **values)
    texts = []
    for behind in ([], [{"role": "user", "content": "Thanks"}]):
        try:
            texts.append(template.render([*told, *behind], add_generation_prompt=False, **values))
        except OxiLlamaError as error:
            why = str(error)
    if not texts:
        return "", f"FAILED: {why}"
    for text in texts:
        begin = shared(prompt, text)
        if begin != prompt:  # prompts may open reasoning that the turn has not
            begin = begin[: max(begin.rfind(">"), begin.rfind("\n")) + 1]
        if len(begin) > len(prompt) - 60:
            return begin, text[len(begin) :].partition("Thanks")[0]
    begins = [texts[0].rfind(open) for open in form.opens if open in texts[0]]
    return ("", texts[0][min(begins) :]) if begins else None


def read_calls(name: str, source: str, form: ToolCallGrammar) -> list[str]:
    """What is wrong with the calls that a template writes."""
    template, wrong = ChatTemplate(source, "<s>", "</s>"), []
    definitions = [tool["function"] for tool in TOOLS]
    for title, message in TURNS.items():
        if "one call each" in rule_names([ASK, message], template):
            continue  # it is given a message for each
        found = turn_of(template, form, message)
        if found is None:
            wrong.append(f"{name}: {title}: (the template does not write it)")
            continue
        prompt, text = found
        in_reasoning = form.begins_in_reasoning(prompt)
        read = parsed(form, text, tools=TOOLS, in_reasoning=in_reasoning)
        wanted = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
        if read.failed or read.calls != wanted:
            wrong.append(f"{name}: {title}: read {read.calls} {read.failed} of {text!r}")
            continue
        grammar = grammar_of(form, "auto", definitions, in_reasoning=in_reasoning)
        ends = [i for i in range(len(text), 0, -1) if grammar.matches(text[:i])]
        last = max((text.rfind(mark) for mark in (form.close, "}") if mark), default=0)
        if not ends or ends[0] < last:
            wrong.append(f"{name}: {title}: its grammar has not {text!r}")
    return wrong
