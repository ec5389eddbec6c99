"""Chats by llama-cpp-python's names: formats, handlers, tools, pictures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ChatTemplateError, ConfigError, demo
from oxillama.compat.llama_cpp import Llama, LlamaGrammar, llama_chat_format as formats
from oxillama.compat.llama_cpp.chat_formats import CHAT_FORMATS, NOT_OFFERED
from tests.support.llama_cpp_calls import CONVERSATIONS, FEW, GREEDY, NOT_COMPARED, ONE, RECORDS, TITLE, TOOLS
from tests.support.media import picture, projector_file
from tests.support.tiny_file import write_tiny_model
from tests.support.tool_models import tool_model

RECORDED = json.loads(RECORDS.read_text("utf-8"))


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    made = Llama(str(demo.STORY), **FEW)
    yield made
    made.close()


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A model whose template shows tools."""
    made = Llama(str(tool_model(tmp_path_factory.mktemp("tools") / "model.gguf")), n_ctx=2048, n_threads=1)
    yield made
    made.close()


# --- formats ---------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:chat_format")
@pytest.mark.parametrize("name", CHAT_FORMATS)
def test_a_format_makes_the_recorded_prompt(name: str) -> None:
    found = {key: CHAT_FORMATS[name](messages=said) for key, said in CONVERSATIONS.items()}
    prompts = {key: [each.prompt, each.stop] for key, each in found.items()}
    if name == "intel":  # the pattern of the system message is written as it is there, and is filled in here
        prompts = {
            key: [f"### System:\n{{system_message}}\n{each[0].split(chr(10), 2)[2]}", each[1]]
            for key, each in prompts.items()
        }
    assert prompts == RECORDED["prompts"][name]


def test_every_recorded_format_is_offered_or_refused() -> None:
    assert set(RECORDED["prompts"]) == set(CHAT_FORMATS)
    assert set(NOT_COMPARED) <= set(NOT_OFFERED)


@pytest.mark.parametrize(
    ("name", "why"), [("open-orca", "leaves out every message"), ("none", "expected one of")]
)
def test_other_formats_are_not_found(name: str, why: str) -> None:
    made = Llama(str(demo.STORY), chat_format=name, **FEW)
    with pytest.raises(formats.LlamaChatCompletionHandlerNotFoundException, match=why):
        made.create_chat_completion(TITLE)


def test_a_message_without_a_place_is_told_of() -> None:
    with pytest.warns(UserWarning, match="no place for a system message"):
        CHAT_FORMATS["gemma"](messages=CONVERSATIONS["asked"])
    with pytest.raises(ConfigError, match=r"messages\[0\].role"):
        CHAT_FORMATS["chatml"](messages=[{"role": "tool", "content": "1"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb<|im_end|>" in CHAT_FORMATS["chatml"](messages=[{"role": "user", "content": parts}]).prompt
    with pytest.raises(ConfigError, match="parts of type text"):
        CHAT_FORMATS["chatml"](messages=[{"role": "user", "content": [{"type": "image_url"}]}])


def test_a_format_rules_prompt_and_stop(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Llama(str(demo.STORY), chat_format="chatml", **FEW)
    answer = made.create_chat_completion(TITLE, max_tokens=4, **GREEDY)
    n = len(made.tokenize(CHAT_FORMATS["chatml"](messages=TITLE).prompt.encode(), special=True))
    assert answer["usage"]["prompt_tokens"] == n
    assert made.n_tokens == n + 3


def test_a_registered_format_and_a_registered_handler_answer(llm: Llama) -> None:
    @formats.register_chat_format("plain")
    def plain(messages: list[Any], **kwargs: Any) -> formats.ChatFormatterResponse:
        assert set(kwargs) == {"functions", "function_call", "tools", "tool_choice"}
        criterion = [lambda tokens, logits: len(tokens) >= n + 2]
        return formats.ChatFormatterResponse(messages[-1]["content"], "am", criterion)

    assert plain is not None  # a decorator gives back what it decorates

    @formats.register_chat_completion_handler("echo")
    def echo(*, llama: Llama, messages: list[Any], **kwargs: Any) -> Any:
        return [llama is made, messages, sorted(kwargs)]

    n = len(llm.tokenize(demo.PROMPTS[0].encode()))
    said = [{"role": "user", "content": demo.PROMPTS[0]}]
    try:
        made = Llama(str(demo.STORY), chat_format="plain", **FEW)
        answer = made.create_chat_completion(said, max_tokens=9, tools=TOOLS, **GREEDY)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": " Li"}
        assert answer["choices"][0]["finish_reason"] == "stop"
        made.chat_format = "echo"
        is_same, messages, names = made.create_chat_completion(said)
        assert is_same and messages == said
        recorded = [name for name, _, _ in RECORDED["signatures"]["create_chat_completion"]]
        assert {*names, "messages", "self"} == set(recorded)
        with pytest.raises(ValueError, match="registered already"):
            formats.register_chat_format("plain")(plain)
    finally:
        registry = formats.LlamaChatCompletionHandlerRegistry()
        for name in ("plain", "echo"):
            registry.unregister_chat_handler(name)
    with pytest.raises(ValueError, match="not registered"):
        registry.unregister_chat_handler("plain")


def test_a_template_of_ones_own_answers(llm: Llama) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    formatter = formats.Jinja2ChatFormatter(template, "<|eos|>", "<|bos|>", stop_token_ids=[333])
    made = formatter(messages=TITLE)
    assert (made.prompt, made.stop, made.added_special) == ("<|bos|>Help for a Goat", ["<|eos|>"], True)
    made = Llama(str(demo.STORY), chat_handler=formatter.to_chat_handler(), **FEW)
    said = [{"role": "user", "content": demo.PROMPTS[0]}]
    answer = made.create_chat_completion(said, max_tokens=9, **GREEDY)
    assert answer["choices"][0]["message"]["content"] == " Liam"
    assert answer["usage"]["prompt_tokens"] == 14


def test_a_tokenizer_config_has_a_template() -> None:
    config = {
        "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
    }
    made = formats.hf_tokenizer_config_to_chat_formatter(config)(messages=TITLE)
    assert (made.prompt, made.stop) == ("<s>[Help for a Goat]</s>[]</s>", ["</s>", "<s>"])
    made = formats.hf_tokenizer_config_to_chat_formatter(config, add_generation_prompt=False)(messages=TITLE)
    assert made.prompt == "<s>[Help for a Goat]</s>"


def test_functions_of_formats_have_their_names() -> None:
    assert formats.format_llama2 is CHAT_FORMATS["llama-2"]
    assert formats.format_mistral_instruct is CHAT_FORMATS["mistral-instruct"]
    with pytest.raises(AttributeError):
        formats.format_nothing  # noqa: B018


# --- what is asked for -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"tool_choice": ONE}, "not found in tools"),
        ({"tool_choice": "required"}, "expected tools"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"top_logprobs": 2}, "logprobs=True"),
        (
            {"tools": TOOLS, "tool_choice": ONE, "grammar": LlamaGrammar.from_string('root ::= "a"')},
            "several",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tools": TOOLS}, "tools"),
    ],
)
def test_a_chat_refuses(llm: Llama, given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        llm.create_chat_completion(TITLE, **given)


def test_a_format_without_tools_refuses_them() -> None:
    made = Llama(str(demo.STORY), chat_format="chatml", **FEW)
    with pytest.raises(ConfigError, match="shows tools"):
        made.create_chat_completion(TITLE, tools=TOOLS)
    answer = made.create_chat_completion(TITLE, tools=TOOLS, tool_choice=ONE, max_tokens=40, **GREEDY)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"n"}


def test_a_call_that_is_cut_says_so(llm: Llama) -> None:
    """llama-cpp-python says "tool_calls" all the same."""
    given: dict[str, Any] = {"tools": TOOLS, "tool_choice": ONE, "max_tokens": 2, **GREEDY}
    assert llm.create_chat_completion(TITLE, **given)["choices"][0]["finish_reason"] == "length"
    *_, last = llm.create_chat_completion(TITLE, stream=True, **given)
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object"},
        {"type": "json_object", "schema": TOOLS[0]["function"]["parameters"]},
        {"type": "json_schema", "json_schema": {"schema": TOOLS[0]["function"]["parameters"]}},
    ],
)
def test_a_response_format_rules_the_text(llm: Llama, wanted: dict[str, Any]) -> None:
    answer = llm.create_chat_completion(TITLE, response_format=wanted, max_tokens=60, temperature=0.0)
    content = answer["choices"][0]["message"]["content"]
    assert content.startswith("{")
    if "schema" in str(wanted):
        assert set(json.loads(content)) == {"n"}


def test_log_probabilities_without_others(llm: Llama) -> None:
    """llama-cpp-python gives none without ``top_logprobs``."""
    answer = llm.create_chat_completion(TITLE, max_tokens=2, logprobs=True, **GREEDY)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == ["This", " is"]
    assert [len(each["top_logprobs"]) for each in content] == [1, 1]


def test_the_template_of_the_file_refuses_what_it_refuses(llm: Llama) -> None:
    with pytest.raises(ChatTemplateError):
        llm.create_chat_completion([{"role": "assistant", "content": "a"}])


# --- calls that the model chooses ------------------------------------------------------------------------
@pytest.mark.parametrize("format", [None, "chatml-function-calling"])
def test_calls_are_parsed(caller: Llama, format: str | None) -> None:
    given: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 400, "seed": 5}
    before, caller.chat_format = caller.chat_format, format or caller.chat_format
    try:
        whole = caller.create_chat_completion(TITLE, **given)
        chunks = list(caller.create_chat_completion(TITLE, stream=True, **given))
    finally:
        caller.chat_format = before
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert set(choice["message"]) >= {"role", "content", "tool_calls"}
    for call in choice["message"]["tool_calls"]:
        assert call["function"]["name"] == "count"
        assert "n" in json.loads(call["function"]["arguments"])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    streamed = "".join(part["function"]["arguments"] for part in parts if part["index"] == 0)
    assert streamed == choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_no_call_is_parsed_where_none_is_wanted(caller: Llama) -> None:
    answer = caller.create_chat_completion(TITLE, tools=TOOLS, tool_choice="none", max_tokens=4)
    assert set(answer["choices"][0]["message"]) == {"role", "content"}


def test_chatml_shows_tools_calls_and_results(caller: Llama) -> None:
    text = formats.ChatTemplate(formats.CALLING).render(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Count."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "count", "arguments": '{"n": 1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ],
        tools=TOOLS,
    )
    assert text.startswith("<|im_start|>system\nBe kind.")
    assert '"name": "count"' in text.split("<tools>")[1].split("</tools>")[0]
    assert '<tool_call>\n{"name": "count", "arguments": {"n": 1}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<tool_response>\n1\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


# --- pictures --------------------------------------------------------------------------------------------
def test_pictures_reach_the_model(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="comes with the extra test")
    write_tiny_model(tmp_path / "model.gguf")
    (tmp_path / "projector.gguf").write_bytes(projector_file())
    handler = formats.MTMDChatHandler(clip_model_path=str(tmp_path / "projector.gguf"))
    made = Llama(str(tmp_path / "model.gguf"), chat_handler=handler, n_ctx=2048, n_threads=1, logits_all=True)
    answers = []
    for i in range(2):
        image.fromarray(np.roll(picture(40, 30), 7 * i)).save(tmp_path / "cat.png")
        parts = [
            {"type": "image_url", "image_url": {"url": str(tmp_path / "cat.png")}},
            {"type": "text", "text": "What is it?"},
        ]
        said = [{"role": "user", "content": parts}]
        answers.append(made.create_chat_completion(said, max_tokens=4, logprobs=True, **GREEDY))
        assert answers[-1]["usage"]["prompt_tokens"] > len(made.tokenize(b"What is it?")) + 3
    first, second = ([e["logprob"] for e in a["choices"][0]["logprobs"]["content"]] for a in answers)
    assert first != second
    assert made.n_tokens == 0
    with pytest.raises(ValueError, match="does not exist"):
        formats.Llava15ChatHandler(clip_model_path="nothing.gguf")
    plain = Llama(str(tmp_path / "model.gguf"), n_threads=1)
    plain.chat_handler = handler
    with pytest.raises(ConfigError, match="chat_handler"):
        plain.create_chat_completion(said)


def test_a_model_without_a_template_has_a_format(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model.gguf", chat_template=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Llama(str(tmp_path / "model.gguf"), n_threads=1)
    assert made.chat_format == "llama-2"
    assert made.create_chat_completion(TITLE, max_tokens=2)["object"] == "chat.completion"
