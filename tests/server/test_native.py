"""``/completion`` and ``/infill``: llama-server's fields and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from tests.support.server import Client, serving
from tests.support.tiny_file import tiny_vocabulary, write_tiny_model

PROMPT = "Once upon a time"
PATH = "/completion"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(InferenceEngine.from_gguf(demo.STORY, num_threads=1)) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1)


def test_the_text_and_what_belongs_to_it(client: Client, alone: InferenceEngine) -> None:
    body = {"prompt": PROMPT, "n_predict": 12, "seed": 4, "repeat_penalty": 1.1, "return_tokens": True}
    done = alone.stream(PROMPT, max_tokens=12, seed=4, repetition_penalty=1.1).result()
    for path in (PATH, "/completions"):
        found = client.ask(path, body).json
        assert (found["content"], found["tokens"]) == (done.text, done.tokens)
        assert (found["stop"], found["stop_type"], found["truncated"]) == (True, "limit", False)
        assert (found["tokens_predicted"], found["tokens_evaluated"]) == (12, len(alone.tokenize(PROMPT)))
        assert found["prompt"] == "<|bos|>" + PROMPT
        settings = found["generation_settings"]
        assert (settings["seed"], settings["repeat_penalty"], settings["n_predict"]) == (4, 1.1, 12)
        assert (found["timings"]["predicted_n"], found["timings"]["predicted_ms"] > 0) == (12, True)
    plain = client.ask(PATH, {**body, "return_tokens": False}).json
    assert plain["tokens"] == []
    several = client.ask(PATH, {**body, "prompt": [PROMPT, "The old toad"]}).json
    assert [part["index"] for part in several] == [0, 1]
    assert several[0]["content"] == done.text


def test_a_stream_joins_to_the_whole(client: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 10, "seed": 4, "n_probs": 2, "return_tokens": True}
    whole = client.ask(PATH, body).json
    parts = client.ask(PATH, {**body, "stream": True}).events
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part["content"] for part in parts) == whole["content"]
    for name in ("tokens", "completion_probabilities"):
        assert [item for part in parts for item in part[name]] == whole[name]
    first = whole["completion_probabilities"][0]
    assert first["id"] == whole["tokens"][0]
    assert len(first["top_logprobs"]) == 2
    varying = {"content", "tokens", "timings", "tokens_cached", "completion_probabilities"}
    assert {k: v for k, v in parts[-1].items() if k not in varying} == {
        k: v for k, v in whole.items() if k not in varying
    }


def test_why_a_text_has_ended(client: Client, alone: InferenceEngine) -> None:
    plain = alone.generate(PROMPT, temperature=0, max_tokens=40)
    word = plain.split()[6]
    body = {"prompt": PROMPT, "temperature": 0}
    found = client.ask(PATH, {**body, "stop": ["nowhere", word]}).json
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)
    assert found["content"] == plain[: plain.index(word)]
    ended = client.ask(PATH, {**body, "choices": [" Tom"]}).json
    assert (ended["content"], ended["stop_type"], ended["stopping_word"]) == (" Tom", "eos", "")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n_prob": 3}, "n_prob: is no option; n_probs is"),
        ({"n_probs": 3, "top_logprobs": 2}, "top_logprobs: is no option"),
        ({"prompt": [5] * 512}, "prompt: expected at most 511 tokens for the context of 512, got 512"),
        ({"id_slot": 64}, "id_slot: expected -1, or a number below 64, got 64"),
        ({"n": 2}, "n: is no option"),
        ({"post_sampling_probs": True}, "post_sampling_probs: expected False"),
    ],
)
def test_what_is_refused(client: Client, body: dict[str, Any], message: str) -> None:
    answer = client.ask(PATH, {"prompt": PROMPT, **body})
    assert answer.status == 400
    assert answer.error["message"].startswith(message), answer.error


# --- infill -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in whose file three tokens are said to be those of infill."""
    ids = {f"tokenizer.ggml.fim_{name}_token_id": i for i, name in enumerate(("pre", "suf", "mid"), 1)}
    path = tmp_path_factory.mktemp("models") / "coder.gguf"
    return write_tiny_model(path, metadata=ids, context_length=256)


def test_text_between_two_others(coder: Path) -> None:
    engine = InferenceEngine.from_gguf(coder, num_threads=1)
    tokenizer = engine.tokenizer
    bos = len(tiny_vocabulary()[0]) - 4
    prefix, suffix = (tokenizer.encode(text, add_special=False) for text in ("hello wor", " there"))
    tokens = [bos, 1, *prefix, 2, *suffix, 3]
    expected = engine.generate(tokens, temperature=0, max_tokens=8)
    with serving(engine, "coder") as client:
        body = {"input_prefix": "hello", "prompt": " wor", "input_suffix": " there", "temperature": 0}
        found = client.ask("/infill", {**body, "n_predict": 8}).json
        assert (found["content"], found["tokens_evaluated"]) == (expected, len(tokens))
        other = {"prompt": "hello wor", "suffix": " there", "temperature": 0, "max_tokens": 8}
        choice = client.ask("/v1/completions", {**other, "echo": True}).json["choices"][0]
        assert choice["text"] == "hello wor" + expected
        assert (
            client.ask("/v1/completions", {**other, "prompt": prefix}).json["choices"][0]["text"] == expected
        )
        long = client.ask("/infill", {**body, "input_suffix": "zq" * 200})
        assert long.error["type"] == "exceed_context_size_error"
        extra = client.ask("/infill", {**body, "input_extra": [{"text": "x"}]})
        assert extra.error["param"] == "input_extra"


def test_a_model_without_tokens_for_infill(client: Client) -> None:
    body = {"input_prefix": "a", "input_suffix": "b"}
    wanted = "expected a model with tokens for infill, this one has no fim_pre, fim_suf, fim_mid"
    assert client.ask("/infill", body).error["message"] == f"input_suffix: {wanted}"
    answer = client.ask("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert (answer.status, answer.error["message"]) == (400, f"suffix: {wanted}")
