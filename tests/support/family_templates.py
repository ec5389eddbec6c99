"""Small chat templates that write calls as those of some families do, by the name of their format."""

from __future__ import annotations

OURS = (
    "{% if tools %}[{{ tools | tojson }}]{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}ANSWER"
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}PROMPT{% endif %}"
)
EACH = "{% for c in m.tool_calls or [] %}{% set f = c.function %}CALL{% endfor %}"
PAIRS = "{% for k, v in f.arguments.items() %}PAIR{% endfor %}"
SHOWN = "{{ v if v is string else v | tojson }}"
HY = "{% set s = ':opensource' %}"


def of(prompt: str, answer: str, call: str, pair: str = "") -> str:
    """A template: how an answer begins, what it is made of, a call, an argument."""
    calls = EACH.replace("CALL", call.replace("PAIRS", PAIRS.replace("PAIR", pair)))
    source = OURS.replace("ANSWER", answer.replace("CALLS", calls))
    return source.replace("PROMPT", prompt).replace("SHOWN", SHOWN)


def wrapped(open: str, close: str) -> str:
    """Calls between two texts, if there are any."""
    return "{% if m.tool_calls %}" + open + "CALLS" + close + "{% endif %}"


THINK = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
COMMA = "{{ ', ' if not loop.last }}"
NESTED = (
    "{% macro xml(v) %}{% if v is mapping %}"
    "{% for k, w in v.items() %}N<{{ k }}>{{ xml(w) }}N</{{ k }}>{% endfor %}"
    "{% elif v is string %}{{ v }}{% elif v is iterable %}"
    "{% for w in v %}N<item>{{ xml(w) }}N</item>{% endfor %}"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
).replace("N<", "]<]minimax[>[<")
FAMILIES: dict[str, str] = {
    "qwen": of("<bot>", f"<bot>{THINK}{{{{ m.content }}}}CALLS", f"<tool_call>{JSON}</tool_call>"),
    "glm": of("<bot>", f"<bot>{THINK}{{{{ m.content }}}}CALLS", "<tool_call>{{ f.name }}PAIRS</tool_call>",
              "<arg_key>{{ k }}</arg_key><arg_value>SHOWN</arg_value>"),
    "hunyuan": HY + of(
        "<bot>", "<bot>{{ m.content }}" + wrapped("<tool_calls{{ s }}>", "</tool_calls{{ s }}>"),
        "<tool_call{{ s }}>{{ f.name }}<tool_sep{{ s }}>\\nPAIRS</tool_call{{ s }}>\\n",
        "<arg_key{{ s }}>{{ k }}</arg_key{{ s }}>\\n<arg_value{{ s }}>SHOWN</arg_value{{ s }}>\\n",
    ).replace("\\n", "{{ '\\n' }}") + "{# <arg_key{}> #}",
    "kimi-k3": of(
        "<bot>", "<bot><|open|>response<|sep|>{{ m.content }}<|close|>response<|sep|>"
        + wrapped("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>PAIRS<|close|>call<|sep|>',
        "<|open|>{{ 'argument' }} key=\"{{ k }}\" "
        "type=\"{{ 'string' if v is string else 'number' if v is number else 'array' }}\"<|sep|>"
        "SHOWN<|close|>argument<|sep|>",
    ),
    "minimax-m3": NESTED + of(
        "<bot>", "<bot>{{ m.content }}" + wrapped("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"),
        ']<]minimax[>[<invoke name="{{ f.name }}">{{ xml(f.arguments) }}]<]minimax[>[</invoke>\n',
    ),
    "minicpm": of(
        "<bot>", f"<bot>{THINK}{{{{ m.content }}}}CALLS",
        '<function name="{{ f.name }}">PAIRS</function>', '<param name="{{ k }}">SHOWN</param>',
    ),
    "cohere": of(
        "<bot>",
        "<bot>{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}"
        "<|END_THINKING|>{% endif %}"
        "<|START_TEXT|>{{ m.content }}<|END_TEXT|>" + wrapped("<|START_ACTION|>[\n", "]<|END_ACTION|>"),
        '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
        '"parameters": {{ f.arguments | tojson }}}' + COMMA + "\n",
    ),
    "muse": of(
        "<|start|>assistant",
        "{% if m.content %}<|start|>assistant to=user<|message|>{{ m.content }}<|eom|>{% endif %}CALLS",
        "<|start|>assistant to={{ f.name }}<|message|><atem:function_calls>\n"
        '<atem:invoke name="{{ f.name }}">\nPAIRS</atem:invoke>\n</atem:function_calls>'
        "{{ '<|eom|>' if not loop.last }}",
        '<atem:parameter name="{{ k }}">SHOWN</atem:parameter>\n',
    ),
    "functionary-v3.2": of(
        "<bot>>>>", "<bot>{% if m.content %}{{ '>>>all' }}\n{{ m.content }}{% endif %}CALLS",
        "{{ '>>>' + f.name }}\n{{ f.arguments | tojson }}",
    ),
    "apertus": of(
        "<bot>", "<bot>{{ m.content }}" + wrapped("<|tools_prefix|>[", "]<|tools_suffix|>"),
        '{"{{ f.name }}": {{ f.arguments | tojson }}}' + COMMA,
    ),
    "gigachat-v3.1": of(
        "<bot><|role_sep|>", "<bot><|role_sep|>{{ m.content }}{% if m.tool_calls %}<|function_call|>"
        '{"name": "{{ m.tool_calls[0].function.name }}", '
        '"arguments": {{ m.tool_calls[0].function.arguments | tojson }}}{% endif %}', "",
    ),
}  # fmt: skip
