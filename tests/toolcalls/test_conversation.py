"""Messages as chat templates take them."""

from __future__ import annotations

from typing import Any

import pytest

from oxillama.chat.template import ChatTemplate
from oxillama.toolcalls.conversation import for_template

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
    (found,) = for_template([told], ChatTemplate(source))
    assert found.get("thinking") == thinking
    assert found["reasoning_content"] == "why"
