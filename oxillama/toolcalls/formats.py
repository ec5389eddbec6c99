"""The table of formats: how models write reasoning and calls, and how a chat template tells which one it is.

Facts: the chat templates of the models named. A format is chosen by marks that a template has because it
writes earlier calls in it, or tells the model how to.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.toolcalls.tool_grammar import GLM_TAGS, ToolCallGrammar, invoke_tags

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


_ROWS = (
    ToolCallGrammar(
        "harmony",
        "harmony",
        ("<|channel|>commentary to=functions.",),
        "<|call|>",
        ("<|channel|>analysis<|message|>", "<|end|>"),
    ),
    ToolCallGrammar(
        "muse",
        "recipients",
        ("<|start|>assistant to=",),
        "",
        ("<|start|>assistant to=self<|message|>", "<|eom|>"),
        headers=(" to=", "<|message|>", "<|eom|>", "user", "self"),
        tags=invoke_tags("atem:"),
        dropped=("<|eot|>",),
    ),
    ToolCallGrammar(
        "functionary-v3.2",
        "recipients",
        (">>>",),
        "",
        headers=("", "\n", "", "all", ""),
        dropped=("<|eot_id|>",),
    ),
    ToolCallGrammar(
        "deepseek-dsml",
        "invoke",
        ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        "",
        THINK,
        tags=invoke_tags("｜DSML｜"),
        typed="string",
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "deepseek",
        "sections",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        "<｜tool▁calls▁end｜>",
        THINK,
        inside=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        fenced=True,
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "kimi",
        "sections",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        "<|tool_calls_section_end|>",
        inside=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        numbered=True,
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "kimi-k3",
        "invoke",
        ("<|open|>tools<|sep|>",),
        "<|close|>tools<|sep|>",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        tags=(
            *('<|open|>call tool="', '<|open|>argument key="'),
            *("<|close|>argument<|sep|>", "<|close|>call<|sep|>", "<|sep|>"),
        ),
        typed="type",
        tight=True,
        framing=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ToolCallGrammar(
        "solar",
        "sections",
        ("<|tool_calls|>", "<|tool_call:begin|>"),
        "",
        ("<|think|>", "<|end|>"),
        inside=("<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>"),
        identified="<|tool_call:name|>",
        framing=("<|begin|>assistant", "<|content|>", "<|end|>"),
        dropped=("<|calls|>",),
    ),
    ToolCallGrammar("minimax", "invoke", ("<minimax:tool_call>",), "", THINK, tags=invoke_tags("")),
    ToolCallGrammar(
        "minimax-m3",
        "elements",
        (f"{_NS}<tool_call>",),
        f"{_NS}</tool_call>",
        ("<mm:think>", "</mm:think>"),
        tags=(_NS,),
        framing=("</mm:think>",),
    ),
    ToolCallGrammar("minimax-m1", "tagged", ("<tool_calls>",), "</tool_calls>", THINK, lines=True),
    ToolCallGrammar(
        "minicpm",
        "invoke",
        ('<function name="',),
        "</function>",
        tags=('<function name="', '<param name="', "</param>", "</function>", ">"),
        tight=True,
        cdata=True,
    ),
    ToolCallGrammar(
        "seed",
        "tagged",
        ("<seed:tool_call>", "<function="),
        "</seed:tool_call>",
        ("<seed:think>", "</seed:think>"),
        tight=True,
    ),
    ToolCallGrammar(
        "hunyuan",
        "keys",
        (f"<tool_calls{_HY}>", f"<tool_call{_HY}>"),
        f"</tool_calls{_HY}>",
        (f"<think{_HY}>", f"</think{_HY}>"),
        inside=(f"<tool_call{_HY}>", f"<tool_sep{_HY}>", f"</tool_call{_HY}>"),
        tags=tuple(f"{tag[:-1]}{_HY}>" for tag in GLM_TAGS),
    ),
    ToolCallGrammar(
        "glm",
        "keys",
        ("<tool_call>",),
        "</tool_call>",
        THINK,
        inside=("<tool_call>", "", "</tool_call>"),
        tags=GLM_TAGS,
    ),
    ToolCallGrammar("qwen-xml", "tagged", ("<tool_call>", "<function="), "</tool_call>", ends_reasoning=True),
    ToolCallGrammar(
        "functionary-v3.1",
        "sections",
        ("<function=",),
        "",
        inside=("<function=", ">", "</function>"),
        dropped=("<|eot_id|>", "<|eom_id|>"),
    ),
    ToolCallGrammar(
        "gemma",
        "dict",
        ("<|tool_call>",),
        "<tool_call|>",
        ("<|channel>thought", "<channel|>"),
        quote='<|"|>',
        reasoning_anywhere=True,
        dropped=("<channel|>", "<|channel>"),
    ),
    ToolCallGrammar(
        "function-gemma", "dict", ("<start_function_call>",), "<end_function_call>", quote="<escape>"
    ),
    ToolCallGrammar("lfm2", "python", ("<|tool_call_start|>",), "<|tool_call_end|>"),
    ToolCallGrammar("granite", "tagged", ("<|tool_call|>",), "", listed=True),
    ToolCallGrammar("nemotron", "tagged", ("<TOOLCALL>",), "</TOOLCALL>", listed=True),
    ToolCallGrammar(
        "apriel",
        "tagged",
        ("<tool_calls>",),
        "</tool_calls>",
        listed=True,
        framing=("[END FINAL RESPONSE]",),
    ),
    ToolCallGrammar(
        "apertus",
        "tagged",
        ("<|tools_prefix|>",),
        "<|tools_suffix|>",
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        members=(),
        listed=True,
    ),
    ToolCallGrammar(
        "cohere",
        "tagged",
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
        members=("tool_call_id", "tool_name", "parameters"),
        listed=True,
        spread=True,
        framing=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ToolCallGrammar(
        "command-r",
        "tagged",
        ("Action:\n```json", "Action: ```json"),
        "```",
        members=("tool_name", "parameters"),
        listed=True,
        spread=True,
    ),
    ToolCallGrammar(
        "gigachat", "tagged", ("<|message_sep|>\n\nfunction call<|role_sep|>\n",), "", single=True
    ),
    ToolCallGrammar("gigachat-v3.1", "tagged", ("<|function_call|>",), "", single=True),
    ToolCallGrammar("firefunction", "tagged", ("functools[",), "", listed=True),
    ToolCallGrammar("mistral", "mistral", ("[TOOL_CALLS]",), ""),
    ToolCallGrammar("qwen", "tagged", ("<tool_call>",), "</tool_call>"),
    ToolCallGrammar(
        "llama3",
        "bare",
        ("<|python_tag|>",),
        "<|eom_id|>",
        members=("name", "parameters"),
        dropped=("<|eot_id|>", "<|eom_id|>"),
    ),
    ToolCallGrammar("none", "none", (), ""),
)
GRAMMARS: dict[str, ToolCallGrammar] = {row.name: row for row in _ROWS}
"""By name."""

_MARKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>"), ()),
    ("muse", ("<atem:function_calls>", "<|eom|>"), ()),
    ("functionary-v3.2", (">>>all", "'>>>' +"), ()),
    ("deepseek-dsml", ("｜DSML｜",), ()),
    ("deepseek", ("<｜tool▁calls▁begin｜>",), ()),
    ("kimi", ("<|tool_calls_section_begin|>",), ()),
    ("kimi-k3", ("<|open|>", "<|close|>", "<|sep|>", "'argument'"), ()),
    ("solar", ("<|tool_call:begin|>", "<|tool_call:args|>"), ()),
    ("minimax", ("<minimax:tool_call>", "<invoke name="), ()),
    ("minimax-m3", (_NS, "<invoke name="), ()),
    ("minicpm", ('<function name="', '<param name="'), ()),
    ("seed", ("<seed:tool_call>",), ()),
    ("hunyuan", ("<arg_key{}>", f"'{_HY}'"), ()),
    ("glm", ("<arg_key>",), ()),
    ("qwen-xml", ("<tool_call>", "<function=", "<parameter="), ()),
    ("functionary-v3.1", ("<function=", "</function>"), ("<parameter=",)),
    ("gemma", ("<|tool_call>",), ()),
    ("function-gemma", ("<start_function_call>",), ()),
    ("lfm2", ("<|tool_", "_start|>"), ("<|tool_call:begin|>",)),
    ("lfm2", ("<|im_start|>", '"List of tools: ["'), ()),
    ("granite", ("<|tool_call|>",), ()),
    ("nemotron", ("<TOOLCALL>", "</TOOLCALL>"), ()),
    ("apriel", ("<tool_calls>[",), ()),
    ("minimax-m1", ('<tool_calls>\\n{"name"',), ()),
    ("apertus", ("<|tools_prefix|>",), ()),
    ("cohere", ("<|START_ACTION|>",), ()),
    ("command-r", ("Action:", "```json", '"tool_name"'), ()),
    ("gigachat-v3.1", ("<|function_call|>", "<|role_sep|>"), ()),
    ("gigachat", ("<|message_sep|>", "<|role_sep|>", "'function call'"), ()),
    ("firefunction", ("functools[",), ()),
    ("mistral", ("[TOOL_CALLS]",), ()),
    ("qwen", ("<tool_call>",), ("<tool_calls>",)),
    ("llama3", ("<|start_header_id|>", '"parameters": dictionary'), ()),
    ("none", (), ()),
)
"""Formats in the order in which a template is asked for them: texts that it has, all of them, and texts of
which it has none."""

ToolCallGrammar.Llama3 = GRAMMARS["llama3"]
ToolCallGrammar.Qwen = replace(GRAMMARS["qwen"], reasoning=THINK)
ToolCallGrammar.Mistral = replace(GRAMMARS["mistral"], reasoning=REASONINGS[1])


def grammar_of_template(source: str) -> ToolCallGrammar:
    """The format that a chat template, Jinja source, writes calls and reasoning in.

    Of a template that writes no calls the format "none", with its reasoning.
    """
    fitting = (row for row in _MARKS if all(mark in source for mark in row[1]))
    row = GRAMMARS[next(name for name, _, unlike in fitting if not any(mark in source for mark in unlike))]
    reasoning = next((pair for pair in REASONINGS if pair[1] in source), None)
    return row if row.reasoning is not None or reasoning is None else replace(row, reasoning=reasoning)
