"""The model provider of inspect-ai."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, demo

pytest.importorskip("inspect_ai", reason="comes with the extra inspect")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of imports of inspect-ai

from inspect_ai.model import (  # noqa: E402
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams  # noqa: E402

from oxillama.apps.evaluation import inspect_provider  # noqa: E402

PAINT = ToolInfo(
    name="paint",
    description="Paints the boat.",
    parameters=ToolParams(properties={"colour": {"enum": ["red", "blue"]}}, required=["colour"]),  # type: ignore[dict-item]
)


def model(**options: Any) -> Model:
    return get_model(f"oxillama/{demo.STORY}", memoize=False, num_threads=1, **options)


def answer(model: Model, *args: Any, **options: Any) -> ModelOutput:
    async def run() -> ModelOutput:
        async with model:
            return await model.generate(*args, **options)

    return asyncio.run(run())


def test_the_answer_is_that_of_the_engine() -> None:
    config = GenerateConfig(temperature=0, max_tokens=12, stop_seqs=["."])
    found = answer(model(), [ChatMessageUser(content="A Goat")], config=config)
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        messages = [{"role": "user", "content": "A Goat"}]
        assert found.completion == engine.chat(messages, temperature=0, max_tokens=12, stop=["."])
    assert found.usage is not None and found.usage.input_tokens > 1
    short = answer(model(), "A Goat", config=GenerateConfig(max_tokens=1, temperature=0))
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 1  # type: ignore[union-attr]


def test_options_that_cannot_be_honoured_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_choices: cannot be honoured"):
        inspect_provider.options_of(GenerateConfig(num_choices=3))
    assert inspect_provider.options_of(GenerateConfig(seed=3, max_connections=2)) == {"seed": 3}


def test_messages_and_tools_are_translated() -> None:
    call = ToolCall(id="7", function="paint", arguments={"colour": "red"})
    assert inspect_provider.plain(ChatMessageAssistant(content="", tool_calls=[call]))["tool_calls"] == [
        {"type": "function", "id": "7", "function": {"name": "paint", "arguments": {"colour": "red"}}}
    ]
    result = ChatMessageTool(content="done", tool_call_id="7", function="paint")
    assert inspect_provider.plain(result) == {
        **{"role": "tool", "content": "done", "tool_call_id": "7", "name": "paint"}
    }
    found = inspect_provider.definition(PAINT)
    assert found["name"] == "paint" and found["parameters"]["required"] == ["colour"]
    assert inspect_provider.choice_of("any") == "required"
