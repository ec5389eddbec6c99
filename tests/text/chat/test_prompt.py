"""What becomes of a conversation: one prompt and one set of options, whoever asks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, GenerationOptions, InferenceEngine, SamplerConfig
from oxillama.text.chat.needs import needs_of
from oxillama.text.chat.prompt import chat_prompt, chat_text
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.toolcalls import ToolCallGrammar
from tests.support.fitted import fitted
from tests.support.server import serving
from tests.support.tiny_file import CHATML, write_tiny_model

STRINGS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
FIRST_PART = PARTS.replace("in m.content %}{{", "in m.content[:1] %}{{")
ONLY_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
)
AS_IT_IS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
AS_JSON = "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"

HELLO = [{"type": "text", "text": "hello"}, {"type": "input_text", "text": "world"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
OPTIONS = GenerationOptions(sampler=SamplerConfig.greedy(), max_tokens=1)


def engine_of(folder: Path, template: str) -> InferenceEngine:
    return InferenceEngine.from_gguf(
        write_tiny_model(folder / "tiny.gguf", chat_template=template), num_threads=1
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (STRINGS, "hello\nworld"),
        (AS_IT_IS, "hello\nworld"),
        (AS_JSON, '"hello\\nworld"'),
        (FIRST_PART, "hello\nworld"),
        (PARTS, "helloworld"),
        (ONLY_PARTS, "helloworld"),
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_no_part_of_a_text_is_lost(source: str, role: str, expected: str) -> None:
    """A template that writes all parts gets them; any other gets one text."""
    template = ChatTemplate(source)
    told = [{"role": role, "content": HELLO}]
    assert template.render(fitted(told, template)) == f"<{role}>{expected}"
    assert needs_of(template).writes_parts(role) == (expected == "helloworld")


def test_the_engine_and_the_server_make_the_same_prompt(tmp_path: Path) -> None:
    for i, source in enumerate((STRINGS, PARTS, THINKING)):
        folder = tmp_path / str(i)
        folder.mkdir()
        engine = engine_of(folder, source)
        said: list[dict[str, Any]] = [
            {"role": "developer", "content": "brief"},
            {"role": "user", "content": HELLO},
        ]
        with serving(engine) as client:
            text = client.ask("/apply-template", {"messages": said}).json["prompt"]
            body = {"messages": said, "max_tokens": 1}
            n_tokens = client.ask("/v1/chat/completions", body).json["usage"]["prompt_tokens"]
            tokens = engine.stream_chat(said, max_tokens=1).prompt_tokens
        assert text == chat_text(engine.tokenizer, said)
        assert tokens == engine.tokenizer.encode_rendered(text) and len(tokens) == n_tokens


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video", "file"])
def test_parts_that_cannot_be_shown_are_named(tmp_path: Path, kind: str) -> None:
    engine = engine_of(tmp_path, PARTS)
    said = [{"role": "user", "content": [*HELLO[:1], {"type": kind, kind: {}}]}]
    words = {"image_url": "the model takes no pictures: ", "input_audio": "the model takes no sounds: "}
    reason = words.get(kind, f"expected a part of type text, got '{kind}'$")
    message = rf"^messages\[0\]\.content\[1\]: {reason}"
    with pytest.raises(ConfigError, match=message):
        engine.chat(said, max_tokens=1)
    with serving(engine) as client:
        answer = client.ask("/v1/chat/completions", {"messages": said})
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[1]")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "x"}, r"messages\[0\]\.role: expected a string, got None"),
        ({"role": 1, "content": "x"}, r"messages\[0\]\.role: expected a string, got 1"),
        ({"role": "user", "content": ["text"]}, r"content\[0\]: expected a part of type text, got 'text'"),
        ({"role": "user", "content": [5]}, r"content\[0\]: expected a part of type text, got 5"),
        ({"role": "user", "content": [{"type": []}]}, r"content\[0\]: expected a part of .* text, got \[\]"),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\]\.text: expected a string, got None"),
    ],
)
def test_what_is_no_message_is_named(message: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        fitted([message], ChatTemplate(AS_IT_IS))


def test_roles_and_fields_that_templates_know() -> None:
    said = [
        {"role": "developer", "content": "Be brief.", "name": None},
        {"role": "assistant", "content": "a", "tool_calls": [], "audio": None},
    ]
    system, answer = fitted(said, ChatTemplate(AS_IT_IS))
    assert system == {"role": "system", "content": "Be brief."}
    assert answer == {"role": "assistant", "content": "a"}
    named = ChatTemplate(AS_IT_IS + "{# developer #}")
    assert fitted(said, named)[0] == {"role": "developer", "content": "Be brief."}


def test_the_format_of_the_answer_is_the_templates(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, THINKING)
    said = [{"role": "user", "content": "hello"}]
    for wanted, parse, found in ((None, True, "<think>"), ("auto", False, "<think>"), (None, False, None)):
        options = replace(OPTIONS, message_format=wanted)
        form = chat_prompt(engine.tokenizer, said, options, parse=parse)[1].message_format
        assert (form and form.reasoning[0]) == found
    own = replace(OPTIONS, message_format=ToolCallGrammar.Qwen)
    assert chat_prompt(engine.tokenizer, said, own)[1] == own


def test_an_answer_that_has_begun(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hello"}]
    plain = engine_of(tmp_path, CHATML)
    assert chat_text(plain.tokenizer, said, answer="the f").endswith("<|im_start|>assistant\nthe f")
    thinking = engine_of(tmp_path, THINKING)
    with pytest.raises(ConfigError, match="messages: expected a last message that is the user's"):
        chat_text(thinking.tokenizer, said, answer="the f")
