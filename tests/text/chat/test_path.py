"""The path of a prompt through the files: few stays, and no step calls a file above it.

A stay is a run of calls in one file. A climb is a call of a file that comes before the caller's in `ORDER`.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oxillama
from oxillama import GenerationOptions, demo
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.prompt import chat_prompt
from oxillama.text.chat.sandbox import Environment

ROOT = str(Path(oxillama.__file__).parent) + "/"

ORDER = (
    "text/chat/prompt.py", "text/chat/messages.py", "text/chat/fitting.py", "text/chat/searching.py",
    "text/chat/rules.py", "text/chat/needs.py", "text/chat/bridge.py", "text/chat/template.py",
    "text/chat/sandbox.py", "text/toolcalls/definitions.py", "text/toolcalls/formats.py",
    "text/toolcalls/tool_grammar.py", "text/toolcalls/openai_form.py", "base/config/option.py",
    "text/tokenizer/tokenizer.py", "text/tokenizer/escapes.py", "text/tokenizer/encoder.py",
    "text/tokenizer/segmenters/byte_pair.py", "text/tokenizer/pretokenizers.py",
)  # fmt: skip
"""The files of the path from the top to the bottom."""

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>"
    "{% endfor %}"
)
PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is 2 times 3?"},
]
CALL = {"id": "call00000", "type": "function", "function": {"name": "times", "arguments": '{"x": 3}'}}
CALLS: list[dict[str, Any]] = [
    *PLAIN,
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00000", "content": [{"type": "text", "text": "6"}]},
]
TIMES = {"name": "times", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}


def file_of(frame: FrameType | None) -> str:
    """The file of a frame of the package, or of its nearest caller in the package; "" for neither."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT):
            return frame.f_code.co_filename.removeprefix(ROOT)
        frame = frame.f_back
    return ""


def calls_of(messages: list[dict[str, Any]], options: GenerationOptions) -> list[tuple[str, str]]:
    """(file of the caller, file of the called) of each call while a prompt is made the second time."""
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    tokenizer.templates["default"] = TEMPLATE
    chat_prompt(tokenizer, messages, options)
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            found.append((file_of(frame.f_back), file_of(frame)))

    gc.collect()  # else the finalizers of other tests' engines may be noted, too
    gc.disable()
    sys.setprofile(note)
    try:
        chat_prompt(tokenizer, messages, options)
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def stays_of(calls: list[tuple[str, str]]) -> list[str]:
    """The files of the path, each as often as the path comes to it."""
    files = [called for _, called in calls]
    return [file for i, file in enumerate(files) if i == 0 or files[i - 1] != file]


@pytest.mark.parametrize(
    ("messages", "options", "most"),
    [(PLAIN, GenerationOptions(), 12), (CALLS, GenerationOptions(tools=[TIMES]), 21)],
    ids=["plain", "calls"],
)
def test_the_path_of_a_prompt_is_short_and_goes_down(
    messages: list[dict[str, Any]], options: GenerationOptions, most: int
) -> None:
    calls = calls_of(messages, options)
    stays = stays_of(calls)
    assert set(stays) <= set(ORDER) and len(stays) <= most, stays
    climbs = [(a, b) for a, b in calls if a in ORDER and ORDER.index(b) < ORDER.index(a)]
    assert not climbs


def test_a_detour_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    render = Environment.rendered

    def rendered(*arguments: Any) -> str:
        TokenizerBridge.from_gguf(demo.STORY).chat_template_source("default")
        return render(*arguments)

    monkeypatch.setattr(Environment, "rendered", rendered)
    calls = calls_of(PLAIN, GenerationOptions())
    assert len(stays_of(calls)) > 12
    assert ("text/chat/template.py", "text/chat/bridge.py") in calls
