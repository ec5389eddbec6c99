"""The requests of Codex, as it sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def codex_body(
    model: str, items: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """A turn: https://github.com/openai/codex, codex-rs/codex-api/src/common.rs."""
    return {
        "model": model,
        "instructions": "You are a coding agent.",
        "input": list(items),
        "tools": list(tools),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "client_metadata": {"x-codex-installation-id": "1"},
        **more,
    }
