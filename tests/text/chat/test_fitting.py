"""Conversations of every shape reach the prompt whole, whatever a chat template takes."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine, demo
from oxillama.errors import ChatTemplateError
from oxillama.text.chat import fitting
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.messages import canonical
from oxillama.text.chat.prompt import chat_text, escaped_text
from oxillama.text.chat.rules import PREFERENCE, RULES
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.tokenizer.escapes import ESCAPE, QUOTE
from oxillama.text.tokenizer.vocabulary import USER_DEFINED
from tests.support.family_templates import FAMILIES
from tests.support.fitted import fitted, rule_names
from tests.support.server import serving
from tests.support.tiny_file import CHATML, tiny_vocabulary, write_tiny_model

PUBLISHED = sorted(Path(os.environ.get("OXILLAMA_VOCABS", "nowhere")).glob("templates/*.jinja"))
STORY = TokenizerBridge.from_gguf(demo.STORY)
WORD = re.compile(r"[a-z]+\d+")
TOOLS = [
    {
        "name": "f",
        "description": "d",
        "parameters": {"properties": {"x": {"type": "string", "description": ""}}},
    }
]

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "How is it in Oslo?"}
ANSWER = {"role": "assistant", "content": "It rains."}
ASK2 = {"role": "user", "content": "And tomorrow?"}
CALL = {"id": "toolu_01", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "toolu_01", "content": "Rain."}


def template_of(body: str, check: str = "", calls: str = "") -> ChatTemplate:
    """A template that writes each message; ``body`` writes its content, and ``check`` may refuse it."""
    loop = f"{{% for m in messages %}}{check}[{{{{ m.role }}}}]{body}{calls}[/]{{% endfor %}}"
    return ChatTemplate(loop)


def refusing(condition: str) -> str:
    return f"{{% if {condition} %}}{{{{ raise_exception('refused') }}}}{{% endif %}}"


WRITES = "{{ m.content }}"
EACH = (
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments }})"
    "{% endfor %}"
)
ITEMS = (
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}){% endfor %}"
)
ALTERNATING = refusing("m.role in ('user', 'assistant') and not loop.first and loop.previtem.role == m.role")
NOT_AFTER_TOOL = refusing("m.role == 'user' and not loop.first and loop.previtem.role == 'tool'")
FIRST_SYSTEM = refusing("m.role == 'system' and not loop.first")
NO_SYSTEM = refusing("m.role == 'system'")
NOT_FIRST = refusing("messages[0].role != 'user'")
NINE = "{% for c in m.tool_calls or [] %}" + refusing("c.id | length != 9") + "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "messages", "names", "roles"),
    [
        (template_of(WRITES, calls=EACH), [SYSTEM, ASK, CALLS, RESULT], [], "system user assistant tool"),
        (template_of(WRITES, ALTERNATING), [ASK, ASK], ["joined"], "user"),
        (template_of(WRITES, ALTERNATING), [ASK, ANSWER, ANSWER, ASK], ["joined"], "user assistant user"),
        (template_of(WRITES, FIRST_SYSTEM), [ASK, SYSTEM, ASK], ["system first"], "system user user"),
        (template_of(WRITES, NO_SYSTEM), [SYSTEM, ASK], ["system in user"], "user"),
        (template_of(WRITES, NO_SYSTEM), [SYSTEM], ["system in user"], "user"),
        (template_of(WRITES, NINE, EACH), [ASK, CALLS, RESULT], ["short ids"], "user assistant tool"),
        (
            template_of(WRITES, NOT_AFTER_TOOL, EACH),
            [ASK, CALLS, RESULT, ASK],
            ["turn between"],
            "user assistant tool assistant user",
        ),
        (template_of(WRITES), [ASK, CALLS, RESULT], ["calls in content"], "user assistant tool"),
        (
            template_of(WRITES, refusing("m.role == 'tool'")),
            [ASK, CALLS, RESULT],
            ["calls in content", "results as user"],
            "user assistant user",
        ),
        (
            template_of("{% if m.content is none %}" + EACH + "{% else %}" + WRITES + "{% endif %}"),
            [ASK, CALLS, RESULT],
            ["null content"],
            "user assistant tool",
        ),
        (
            template_of("{% if m.tool_calls %}" + EACH + "{% else %}" + WRITES + "{% endif %}"),
            [ASK, {**CALLS, "content": "I look."}, RESULT],
            ["separate text"],
            "user assistant assistant tool",
        ),
        (template_of("{% for p in m.content %}{{ p.text }}{% endfor %}"), [ASK], ["text parts"], "user"),
        (template_of(WRITES, NOT_FIRST), [ANSWER, ASK], ["user first"], "user assistant user"),
    ],
)  # fmt: skip
def test_the_rule_that_a_template_needs(
    template: ChatTemplate, messages: list[Any], names: list[str], roles: str
) -> None:
    assert rule_names(messages, template) == set(names)
    found = fitted(messages, template)
    assert " ".join(message["role"] for message in found) == roles
    text = fitting.fitted_text(template, canonical(messages, template), None, {})
    for message in messages:
        assert message["content"] in text
    assert ("weather" in text) == any("tool_calls" in message for message in messages)


def test_calls_that_are_cut_off_are_shown_as_they_are() -> None:
    cut = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Os'}}
    for calls, names in ((EACH, set()), (ITEMS, {"object"})):
        template = template_of(WRITES, calls=calls)
        said = [ASK, {**CALLS, "tool_calls": [cut]}, RESULT]
        assert rule_names(said, template) == names
        assert '{"city": "Os' in template.render(fitted(said, template))
    for empty in ("", None, {}, "{}"):
        nothing = {**CALL, "function": {"name": "weather", "arguments": empty}}
        (_, call) = fitted([ASK, {**CALLS, "tool_calls": [nothing]}], template_of(WRITES, calls=ITEMS))
        assert call["tool_calls"][0]["function"]["arguments"] == {}


def test_results_are_in_the_order_of_their_calls() -> None:
    calls = [{**CALL, "id": "a"}, {**CALL, "id": "b"}]
    results = [{"role": "tool", "tool_call_id": id, "content": id} for id in ("b", "a")]
    found = fitted([ASK, {**CALLS, "tool_calls": calls}, *results], template_of(WRITES, calls=EACH))
    assert [message["content"] for message in found[2:]] == ["a", "b"]
    assert [message["name"] for message in found[2:]] == ["weather", "weather"]


def test_a_text_that_no_rule_can_place_is_named() -> None:
    template = template_of("{{ m.content if m.content | length != 8 else '' }}")
    with pytest.raises(
        ChatTemplateError, match=r"^messages\[2\]\.content: the chat template leaves out 'a secret'"
    ):
        fitting.fitted_text(template, [ASK, ANSWER, {**ASK, "content": "a secret"}], None, {})
    shows_last = template_of("{{ m.content if loop.last else '' }}")
    with pytest.warns(
        UserWarning, match=r"^messages\[0\]\.content: the chat template leaves out 'How is it in Oslo"
    ):
        assert fitting.fitted_text(shows_last, [ASK, ANSWER, ASK2], None, {}).count("]It") == 0
    fitting.fitted_text(shows_last, [ASK, ANSWER, ASK2], None, {})  # warns once
    refuses = template_of(WRITES, refusing("m.role == 'user'"))
    with pytest.raises(ChatTemplateError, match="refuses these messages: refused"):
        fitting.fitted_text(refuses, [ASK], None, {})


def test_rules_depend_on_the_kinds_of_messages_alone() -> None:
    turns = [ASK, CALLS, RESULT, ANSWER]
    kinds = [fitting.kind_of(message) for message in turns]
    assert fitting.reduced(kinds * 50) == fitting.reduced(kinds * 3)
    assert len(fitting.reduced(kinds * 50)) <= 2 * len(kinds)
    template = template_of(WRITES, ALTERNATING, EACH)
    assert rule_names([*turns * 40, ASK, ASK], template) == {"joined"}


def test_each_rule_has_its_place() -> None:
    assert set(PREFERENCE) == set(RULES) and len(PREFERENCE) == len(RULES)
    page = (Path(__file__).parents[3] / "docs" / "chat.md").read_text()
    for rule in RULES:
        assert f"| {rule.name} | {rule.text} |" in page


# --- any conversation, any template ------------------------------------------------------------------


class Shapes:
    """Random conversations, whose words and texts are random, too."""

    def __init__(self, seed: int, filler: str = "") -> None:
        self.random = random.Random(seed)
        self.filler = filler

    def words(self) -> str:
        names = ("lime", "kiwi", "fig", "pear", "plum", "oat", "rye", "corn", "dill", "mint")
        chosen = (f"{self.random.choice(names)}{self.random.randrange(10_000)}" for _ in range(3))
        return self.filler.join(("", " ".join(chosen), ""))

    def content(self, empty: float) -> Any:
        if self.random.random() < empty:
            return self.random.choice(["", None, []])
        text = self.words() + self.random.choice(["", '\n\n"quoted" é <b>\n' + self.words()])
        parts = [{"type": "text", "text": text}, {"type": "text", "text": self.words()}]
        return self.random.choice([text, text, parts])

    def id(self) -> str:
        number = self.random.randrange(10**8)
        return self.random.choice([f"call_{number}", f"a{number:08d}", f"toolu_01AbC{number}"])

    def call(self) -> dict[str, Any]:
        plain = {"k": self.words()}
        arguments = self.random.choice([plain, json.dumps(plain), json.dumps(plain)[:-2], "", None, "{}"])
        name = f"f{self.random.randrange(1000)}"
        return {"id": self.id(), "type": "function", "function": {"name": name, "arguments": arguments}}

    def turn(self) -> Iterator[dict[str, Any]]:
        choice = self.random.random()
        if choice < 0.6:
            yield {"role": self.random.choice(["user", "user", "assistant"]), "content": self.content(0.15)}
        elif choice < 0.7:
            yield {"role": self.random.choice(["system", "developer"]), "content": self.content(0.15)}
        else:
            calls = [self.call() for _ in range(self.random.choice([1, 1, 2]))]
            message: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
            if self.random.random() < 0.8:
                message["content"] = self.content(0.5)
            if self.random.random() < 0.3:
                message[self.random.choice(["reasoning", "reasoning_content"])] = self.words()
            yield message
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": self.content(0.1)} for call in calls
            ]
            if self.random.random() < 0.3:
                results.reverse()
            if self.random.random() < 0.9:
                yield from results
        if self.random.random() < 0.2:
            yield {"role": "assistant", "content": self.content(0.15), "tool_calls": []}

    def conversation(self) -> list[dict[str, Any]]:
        first = [{"role": "system", "content": self.content(0)}] if self.random.random() < 0.5 else []
        turns = (self.turn() for _ in range(self.random.randint(1, 6)))
        return [*first, *(message for turn in turns for message in turn)]


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") or ""
        yield from [content] if isinstance(content, str) else [part["text"] for part in content]
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"]
            yield json.dumps(call["function"]["arguments"])


SOURCES = [pytest.param(source, id=name) for name, source in FAMILIES.items()]
SOURCES += [pytest.param(path.read_text(encoding="utf-8"), id=path.stem) for path in PUBLISHED]
"""Templates of all families; published ones, too, where OXILLAMA_VOCABS names their folder."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("source", SOURCES)
def test_every_word_reaches_the_prompt(source: str, seed: int) -> None:
    tokenizer, shapes = TokenizerBridge(STORY.vocab, STORY._encoder, {"default": source}), Shapes(seed)
    for _ in range(4):
        said = shapes.conversation()
        for tools in (None, TOOLS):
            try:
                text = chat_text(tokenizer, said, tools)
            except Exception as error:
                if tools and "expected a chat template that tells the model of them" in str(error):
                    continue
                raise AssertionError(json.dumps(said)) from error
            lost = [word for each in texts_of(said) for word in WORD.findall(each) if word not in text]
            assert not lost, json.dumps(said)


# --- text is never control -------------------------------------------------------------------------------


MARK = re.compile(r"<\|[^|<>{}]*\|>|<｜[^｜<>{}]*｜>|\[/?[A-Z_]+\]|</?[a-z_]+>")
"""What looks like the name of a control token in the source of a template."""


def with_control_tokens(source: str) -> tuple[TokenizerBridge, list[str]]:
    """A byte-level tokenizer in which all marks of a template are control tokens, and their names."""
    tokens, types, merges = tiny_vocabulary()
    names = [*sorted({*MARK.findall(source), "<|im_start|>", "<|im_end|>"} - set(tokens)), "<|im_start|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *names[:-1]],
        "tokenizer.ggml.token_type": np.array([*types, *[3] * (len(names) - 1)], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.chat_template": source,
    }
    return TokenizerBridge.from_metadata(metadata), names


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("source", SOURCES)
def test_names_of_control_tokens_are_text(source: str, seed: int) -> None:
    """The control tokens of a prompt are the same whatever names of such tokens the texts contain."""
    tokenizer, names = with_control_tokens(source)
    if "/think" in source.replace("</think", ""):  # a switch in messages, which changes the prompt
        names = [name for name in names if "think" not in name]
    chooser = random.Random(seed)
    found = []
    for filler in ("", "".join(chooser.choices(names, k=3)), chooser.choice(names)[:-1]):
        shapes = Shapes(seed, filler)
        said = shapes.conversation()
        tools = [
            {"name": "f", "description": shapes.words(), "parameters": {"type": "object", "properties": {}}}
        ]
        template = tokenizer.chat_template()
        text = escaped_text(tokenizer, said, tools if "tools" in template.variables else None)
        ids = tokenizer.encode_rendered(text, escaped=True)
        assert filler in tokenizer.decode(ids, skip_special=False)
        found.append([tokenizer.token_text(id) for id in ids if tokenizer.is_control(id)])
    assert found[0] == found[1] == found[2]


def test_a_name_that_the_template_would_complete_is_text() -> None:
    tokenizer, _ = with_control_tokens("{% for m in messages %}{{ m.content }}|im_start|>{% endfor %}")
    for content, n in (("<", 0), ("a <", 0), ("<|im", 0), ("a", 0)):
        ids = tokenizer.encode_rendered(escaped_text(tokenizer, [{**ASK, "content": content}]), escaped=True)
        assert sum(map(tokenizer.is_control, ids)) == n, content


def test_user_defined_marks_of_turns_are_text_and_marks_of_reasoning_are_not() -> None:
    source = CHATML + "{# <think> </think> #}"
    tokenizer, _ = with_control_tokens(source)
    for name in ("<|im_start|>", "<think>"):
        tokenizer.vocab.types[tokenizer.vocab.tokens.index(name)] = USER_DEFINED
    said = [{**ASK, "content": "<|im_start|>"}, {**ANSWER, "content": "<think>a</think>b"}]
    ids = tokenizer.encode_rendered(escaped_text(tokenizer, said), escaped=True)
    assert [tokenizer.token_text(id) for id in ids].count("<|im_start|>") == 3


def test_control_tokens_in_content_are_an_option(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    said = [{**ASK, "content": "a<|im_end|>b"}]
    with InferenceEngine.from_gguf(path, num_threads=1) as engine:
        end = engine.tokenizer.token_id("<|im_end|>")
        for option, n in (({}, 1), ({"special_in_content": False}, 1), ({"special_in_content": True}, 2)):
            generation = engine.stream_chat(said, max_tokens=1, **option)
            assert generation.prompt_tokens.count(end) == n
            assert (
                engine.tokenizer.decode(generation.prompt_tokens, skip_special=False).count("<|im_end|>") == 2
            )
        with serving(engine) as client:
            counts = []
            for option in ({}, {"special_in_content": True}):
                body = {"messages": said, "max_tokens": 1, **option}
                counts.append(client.ask("/v1/chat/completions", body).json["usage"]["prompt_tokens"])
            path = "/v1/chat/completions/input_tokens"
            lengths = [
                client.ask(path, {"messages": said, **option}).json["input_tokens"]
                for option in ({}, {"special_in_content": True})
            ]
            shown = client.ask("/apply-template", {"messages": said}).json["prompt"]
        assert counts[0] > counts[1] and counts == lengths
        assert "a<|im_end|>b<|im_end|>" in shown


def test_the_escape_itself_is_text() -> None:
    tokenizer, _ = with_control_tokens(CHATML)
    for content in (
        f"a{ESCAPE}b",
        QUOTE,
        f"{ESCAPE * 2}<|im_end|>{ESCAPE}",
        f"<{ESCAPE}|im_end|>{QUOTE}{ESCAPE}",
    ):
        ids = tokenizer.encode_rendered(escaped_text(tokenizer, [{**ASK, "content": content}]), escaped=True)
        assert f"user\n{content}<|im_end|>" in tokenizer.decode(ids, skip_special=False)
        assert chat_text(tokenizer, [{**ASK, "content": content}]).count(content) == 1


def test_what_is_kept_of_a_conversation_is_small_and_tells_variables_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of variables and roles are a client's, of any length; values may begin alike."""
    template, long = template_of("{{ m.content }}"), "x" * 10_000
    searched = []
    monkeypatch.setattr(fitting, "_searched", lambda *given: searched.append(given[-1]))
    for variables in ({"a": long + "1"}, {"a": long + "2"}, {"a": long + "1"}, {long: 1}):
        fitting.rules_for(template, [ASK], None, variables)
    fitting.rules_for(template, [{"role": long, "content": "a"}])
    assert len(searched) == 4
    assert max(len(key) for key in fitting._KEPT[template]) < 100


def test_the_kinds_of_conversations_that_are_kept_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_KEPT", 3)
    template = template_of("{{ m.content }}")
    for i in range(8):
        fitting.rules_for(template, [ASK], None, {"a": i})
        assert len(fitting._KEPT[template]) <= 3
