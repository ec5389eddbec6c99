"""``/completion`` and ``/infill``: llama-server's fields and answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.infill import infill_tokens
from tests.support.server import Client, serving
from tests.support.tiny_file import FIM, tiny_vocabulary, write_tiny_model

MODEL = demo.STORY
PROMPT = "Once upon a time"
PATH = "/completion"


def test_the_text_and_what_belongs_to_it(client: Client, alone: InferenceEngine) -> None:
    body = {"prompt": PROMPT, "n_predict": 12, "seed": 4, "repeat_penalty": 1.1, "return_tokens": True}
    done = alone.stream(PROMPT, max_tokens=12, seed=4, repetition_penalty=1.1).result()
    for path in (PATH, "/completions"):
        found = client.ask(path, body).json
        assert (found["content"], found["tokens"]) == (done.text, done.tokens)
        assert (found["stop"], found["stop_type"], found["truncated"]) == (True, "limit", False)
        assert (found["tokens_predicted"], found["tokens_evaluated"]) == (
            12,
            len(alone.tokenizer.encode(PROMPT)),
        )
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
        ({"n_prob": 3}, "n_prob: is no option; did you mean n_probs?"),
        ({"n_probs": 3, "top_logprobs": 2}, "top_logprobs: is no option"),
        ({"prompt": [5] * 512}, "prompt: expected at most 511 tokens for the context of 512, got 512"),
        ({"id_slot": 64}, "id_slot: expected -1, or a number below 64, got 64"),
        ({"n": 2}, "n: is no option"),
        ({"post_sampling_probs": True}, "post_sampling_probs: expected n_probs beside it, got none"),
        ({"prompt": {"prompt_string": 5}}, "prompt: expected a text, token ids, or a list of these"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": [5]}}, "prompt: expected a text, token ids"),
        ({"prompt": [["a"]]}, "prompt: expected a text, token ids, or a list of these"),
        ({"prompt": [5, True]}, "prompt: expected a text, token ids, or a list of these"),
    ],
)
def test_what_is_refused(client: Client, body: dict[str, Any], message: str) -> None:
    answer = client.ask(PATH, {"prompt": PROMPT, **body}, status=400)
    assert answer.error["message"].startswith(message), answer.error


def test_prompts_of_all_kinds(client: Client, alone: InferenceEngine) -> None:
    """Texts among token ids bring no special tokens, but for one at the beginning."""
    encode = alone.tokenizer.encode
    mixed = [5, 6, PROMPT, 7, " a toad"]
    tokens = [5, 6, *encode(PROMPT, add_special=False), 7, *encode(" a toad", add_special=False)]
    each = [PROMPT, {"prompt_string": PROMPT}, mixed, encode(PROMPT), [PROMPT, 7]]
    wanted = [encode(PROMPT), encode(PROMPT), tokens, encode(PROMPT), [*encode(PROMPT), 7]]
    expected = [alone.generate(one, temperature=0, max_tokens=6) for one in wanted]
    body = {"temperature": 0, "n_predict": 6}
    assert [client.ask(PATH, {**body, "prompt": one}).json["content"] for one in each] == expected
    assert [part["content"] for part in client.ask(PATH, {**body, "prompt": each}).json] == expected


def test_fields_that_are_wanted(client: Client) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing/there"]
    body = {"prompt": PROMPT, "n_predict": 5, "temperature": 0}
    whole = client.ask(PATH, body).json
    few = {"content": whole["content"], "generation_settings/n_predict": 5}
    assert client.ask(PATH, {**body, "response_fields": fields}).json == few
    last = client.ask(PATH, {**body, "response_fields": fields, "stream": True}).events[-1]
    assert last == {"content": "", "generation_settings/n_predict": 5}


def test_probabilities_of_what_was_drawn_from(client: Client, alone: InferenceEngine) -> None:
    body = {"prompt": PROMPT, "n_predict": 4, "seed": 3, "n_probs": 5, "top_k": 3}
    raw = client.ask(PATH, body).json["completion_probabilities"]
    drawn = client.ask(PATH, {**body, "post_sampling_probs": True}).json["completion_probabilities"]
    done = alone.stream(PROMPT, max_tokens=4, seed=3, top_k=3, top_logprobs=5).result()
    assert [entry["id"] for entry in drawn] == [entry["id"] for entry in raw] == done.tokens
    for entry, sampled in zip(drawn, done.logprobs or []):
        assert entry["prob"] == pytest.approx(math.exp(sampled.processed.logprob))
        assert sum(each["prob"] for each in entry["top_probs"]) == pytest.approx(1)
        assert len(entry["top_probs"]) <= 3
        assert all(each["prob"] > 0 and "logprob" not in each for each in entry["top_probs"])


def test_a_prompt_that_uses_no_cache(client: Client) -> None:
    body = {"prompt": f"{PROMPT}, there was no cache at all, and all was well.", "n_predict": 4, "seed": 1}
    first = client.ask(PATH, body).json
    cached = [client.ask(PATH, {**body, "cache_prompt": flag}).json for flag in (True, False, False)]
    assert [found["timings"]["cache_n"] > 0 for found in cached] == [True, False, False]
    assert {found["content"] for found in cached} == {first["content"]}


def test_times_count_the_steps_of_the_text(client: Client) -> None:
    """The first token comes from the prompt's last step."""
    one = client.ask(PATH, {"prompt": PROMPT, "n_predict": 1}).json["timings"]
    assert (one["predicted_n"], one["predicted_per_second"], one["predicted_per_token_ms"]) == (1, 0, 0)
    many = client.ask(PATH, {"prompt": PROMPT, "n_predict": 9, "ignore_eos": True}).json["timings"]
    assert many["predicted_per_second"] == pytest.approx(1e3 / many["predicted_ms"] * 8)


# --- infill -------------------------------------------------------------------------------------------


def test_text_between_two_others(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "coder.gguf", metadata=FIM, context_length=256)
    engine = InferenceEngine.from_gguf(path, num_threads=1)
    tokenizer = engine.tokenizer
    bos = len(tiny_vocabulary()[0]) - 4
    prefix, begun, suffix, snippet, extra = (
        tokenizer.encode(text, add_special=False)
        for text in ("hello wor", " upon", " there", "\n\n--- snippet ---\n\n", "x = 1")
    )
    tokens = [bos, 1, *prefix, 2, *suffix, 3]
    expected = engine.generate(tokens, temperature=0, max_tokens=8)
    after = engine.generate([*tokens, *begun], temperature=0, max_tokens=8)
    behind_others = [bos, *snippet, *extra, *tokens[1:]]
    with serving(engine, "coder") as client:
        body = {"input_prefix": "hello wor", "input_suffix": " there", "temperature": 0}
        found = client.ask("/infill", {**body, "n_predict": 8}).json
        assert (found["content"], found["tokens_evaluated"]) == (expected, len(tokens))
        assert client.ask("/infill", {**body, "prompt": " upon", "n_predict": 8}).json["content"] == after
        others = {"input_extra": [{"text": "x = 1", "filename": "a.py"}]}
        found = client.ask("/infill", {**body, **others, "n_predict": 8}).json
        assert found["content"] == engine.generate(behind_others, temperature=0, max_tokens=8)
        other = {"prompt": "hello wor", "suffix": " there", "temperature": 0, "max_tokens": 8}
        choice = client.ask("/v1/completions", {**other, "echo": True}).choice
        assert choice["text"] == "hello wor" + expected
        assert client.ask("/v1/completions", {**other, "prompt": prefix}).choice["text"] == expected
        long = client.ask("/infill", {**body, "input_suffix": "zq" * 200})
        assert long.error["type"] == "exceed_context_size_error"
        for wrong, param in (({}, "input_extra[0].text"), ({"text": 5}, "input_extra[0].text")):
            assert client.ask("/infill", {**body, "input_extra": [wrong]}).error["param"] == param


def test_parts_of_other_files_with_tokens_for_that(tmp_path: Path) -> None:
    """A model that has them reads the name of a project, and before each file its own."""
    more = {"tokenizer.ggml.fim_rep_token_id": 4, "tokenizer.ggml.fim_sep_token_id": 5}
    path = write_tiny_model(tmp_path / "coder.gguf", metadata={**FIM, **more}, add_bos=False)
    engine = InferenceEngine.from_gguf(path, num_threads=1)
    others = [("a.py", "x"), ("b.py", "y")]

    def plain(text: str) -> list[int]:
        return engine.tokenizer.encode(text, add_special=False)

    expected = [4, *plain("myproject\n"), 5, *plain("a.py\n"), *plain("x"), 5, *plain("b.py\n"), *plain("y")]
    expected += [5, *plain("filename\n"), 1, *plain("p"), 2, *plain("s"), 3]
    assert infill_tokens(engine, "p", "s", "suffix", others) == expected


def test_a_model_without_tokens_for_infill(client: Client) -> None:
    body = {"input_prefix": "a", "input_suffix": "b"}
    wanted = "expected a model with tokens for infill, this one has no fim_pre, fim_suf, fim_mid"
    assert client.ask("/infill", body).error["message"] == f"input_suffix: {wanted}"
    answer = client.ask("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert answer.refusal("message") == (400, f"suffix: {wanted}")


def test_banned_tokens_are_in_the_settings(client: Client, alone: InferenceEngine) -> None:
    body = {"prompt": PROMPT, "n_predict": 2, "logit_bias": [[5, 1.5], [7, False]]}
    found = client.ask(PATH, body).json["generation_settings"]["logit_bias"]
    assert found == [{"token": 5, "bias": 1.5}, {"token": 7, "bias": None}]
    found = client.ask(PATH, {"prompt": PROMPT, "n_predict": 2, "ignore_eos": True}).json
    ends = sorted(alone.tokenizer.eog_ids)
    assert ends and found["generation_settings"]["logit_bias"] == [{"token": e, "bias": None} for e in ends]
    assert client.ask("/props").json["default_generation_settings"]["params"]["logit_bias"] == []
    refused = client.ask(PATH, {"prompt": PROMPT, "adaptive_target": 0.5}).error
    assert refused["code"] == "unsupported_value"
