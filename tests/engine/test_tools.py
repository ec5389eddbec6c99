"""Tools in requests: events, choices, chat templates, snapshots, receipts, drafts, and the loop of calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest

from oxillama import AsyncEngine, ConfigError, GenerationOptions, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.text.toolcalls import (
    GRAMMARS,
    ArgumentsPart,
    CallEnd,
    CallStart,
    ReasoningPart,
    TextPart,
    ToolCallGrammar,
    ToolResult,
    arun_tools,
    run_tools,
)
from tests.support.fitted import chat_tokens
from tests.support.spread import each
from tests.support.tool_models import AS_IT_IS, AS_JSON, SCHEMAS, TOOLS, tool_model
from tests.support.waiting import in_asyncio

ASK = [{"role": "user", "content": "hello"}]
ROOM: dict[str, Any] = {
    "name": "room",
    "parameters": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "s": {"enum": ["ab", "c"]}},
        "required": ["n"],
        "additionalProperties": False,
    },
}
ONE: dict[str, Any] = {"tool_choice": "required", "seed": 1, "message_format": "qwen"}
FORMATS = [name for name, form in GRAMMARS.items() if form.has_calls]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    with InferenceEngine(tool_model(tmp_path_factory.mktemp("tools") / "m.gguf")) as made:
        yield made


@pytest.mark.parametrize("name", each(FORMATS, 3))
def test_calls_of_every_format(engine: InferenceEngine, name: str) -> None:
    """Calls are valid, whatever a random model writes, or are cut off, which is said."""
    n_calls = 0
    for choice in ("required", "auto", {"type": "function", "function": {"name": "write"}}):
        for seed in range(4):
            generation = engine.stream(
                "hello", tools=TOOLS, tool_choice=choice, message_format=name, seed=seed, max_tokens=200,
                temperature=1.5, top_k=0,
            )  # fmt: skip
            found = generation.result()
            for call in found.tool_calls:
                jsonschema.validate(call.args, SCHEMAS[call.name])
                assert isinstance(choice, str) or call.name == "write"
            n_calls += len(found.tool_calls)
            if found.finish_reason == "length":
                continue
            assert not found.failed_calls
            assert found.finish_reason == ("tool_calls" if found.tool_calls else "stop")
            assert found.tool_calls or choice == "auto"


def test_events(engine: InferenceEngine) -> None:
    generation = engine.stream_chat(ASK, tools=[ROOM], tool_choice="room", seed=1, message_format="qwen")
    events = list(generation.events())
    (call,) = generation.tool_calls
    assert isinstance(events[0], CallStart) and events[0].name == "room"
    assert "".join(e.text for e in events if isinstance(e, ArgumentsPart)) == call.text
    assert isinstance(events[-1], CallEnd) and events[-1].call == call
    assert generation.finish_reason == "tool_calls" and generation.text == ""
    assert list(generation) == [] and list(generation.events()) == []
    found = generation.result()
    assert found.tool_calls == [call] and found.text == ""
    (told,) = found.message["tool_calls"]
    assert json.loads(told["function"]["arguments"]) == call.args and len(told["id"]) == 9


def test_events_in_asyncio(engine: InferenceEngine) -> None:
    async def run(shared: AsyncEngine) -> None:
        generation = shared.stream_chat(ASK, tools=[ROOM], **ONE)
        events = [event async for event in generation.events()]
        assert any(isinstance(event, CallEnd) for event in events)
        found = await shared.chat(ASK, tools=[ROOM], **ONE)
        assert not isinstance(found, str) and found.tool_calls == generation.tool_calls

    in_asyncio(engine, run)


def test_text_without_a_call_is_that_of_a_request_without_tools() -> None:
    with InferenceEngine(demo.STORY) as engine:
        for seed in range(3):
            plain = engine.stream("Once upon a time", seed=seed, max_tokens=40)
            tools = engine.stream(
                "Once upon a time", seed=seed, max_tokens=40, tools=TOOLS, message_format="qwen"
            )
            assert plain.result().tokens == tools.result().tokens
            assert plain.text == tools.text and tools.tool_calls == []


def test_no_call_is_chosen(engine: InferenceEngine) -> None:
    open = engine.tokenizer.encode("<tool_call>", add_special=False)[0]
    fields: dict[str, Any] = {"logit_bias": {open: 8.0}, "seed": 1, "max_tokens": 60, "temperature": 2.0}
    found = engine.chat(ASK, tools=TOOLS, tool_choice="none", **fields)
    assert found.tool_calls == [] and found.failed_calls == [] and "<tool_call>" not in found.text


def test_what_looks_like_a_call_is_text_where_there_are_none(engine: InferenceEngine) -> None:
    text = '{"name": "room", "parameters": {"n": 1}}'
    for choice, kind in (("none", TextPart), ("auto", CallStart)):
        options = GenerationOptions(tools=[ROOM], tool_choice=choice, message_format="llama3")
        reading = engine.model.feature("parsers").new(options, [1])
        assert reading is not None and reading.grammar is not None and reading.grammar.matches(text)
        parser = reading.parser()
        assert isinstance((parser.feed(text) + parser.finish())[0], kind)


def test_reasoning(engine: InferenceEngine) -> None:
    """A template that writes reasoning has it told apart; so does a prompt that opens it."""
    close = "</think>"
    generation = engine.stream(
        "<think>\n", message_format=ToolCallGrammar.Qwen, choices=(f"So.{close}\n\nYes.",)
    )
    events = list(generation.events())
    assert [e.text for e in events if isinstance(e, ReasoningPart)] and generation.reasoning == "So."
    assert "".join(e.text for e in events if isinstance(e, TextPart)) == "Yes." == generation.text
    assert generation.result().message["reasoning_content"] == "So."
    assert engine.chat(ASK, choices=(f"<think>So.{close}Yes.",)) == "Yes."
    assert (
        engine.chat(ASK, choices=(f"<think>So.{close}Yes.",), message_format="none")
        == f"<think>So.{close}Yes."
    )
    assert engine.generate("a", choices=(f"<think>So.{close}Yes.",)) == f"<think>So.{close}Yes."


def test_special_tokens_of_the_format(engine: InferenceEngine) -> None:
    """The special tokens open and close calls, and the shown text does not contain them."""
    form = ToolCallGrammar.Custom("<|im_start|>call", "<|begin|>")
    found = engine.stream("a", tools=[ROOM], tool_choice="required", message_format=form, seed=2).result()
    assert found.tool_calls and found.text == "" and not found.failed_calls
    special = engine.tokenizer.token_id("<|im_start|>")
    seen = set()
    for seed in range(8):
        again = engine.stream(
            "a",
            tools=[ROOM],
            tool_choice="required",
            message_format=form,
            seed=seed,
            logit_bias={special: 9.0},
        ).result()
        seen.add(special in again.tokens)
        assert again.tool_calls or again.finish_reason == "length"
    assert True in seen


def test_stop_strings_and_lengths_cut_calls(engine: InferenceEngine) -> None:
    found = engine.stream("a", tools=[ROOM], max_tokens=25, **ONE).result()
    assert (found.finish_reason, found.tool_calls, len(found.failed_calls)) == ("length", [], 1)
    found = engine.stream("a", tools=[ROOM], stop="arguments", **ONE).result()
    assert (found.finish_reason, found.tool_calls, len(found.failed_calls)) == ("stop", [], 1)


@pytest.mark.parametrize("speculate", ["off", "lookup"])
def test_the_same_in_batches_with_drafts_and_from_a_snapshot(engine: InferenceEngine, speculate: str) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "seed": 5, "max_tokens": 150}
    alone = engine.stream("hello hello hello", **fields).result()
    together = [engine.stream("hello hello hello", speculate=speculate, **fields) for _ in range(3)]
    assert all(generation.result().tokens == alone.tokens for generation in together)
    cut = engine.stream("hello hello hello", speculate=speculate, window=1, **fields)
    before = [next(events) for events in [cut.events()] for _ in range(3)]
    rest = engine.resume_generation(cut.snapshot())
    cut.close()
    whole = rest.result()
    assert before and whole.tokens == alone.tokens and whole.tool_calls == alone.tool_calls
    assert whole.text == alone.text and whole.failed_calls == alone.failed_calls


def test_receipts(engine: InferenceEngine) -> None:
    found = engine.stream("a", tools=[ROOM], tool_choice="required", seed=1, receipt=True).result()
    assert found.receipt is not None and engine.verify(found.receipt)
    form = ToolCallGrammar.Custom("<|im_start|>", "<|begin|>")
    with pytest.raises(ConfigError, match="receipt: cannot be combined with stop strings"):
        engine.stream("a", tools=[ROOM], message_format=form, receipt=True, stop="x")


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"tools": "x"}, "tools: expected a list of tools"),
        ({"tools": [3]}, r"tools\[0\]: expected a function, a class or a JSON definition, got 3"),
        ({"tools": [{"name": "a b"}]}, r"tools\[0\]: name: expected 1 to 128"),
        ({"tools": [ROOM, ROOM]}, r"tools\[1\]: expected a name of its own, got room again"),
        ({"tools": [ROOM], "tool_choice": "rom"}, "tool_choice: expected one of auto, none, required, room"),
        ({"tool_choice": "required"}, "tool_choice: expected tools, got none"),
        ({"tools": [ROOM], "regex": "a"}, "tools: cannot be combined with regex"),
        ({"message_format": "qwn"}, "message_format: expected auto, a ToolCallGrammar, or one of harmony"),
        ({"tools": [ROOM], "parallel_tool_calls": 1}, "parallel_tool_calls: expected True or False"),
        ({"message_format": {"calls": ["x"]}}, r"calls: expected one of \$json"),
    ],
)
def test_wrong_options(engine: InferenceEngine, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        engine.stream_chat(ASK, **fields)


def test_generate_does_not_lose_calls(engine: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match=r"tools: expected stream\(...\).result\(\), which has the calls"):
        engine.generate("a", tools=[ROOM], **ONE)


def test_templates_that_cannot_tell_of_tools(tmp_path: Path) -> None:
    plain = tool_model(tmp_path / "a.gguf", "{{ messages[0].content }}")
    with InferenceEngine(plain) as engine:
        with pytest.raises(ConfigError, match="tools: expected a chat template that tells the model"):
            engine.stream_chat(ASK, tools=[ROOM])
        with pytest.raises(ConfigError, match="tools: expected a chat template that writes tool calls"):
            engine.stream("a", tools=[ROOM])
    with InferenceEngine(tool_model(tmp_path / "b.gguf", "{{ tools }}{{ messages[0].content }}")) as engine:
        with pytest.raises(ConfigError, match="tools: expected a chat template that writes tool calls"):
            engine.stream_chat(ASK, tools=[ROOM])
        found = engine.chat(ASK, tools=[ROOM], message_format="qwen", tool_choice="required", seed=1)
        assert found.tool_calls


Digit = Annotated[int, {"minimum": 0, "maximum": 9}]


def room(n: Digit, s: Literal["ab", "c"] = "c") -> dict[str, Any]:
    """Counts rooms."""
    return {"n": n, "s": s}


FEW: dict[str, Any] = {"max_tokens": 100, "parallel_tool_calls": False, "message_format": "qwen"}


def test_the_loop(engine: InferenceEngine) -> None:
    seen: list[Any] = []
    run = run_tools(
        engine, ASK, [room], tool_choice="required", max_steps=2, seed=3, progress=seen.append, **FEW
    )
    answer, result = run.messages[1:3]
    (call,) = answer["tool_calls"]
    assert call["id"] == result["tool_call_id"] == "call00000" and result["role"] == "tool"
    assert json.loads(result["content"])["n"] == json.loads(call["function"]["arguments"])["n"]
    assert len(run.completions) == 2 and run.finish_reason in ("stop", "length", "steps")
    assert [item for item in seen if item in run.results] == run.results
    assert run.messages[-1]["content"] == run.text
    once = run_tools(engine, ASK, [room], tool_choice="required", max_steps=1, seed=3, **FEW)
    assert once.finish_reason == "steps" and once.messages == run.messages[:3]


def test_the_loop_in_asyncio(engine: InferenceEngine) -> None:
    async def aroom(n: Digit, s: Literal["ab", "c"] = "c") -> str:
        await asyncio.sleep(0)
        return f"{n}{s}"

    async def run(shared: AsyncEngine) -> None:
        tools = [room, aroom]
        for choice in ("room", "aroom"):
            found = await arun_tools(shared, ASK, tools, tool_choice=choice, max_steps=1, seed=3, **FEW)
            assert [told.result.error for told in found.results] == [None]

    in_asyncio(engine, run)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_next_prompt_goes_on_as_the_turn_did(tmp_path: Path, as_json: bool) -> None:
    """Its pages are used again, unless the template writes the arguments in another way than the model."""
    text = '\n<tool_call>\n{"name": "room", "arguments": {"n":3}}\n</tool_call>'
    told = {"id": "call00000", "type": "function", "function": {"name": "room", "arguments": '{"n":3}'}}
    turn = [
        {"role": "assistant", "content": "", "tool_calls": [told]},
        {"role": "tool", "tool_call_id": "call00000", "content": "3"},
    ]
    with InferenceEngine(tool_model(tmp_path / "m.gguf", AS_JSON if as_json else AS_IT_IS)) as engine:
        tokens = chat_tokens(engine.tokenizer, ASK) + engine.tokenizer.encode(text, add_special=False)
        engine.generate(tokens, max_tokens=1)
        again = engine.stream_chat([*ASK, *turn], max_tokens=1)
        again.result()
        assert (again.prompt_tokens[: len(tokens)] == tokens) != as_json
        n_pages = again.usage.cached_tokens // 16
        assert (n_pages == len(tokens) // 16) != as_json


def test_results_of_failures(engine: InferenceEngine) -> None:
    class Broken:
        def dispatch(self, call: Any) -> Any:
            raise KeyError("no such room")

    class Odd:
        def dispatch(self, call: Any) -> Any:
            return {"no": "result"}

    class Unwritable:
        def dispatch(self, call: Any) -> Any:
            return ToolResult(object())

    fields: dict[str, Any] = {"tool_choice": "required", "max_steps": 1, "seed": 3, **FEW}
    for dispatcher, reason in (
        (Broken(), "no such room"),
        (Odd(), "a ToolResult"),
        (Unwritable(), "JSON can"),
    ):
        run = run_tools(engine, ASK, [ROOM], dispatcher, **fields)
        assert run.messages[-1]["content"].startswith("Error: ") and reason in run.messages[-1]["content"]
    with pytest.raises(ConfigError, match=r"tools\[0\]: expected a function, got dict"):
        run_tools(engine, ASK, [ROOM])
    with pytest.raises(ConfigError, match="max_steps: expected an integer >= 1"):
        run_tools(engine, ASK, [room], max_steps=0)
