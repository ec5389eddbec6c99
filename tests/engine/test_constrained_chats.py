"""Chats whose answer a schema, choices, a pattern or a grammar rules, with templates that open reasoning."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import Completion, Grammar, InferenceEngine, demo
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from oxillama.text.grammar.structural_tags import rules_whole_text
from oxillama.text.toolcalls import GRAMMARS, grammar_of_template
from tests.support.command_line import output
from tests.support.server import serving
from tests.support.waiting import in_asyncio

PROMPT = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
PROMPT += "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
PROMPT += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
OPENED = PROMPT + "<think>\n{% endif %}"
UNOPENED = PROMPT + "{% endif %}"
ASK = [{"role": "user", "content": "High or low?"}]
TIDE = {"type": "object", "properties": {"tide": {"enum": ["high", "low"]}}, "required": ["tide"]}
TIDE["additionalProperties"] = False
JSON = r'\{"tide": ?"(high|low)"\}'
PART = {"type": "json_schema", "json_schema": TIDE}
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "json_schema": ({"json_schema": TIDE}, JSON),
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TIDE}}},
        JSON,
    ),
    "choices": ({"choices": ["high", "low"]}, "high|low"),
    "regex": ({"regex": "(high|low) tide"}, "(high|low) tide"),
    "grammar": ({"grammar": 'root ::= ("high" | "low") " tide"'}, "(high|low) tide"),
    "lark": ({"grammar": '%llguidance {}\nstart: "high" | "low"'}, "high|low"),
    "compiled grammar": ({"grammar": Grammar.from_regex("high|low")}, "high|low"),
    "structural tag": ({"structural_tag": {"format": PART}}, JSON),
    "structural tag in parts": (
        {
            "response_format": {
                "type": "structural_tag",
                "format": {"type": "sequence", "elements": [{"type": "const_string", "value": "#"}, PART]},
            }
        },
        "#" + JSON,
    ),
}
OPTIONS: dict[str, Any] = {"max_tokens": 60, "temperature": 0}


def story(folder: Path, template: str) -> InferenceEngine:
    """The story model, which never ends its reasoning by itself, with a template."""
    path = folder / "template.jinja"
    path.write_text(template)
    return InferenceEngine.from_gguf(demo.STORY, chat_template=path, num_threads=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    with story(tmp_path_factory.mktemp("opened"), OPENED) as found:
        yield found


@pytest.mark.parametrize("budget", [None, 0, 5])
@pytest.mark.parametrize("way", WAYS)
def test_the_answer_follows_the_constraint(engine: InferenceEngine, way: str, budget: int | None) -> None:
    constraint, pattern = WAYS[way]
    asked = {**constraint, **OPTIONS, "reasoning_budget": budget}
    text = engine.chat(ASK, **asked)
    assert re.fullmatch(pattern, text)
    generation = engine.stream_chat(ASK, **asked)
    assert "".join(generation) == text and generation.finish_reason == "stop"
    assert bool(generation.reasoning) is bool(budget)
    assert engine.chat(ASK, message_format="auto", **asked) == text

    assert in_asyncio(engine, lambda many: many.chat(ASK, **asked)) == text
    if not isinstance(constraint.get("grammar"), Grammar):
        row = json.dumps({"messages": ASK, **asked}).encode()
        answer = json.loads(asyncio.run(Rows(engine, Settings(model_name="x")).line(0, row)))
        assert answer["error"] is None and answer["text"] == text
        assert way != "json_schema" or answer["parsed"] == json.loads(text)


def test_the_prompt_closes_the_reasoning_that_it_opens(engine: InferenceEngine, tmp_path: Path) -> None:
    def prompt(found: InferenceEngine, **options: Any) -> str:
        made = found.stream_chat(ASK, max_tokens=1, **options)
        return found.tokenizer.decode(made.prompt_tokens, skip_special=False)

    free = prompt(engine)
    closed = free + "\n</think>\n\n"
    assert free.endswith("<think>\n") and prompt(engine, json_schema=TIDE) == closed
    assert prompt(engine, json_schema=TIDE, reasoning_budget=0) == closed
    assert prompt(engine, json_schema=TIDE, reasoning_budget=5) == free
    tools: dict[str, Any] = {"tools": [{"name": "f"}], "message_format": GRAMMARS["qwen-xml"]}
    assert prompt(engine, json_schema=TIDE, **tools).endswith(free[-30:])
    assert prompt(engine, json_schema=TIDE, **tools, tool_choice="none").endswith(closed[-30:])
    with story(tmp_path, UNOPENED) as unopened:
        assert prompt(unopened, json_schema=TIDE) == prompt(unopened) == free.removesuffix("<think>\n")


@pytest.mark.parametrize("name", GRAMMARS)
def test_prompts_that_are_continued_to_the_answer(name: str) -> None:
    form = GRAMMARS[name]
    if form.headers:
        begun = f"<a question>{form.next[form.next.index(form.turns[0]) :]}"
        assert form.at_answer(begun) == begun + form.answers[0] and form.at_answer("<a>") == "<a>"
    elif form.reasoning:
        opened = f"<a question>{form.reasoning[0]}\n"
        assert not form.begins_in_reasoning(form.at_answer(opened))
        assert form.at_answer(opened).startswith(opened + "\n" + form.reasoning[1])
    assert form.at_answer("<a question>") == "<a question>"


@pytest.mark.parametrize("budget", [1, 7])
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_that_a_budget_asks_for_comes_first(tmp_path: Path, opened: bool, budget: int) -> None:
    """Opened by the prompt or by the model; then the answer, by the constraint, to its end."""
    with story(tmp_path, OPENED if opened else UNOPENED + "{# <think></think> #}") as engine:
        for seed in range(4):
            asked = {"json_schema": TIDE, "reasoning_budget": budget, "max_tokens": 90, "seed": seed}
            done = engine.stream_chat(ASK, **asked).result()
            assert re.fullmatch(JSON, done.text) and done.finish_reason == "stop"
            assert done.reasoning or not opened or budget == 1
            assert len(engine.tokenizer.encode(f" {done.reasoning}", add_special=False)) <= budget + 1
            batch = [engine.stream_chat(ASK, **asked) for _ in range(3)]
            assert [each.result().tokens for each in batch] == [done.tokens] * 3


def test_a_snapshot_within_reasoning_goes_on(engine: InferenceEngine) -> None:
    asked = {"json_schema": TIDE, "reasoning_budget": 20, "window": 1, **OPTIONS}
    whole = engine.stream_chat(ASK, **asked).result()
    generation = engine.stream_chat(ASK, **asked)
    events = generation.events()
    for _ in range(3):
        next(events)
    resumed = engine.restore(generation.snapshot()).result()
    assert isinstance(resumed, Completion)
    assert (resumed.tokens, resumed.text, resumed.reasoning) == (whole.tokens, whole.text, whole.reasoning)


def test_receipts_of_constrained_chats(engine: InferenceEngine) -> None:
    done = engine.stream_chat(ASK, json_schema=TIDE, receipt=True, stop="never", **OPTIONS).result()
    assert done.receipt is not None and engine.verify(done.receipt)


def test_a_raw_prompt_and_several_samples(engine: InferenceEngine) -> None:
    """A prompt that ends inside reasoning stays as it is; the text is the constraint's."""
    for options in ({"message_format": "glm"}, {"message_format": "auto"}, {}):
        found = engine.generate_n("<think>\n", n=2, json_schema=TIDE, max_tokens=60, seed=1, **options)
        assert all(re.fullmatch(JSON, each.text) and not each.reasoning for each in found)


def test_a_structural_tag_with_free_text_is_parsed(engine: InferenceEngine) -> None:
    tags = [{"begin": "<pet>", "content": {"type": "regex", "pattern": "cat"}, "end": "</pet>"}]
    triggered = {"type": "triggered_tags", "triggers": ["<pet>"], "tags": tags}
    thought = {"type": "sequence", "elements": [{"type": "regex", "pattern": "aaa</think>"}, PART]}
    done = engine.stream_chat(ASK, structural_tag={"format": triggered}, **OPTIONS).result()
    assert done.reasoning and not done.text
    done = engine.stream_chat(ASK, structural_tag={"format": thought}, **OPTIONS).result()
    assert done.reasoning == "aaa" and re.fullmatch(JSON, done.text)
    assert not rules_whole_text({"format": triggered}) and rules_whole_text({"format": thought})
    assert rules_whole_text(json.dumps({"format": PART})) and not rules_whole_text("{")
    assert not rules_whole_text({"structures": [], "triggers": []})
    properties = {"type": {"const": "any_text"}}
    assert rules_whole_text({"format": {"type": "json_schema", "json_schema": {"properties": properties}}})


@pytest.mark.parametrize(
    "constraint",
    [
        {"choices": ["aaa</think>high", "aaa</think>low"]},
        {"regex": r"aaa<\/think>(high|low)"},
        {"grammar": 'root ::= "aaa</think>" ("high" | "low")'},
    ],
)
def test_a_constraint_that_writes_the_end_of_reasoning_is_parsed(
    engine: InferenceEngine, constraint: dict[str, Any]
) -> None:
    done = engine.stream_chat(ASK, **constraint, **OPTIONS).result()
    assert (done.reasoning, done.text in ("high", "low")) == ("aaa", True)


@pytest.mark.parametrize("budget", [(), ("--reasoning-budget", "0"), ("--reasoning-budget", "5")])
def test_on_the_command_line(tmp_path: Path, budget: tuple[str, ...]) -> None:
    (tmp_path / "template.jinja").write_text(OPENED)
    (tmp_path / "schema.json").write_text(json.dumps(TIDE))
    flags = ["--chat-template", tmp_path / "template.jinja", "--json-schema", tmp_path / "schema.json"]
    shown = output("chat", demo.STORY, "-q", "-n", "60", "--greedy", *flags, *budget, stdin=b"High or low?")
    assert re.search(JSON + r"\n$", shown)


@pytest.mark.parametrize("stream", [False, True])
def test_over_http_as_in_python(tmp_path: Path, stream: bool) -> None:
    for more in ({}, {"reasoning_budget": 0}):
        engine = story(tmp_path, OPENED)
        wanted = engine.stream_chat(ASK, json_schema=TIDE, seed=3, max_tokens=60, **more).result()
        with serving(engine) as client:
            body = {"messages": ASK, "json_schema": TIDE, "seed": 3, "max_tokens": 60, "n": 2, **more}
            answer = client.ask("/v1/chat/completions", {**body, "stream": stream})
        if stream:
            parts = [choice for event in answer.events[:-1] for choice in event["choices"]]
            text = "".join(part["delta"].get("content") or "" for part in parts if part["index"] == 0)
            assert not any("reasoning" in part["delta"] for part in parts)
        else:
            text = answer.choice["message"]["content"]
            assert answer.json["usage"]["prompt_tokens"] == wanted.usage.prompt_tokens
        assert text == wanted.text and re.fullmatch(JSON, text)


# --- published templates --------------------------------------------------------------------------
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
TEMPLATES = sorted(
    Path(os.environ.get("OXILLAMA_VOCABS") or _CACHE / "oxillama" / "vocabs").glob("templates/*.jinja")
)


@pytest.mark.filterwarnings("ignore:context_size")
@pytest.mark.skipif(not TEMPLATES, reason="templates absent: python tools/fetch_vocabs.py")
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_schema_with_published_templates(path: Path) -> None:
    """A template that is for tools alone has one, which must not be called."""
    source = path.read_text(encoding="utf-8")
    is_for_tools = "tool_use" in path.stem and "in tools" in source and "if tools" not in source
    tools: dict[str, Any] = {}
    if is_for_tools:
        tools = {"tools": [{"name": "f", "parameters": {"properties": {}}}], "tool_choice": "none"}
    with InferenceEngine.from_gguf(demo.STORY, chat_template=path, context_size=4096) as engine:
        for budget in (None, 0, 3):
            asked = {"json_schema": TIDE, "reasoning_budget": budget, **OPTIONS, **tools}
            done = engine.stream_chat(ASK, **asked).result()
            assert json.loads(done.text)["tide"] in ("high", "low") and done.finish_reason == "stop"
            assert budget or not done.reasoning
    assert grammar_of_template(source).name in GRAMMARS
