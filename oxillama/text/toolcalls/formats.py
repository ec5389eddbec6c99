"""The table of formats: how models write reasoning and calls, and how a chat template tells which one it is.

Facts: the chat templates of the models named. A format is chosen by marks that a template has because it
writes earlier calls in it, or tells the model how to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from oxillama.base.lazy_import import lazy
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.tool_grammar import FUNCTION, OBJECT, PARAMETER, ToolCallGrammar

if TYPE_CHECKING:
    from oxillama.base.config import GenerationOptions

rules_whole_text: Callable[[Any], bool] = lazy("oxillama.text.grammar.structural_tags:rules_whole_text")

THINK = ("<think>", "</think>")
REASONINGS = (
    THINK,
    ("[THINK]", "[/THINK]"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Of formats that do not have one of their own, by what a template has."""

_HY = ":opensource"
"""What Hunyuan's published models have behind the names of their tags."""
_NS = "]<]minimax[>["
_GLM = "<arg_key>$key</arg_key>~<arg_value>$value</arg_value>~"
_LFM2 = ToolCallGrammar("lfm2", ("$name($keywords)",), ("<|tool_call_start|>",), "<|tool_call_end|>",
    separator=",~", listed=True, marks=("<|tool_", "_start|>", "!<|tool_call:begin|>"))  # fmt: skip
_ROW = '{~"tool_name":~"$name",~"parameters":~$json~}'

# fmt: off
_ROWS = (
    ToolCallGrammar("harmony", ("$json",), (),
        reasoning=("<|channel|>analysis<|message|>", "<|end|>"),
        headers=tuple(f"{head}{kind}<|message|>" for head, kind in product(
            ("<|channel|>commentary to=functions.$name", " to=functions.$name<|channel|>commentary"),
            ("", " json", "<|constrain|>json", " <|constrain|>json"))),
        answers=("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
        turns=("<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        next="<|end|><|start|>assistant", marks=("<|channel|>", "<|message|>")),
    ToolCallGrammar("muse", ('<atem:invoke name="$name">\n$arguments</atem:invoke>',),
        ("<atem:function_calls>",), reasoning=("<|start|>assistant to=self<|message|>", "<|eom|>"),
        argument='<atem:parameter name="$key">$value</atem:parameter>\n',
        headers=(" to=$name<|message|>",), answers=(" to=user<|message|>",),
        turns=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), next="<|eom|><|start|>assistant",
        dropped=("<|eot|>",), marks=("<atem:function_calls>", "<|eom|>")),
    ToolCallGrammar("functionary-v3.2", ("$json",), (), headers=("$name\n",), answers=("all\n",),
        turns=(">>>", "\n", "<|eot_id|>"), next=">>>", dropped=("<|eot_id|>",),
        marks=(">>>all", "'>>>' +")),
    ToolCallGrammar("deepseek-dsml", ('<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>',),
        ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"), reasoning=THINK,
        argument='<｜DSML｜parameter name="$key" string="$string">$value</｜DSML｜parameter>\n',
        also=('<｜DSML｜parameter name="$key">$value</｜DSML｜parameter>\n',), separator="~",
        ends_reasoning=True, marks=("｜DSML｜",)),
    ToolCallGrammar("deepseek",
        ("<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$json<｜tool▁call▁end｜>",
         "<｜tool▁call▁begin｜>$kind<｜tool▁sep｜>$name\n```json\n$json\n```~<｜tool▁call▁end｜>"),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), "<｜tool▁calls▁end｜>", THINK, separator="~",
        ends_reasoning=True, marks=("<｜tool▁calls▁begin｜>",)),
    ToolCallGrammar("kimi",
        ("<|tool_call_begin|>functions.$name:$number<|tool_call_argument_begin|>$json<|tool_call_end|>",),
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), "<|tool_calls_section_end|>",
        also=("<|tool_call_begin|>$name<|tool_call_argument_begin|>$json<|tool_call_end|>",),
        separator="~", ends_reasoning=True, marks=("<|tool_calls_section_begin|>",)),
    ToolCallGrammar("kimi-k3",
        ('<|open|>call tool="$name" index="$number"<|sep|>$arguments<|close|>call<|sep|>',),
        ("<|open|>tools<|sep|>",), "<|close|>tools<|sep|>",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        argument='<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
        also=('<|open|>call tool="$name"<|sep|>$arguments<|close|>call<|sep|>',
              '<|open|>argument key="$key"<|sep|>$value<|close|>argument<|sep|>'),
        separator="~", escaped=True,
        framing=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        marks=("<|open|>", "<|close|>", "<|sep|>", "'argument'")),
    ToolCallGrammar("solar",
        ("<|tool_call:begin|>$code<|tool_call:name|>$name<|tool_call:args|>$json<|tool_call:end|>",),
        ("<|tool_calls|>", "<|tool_call:begin|>"), reasoning=("<|think|>", "<|end|>"),
        also=("<|tool_call:begin|>$name<|tool_call:args|>$json<|tool_call:end|>",), separator="~",
        framing=("<|begin|>assistant", "<|content|>", "<|end|>"), dropped=("<|calls|>",),
        marks=("<|tool_call:begin|>", "<|tool_call:args|>")),
    ToolCallGrammar("minimax", ('<invoke name="$name">\n$arguments</invoke>',), ("<minimax:tool_call>",),
        reasoning=THINK, argument='<parameter name="$key">$value</parameter>\n', separator="~",
        marks=("<minimax:tool_call>", "<invoke name=")),
    ToolCallGrammar("minimax-m3", (f'{_NS}<invoke name="$name">$elements{_NS}</invoke>',),
        (f"{_NS}<tool_call>",), f"{_NS}</tool_call>", ("<mm:think>", "</mm:think>"), separator="~",
        mark=_NS, framing=("</mm:think>",), marks=(_NS, "<invoke name=")),
    ToolCallGrammar("minicpm", ('<function name="$name">$arguments</function>',), ('<function name="',),
        "</function>", argument='<param name="$key">$value</param>', wrapping=("<![CDATA[", "]]>"),
        marks=('<function name="', '<param name="')),
    ToolCallGrammar("seed", (FUNCTION,), ("<seed:tool_call>", "<function="), "</seed:tool_call>",
        ("<seed:think>", "</seed:think>"), argument="<parameter=$key>$value</parameter>\n", also=(OBJECT,),
        marks=("<seed:tool_call>",)),
    ToolCallGrammar("hunyuan", (f"<tool_call{_HY}>$name<tool_sep{_HY}>~$arguments</tool_call{_HY}>",),
        (f"<tool_calls{_HY}>", f"<tool_call{_HY}>"), f"</tool_calls{_HY}>",
        (f"<think{_HY}>", f"</think{_HY}>"), argument=_GLM.replace(">", f"{_HY}>"),
        also=(f"<tool_call{_HY}>$name~$arguments</tool_call{_HY}>",), separator="~",
        marks=("<arg_key{}>", f"'{_HY}'")),
    ToolCallGrammar("glm", ("<tool_call>$name~$arguments</tool_call>",), ("<tool_call>",), "</tool_call>",
        THINK, argument=_GLM, marks=("<arg_key>",)),
    ToolCallGrammar("qwen-xml", (FUNCTION,), ("<tool_call>", "<function="), "</tool_call>",
        argument=PARAMETER, also=(OBJECT,), ends_reasoning=True,
        marks=("<tool_call>", "<function=", "<parameter=")),
    ToolCallGrammar("functionary-v3.1", ("<function=$name>$json</function>",), ("<function=",),
        dropped=("<|eot_id|>", "<|eom_id|>"), marks=("<function=", "</function>", "!<parameter=")),
    ToolCallGrammar("gemma", ("call:$name$members~<tool_call|>",), ("<|tool_call>",), "<tool_call|>",
        ("<|channel>thought", "<channel|>"), quote='<|"|>', reasoning_anywhere=True,
        dropped=("<channel|>", "<|channel>"), marks=("<|tool_call>",)),
    ToolCallGrammar("function-gemma", ("call:$name$members~<end_function_call>",), ("<start_function_call>",),
        "<end_function_call>", quote="<escape>", marks=("<start_function_call>",)),
    _LFM2, replace(_LFM2, marks=("<|im_start|>", '"List of tools: ["')),
    ToolCallGrammar("granite", (OBJECT,), ("<|tool_call|>",), separator=",~", listed=True,
        marks=("<|tool_call|>",)),
    ToolCallGrammar("nemotron", (OBJECT,), ("<TOOLCALL>",), "</TOOLCALL>", separator=",~", listed=True,
        marks=("<TOOLCALL>", "</TOOLCALL>")),
    ToolCallGrammar("apriel", (OBJECT,), ("<tool_calls>",), "</tool_calls>", separator=",~", listed=True,
        framing=("[END FINAL RESPONSE]",), marks=("<tool_calls>[",)),
    ToolCallGrammar("minimax-m1", (OBJECT,), ("<tool_calls>",), "</tool_calls>", THINK, separator="\n",
        marks=('<tool_calls>\\n{"name"',)),
    ToolCallGrammar("apertus", ('{"$name":~$json}',), ("<|tools_prefix|>",), "<|tools_suffix|>",
        ("<|inner_prefix|>", "<|inner_suffix|>"), separator=",~", listed=True,
        marks=("<|tools_prefix|>",)),
    ToolCallGrammar("cohere", (_ROW.replace('"tool_name"', '"tool_call_id":~"$number",~"tool_name"'),),
        ("<|START_ACTION|>",), "<|END_ACTION|>", separator=",~", listed=True, spread=True,
        framing=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        marks=("<|START_ACTION|>",)),
    ToolCallGrammar("command-r", (_ROW,), ("Action:\n```json", "Action: ```json"), "```", separator=",~",
        listed=True, spread=True, marks=("Action:", "```json", '"tool_name"')),
    ToolCallGrammar("gigachat-v3.1", (OBJECT,), ("<|function_call|>",), single=True,
        marks=("<|function_call|>", "<|role_sep|>")),
    ToolCallGrammar("gigachat", (OBJECT,), ("<|message_sep|>\n\nfunction call<|role_sep|>\n",),
        single=True, marks=("<|message_sep|>", "<|role_sep|>", "'function call'")),
    ToolCallGrammar("firefunction", (OBJECT,), ("functools[",), separator=",~", listed=True,
        marks=("functools[",)),
    ToolCallGrammar("mistral",
        ("$name$json", "$name[ARGS]$json", "$name[CALL_ID]$id$json", "$name[CALL_ID]$id[ARGS]$json",
         OBJECT, OBJECT.replace("$json", '$json,~"id":~"$id"')),
        ("[TOOL_CALLS]",), separator=",~", listed=True, marks=("[TOOL_CALLS]",)),
    ToolCallGrammar("qwen", (OBJECT,), ("<tool_call>",), "</tool_call>", argument=PARAMETER,
        also=(FUNCTION,), marks=("<tool_call>", "!<tool_calls>")),
    ToolCallGrammar("llama3", (OBJECT.replace("arguments", "parameters"),), ("<|python_tag|>",),
        "<|eom_id|>", separator=";~", bare=True, dropped=("<|eot_id|>", "<|eom_id|>"),
        marks=("<|start_header_id|>", '"parameters": dictionary')),
    ToolCallGrammar("none", (), ()),
)
# fmt: on
"""In the order in which a template is asked for them."""

GRAMMARS: dict[str, ToolCallGrammar] = {row.name: row for row in _ROWS}
"""By name."""

ToolCallGrammar.Llama3 = GRAMMARS["llama3"]
ToolCallGrammar.Qwen = replace(GRAMMARS["qwen"], reasoning=THINK)
ToolCallGrammar.Mistral = replace(GRAMMARS["mistral"], reasoning=REASONINGS[1])


def grammar_of_template(source: str) -> ToolCallGrammar:
    """The format that a chat template, Jinja source, writes calls and reasoning in.

    Of a template that writes no calls the format "none", with its reasoning.
    """
    found = next(row for row in _ROWS if all((m[0] == "!") != (m.lstrip("!") in source) for m in row.marks))
    row = GRAMMARS[found.name]
    reasoning = next((pair for pair in REASONINGS if pair[1] in source), None)
    return row if row.reasoning is not None or reasoning is None else replace(row, reasoning=reasoning)


WITH_TOOLS = "tool_use"
"""Name of the chat template that some files have for conversations with tools."""


def checked_format(form: ToolCallGrammar) -> ToolCallGrammar:
    """The format of a template for a request with tools. Raises ConfigError if the format has no calls."""
    if not form.has_calls:
        wanted = "a chat template that writes tool calls in a known format, or a message_format"
        raise ConfigError(f"tools: expected {wanted}, got neither")
    return form


# --- texts that a constraint rules ------------------------------------------------------------------


def rules_text(options: GenerationOptions, form: ToolCallGrammar) -> bool:
    """Whether a constraint says what the answer is from the first token on, so that nothing of it is parsed.

    A constraint that writes the end of reasoning itself does not, and no structural tag with free text.
    """
    sampler = options.sampler
    kind = None if sampler is None else sampler.constraint
    if kind is None or (options.tools is not None and options.tool_choice != "none"):
        return False
    value = getattr(sampler, kind)
    if kind == "json_schema" or not (form.reasoning and isinstance(value, (str, tuple, Mapping))):
        return kind != "structural_tag"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if form.reasoning[1] in written.replace("\\", ""):
        return False
    return kind != "structural_tag" or rules_whole_text(value)


def reasons_before(options: GenerationOptions, form: ToolCallGrammar) -> bool:
    """Whether there may be reasoning before a text that a constraint rules: options ask for some."""
    return bool(options.reasoning_budget) and form.reasoning is not None and not form.headers
