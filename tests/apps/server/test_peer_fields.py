"""Fields that vLLM and llama-server publish: the server accepts their defaults, and honours other values
or refuses them by name.

Sources: vLLM 0.33.0, `vllm/entrypoints/openai/*/protocol.py`; llama.cpp b11549,
`tools/server/server-schema.cpp`.
`test_sdk_fields` has the fields of OpenAI, Anthropic and Ollama.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from tests.support.server import Client, serving

HONOURED = object()
"""In place of a value that is refused: other values are honoured."""

Fields = dict[str, tuple[Any, Any]]
"""By name: the default, and another value, which is refused, or HONOURED."""

VLLM: Fields = {
    "allowed_token_ids": (None, HONOURED), "bad_words": ([], ["a"]), "cache_salt": (None, HONOURED),
    "ec_transfer_params": (None, {"a": 1}), "ignore_eos": (False, HONOURED),
    "include_stop_str_in_output": (False, True), "kv_transfer_params": (None, {"a": 1}),
    "length_penalty": (1.0, HONOURED), "logprob_token_ids": (None, [1]), "min_p": (None, HONOURED),
    "min_tokens": (0, HONOURED), "priority": (0, HONOURED), "prompt_logprobs": (None, 1),
    "repetition_detection": (None, {"max_pattern_size": 4}), "repetition_penalty": (None, HONOURED),
    "request_id": ("a", HONOURED), "return_token_ids": (None, True), "return_token_offsets": (False, True),
    "return_tokens_as_token_ids": (None, True), "session_id": (None, HONOURED),
    "skip_special_tokens": (None, False), "spaces_between_special_tokens": (True, HONOURED),
    "stop_token_ids": ([], [5]), "stream_interval": (None, HONOURED), "structured_outputs": (None, HONOURED),
    "thinking_token_budget": (None, HONOURED), "top_k": (-1, HONOURED), "truncate_prompt_tokens": (None, 4),
    "truncation_side": (None, "left"), "use_beam_search": (False, True), "vllm_xargs": (None, {"a": 1}),
    "watermarking": (None, True),
}  # fmt: skip
CHATS: Fields = {
    "add_generation_prompt": (True, HONOURED), "add_special_tokens": (False, True),
    "chat_template": (None, "{{ messages }}"), "chat_template_kwargs": (None, HONOURED),
    "continue_final_message": (False, HONOURED), "documents": (None, [{"text": "a"}]), "echo": (False, True),
    "include_reasoning": (True, False), "media_io_kwargs": (None, {"a": {}}),
    "mm_processor_kwargs": (None, {"a": 1}), "return_prompt_text": (None, True),
}  # fmt: skip
TEXTS: Fields = {
    "add_special_tokens": (True, False),
    "echo": (False, HONOURED),
    "prompt_embeds": (None, "AA=="),
}
LLAMA: Fields = {
    "adaptive_decay": (0.9, HONOURED), "adaptive_target": (-1.0, 0.5), "backend_sampling": (False, HONOURED),
    "cache_prompt": (True, HONOURED), "continue_final_message": (None, "a"),
    "dry_allowed_length": (2, HONOURED), "dry_base": (1.75, HONOURED), "dry_multiplier": (0.0, HONOURED),
    "dry_penalty_last_n": (-1, HONOURED), "dry_sequence_breakers": (["\n", ":"], HONOURED),
    "dynatemp_exponent": (1.0, HONOURED), "dynatemp_range": (0.0, HONOURED), "echo": (False, True),
    "frequency_penalty": (0.0, HONOURED), "grammar": ("", HONOURED), "grammar_lazy": (False, True),
    "grammar_triggers": ([], [{"type": 0}]), "id_slot": (-1, HONOURED), "ignore_eos": (False, HONOURED),
    "logit_bias": ([], HONOURED), "lora": ([], HONOURED), "min_keep": (0, 3), "min_p": (0.05, HONOURED),
    "mirostat": (0, HONOURED), "mirostat_eta": (0.1, HONOURED), "mirostat_tau": (5.0, HONOURED),
    "n_cache_reuse": (0, HONOURED), "n_cmpl": (1, 2), "n_discard": (0, 5), "n_indent": (0, 4),
    "n_keep": (0, 5), "post_sampling_probs": (False, HONOURED), "presence_penalty": (0.0, HONOURED),
    "preserved_tokens": ([], ["a"]), "reasoning_budget_end_tags": (None, ["a"]),
    "reasoning_budget_message": (None, "a"), "reasoning_budget_start_tag": (None, "a"),
    "reasoning_budget_tokens": (-1, HONOURED), "reasoning_control": (False, True),
    "repeat_last_n": (64, HONOURED), "repeat_penalty": (1.0, HONOURED), "response_fields": ([], HONOURED),
    "return_progress": (False, HONOURED), "return_tokens": (False, HONOURED), "seed": (4294967295, HONOURED),
    "samplers": (["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], HONOURED),
    "speculative.n_max": (3, HONOURED), "speculative.n_min": (0, HONOURED),
    "speculative.ngram_min_hits": (1, HONOURED), "speculative.ngram_size_m": (48, HONOURED),
    "speculative.ngram_size_n": (12, HONOURED), "speculative.p_min": (0.0, HONOURED),
    "speculative.type": ("none", HONOURED), "sse_ping_interval": (30, HONOURED), "stop": ([], HONOURED),
    "t_max_predict_ms": (-1, 500), "temperature": (0.8, HONOURED), "timings_per_token": (False, HONOURED),
    "top_k": (40, HONOURED), "top_n_sigma": (-1.0, HONOURED), "top_p": (0.95, HONOURED),
    "typical_p": (1.0, HONOURED), "xtc_probability": (0.0, HONOURED), "xtc_threshold": (0.1, HONOURED),
}  # fmt: skip

CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2}
PATHS: dict[str, tuple[dict[str, Any], Fields]] = {
    "/v1/chat/completions": (CHAT, VLLM | CHATS),
    "/v1/completions": ({"prompt": "Once", "max_tokens": 2}, VLLM | TEXTS),
    "/completion": ({"prompt": "Once", "max_tokens": 2}, LLAMA),
}
CASES = [(path, name) for path, (_, fields) in PATHS.items() for name in fields]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine, serving(engine) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_all_defaults_together_are_accepted(client: Client, path: str) -> None:
    body, fields = PATHS[path]
    answer = client.ask(path, {**{name: default for name, (default, _) in fields.items()}, **body})
    assert answer.status == 200, answer.text


@pytest.mark.parametrize(("path", "name"), CASES)
def test_another_value_is_honoured_or_refused_by_name(client: Client, path: str, name: str) -> None:
    body, fields = PATHS[path]
    default, other = fields[name]
    answer = client.ask(path, {**body, name: default if other is HONOURED else other})
    assert answer.status == (200 if other is HONOURED else 400), answer.text
    assert answer.status == 200 or name in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"n": 1.0, "best_of": 2.0, "logprobs": 1.0}),
        ("/v1/chat/completions", {"n": 1.0, "logprobs": True, "top_logprobs": 2.0}),
        ("/v1/responses", {"input": "Once", "max_output_tokens": 16.0, "max_tool_calls": 3.0}),
        ("/completion", {"n_probs": 1.0, "id_slot": -1.0}),
        ("/v1/embeddings", {"input": "Once", "dimensions": 16.0}),
    ],
)
def test_an_integer_may_have_a_point(client: Client, path: str, more: dict[str, Any]) -> None:
    body = PATHS[path][0] if path in PATHS else {}
    answer = client.ask(path, {**body, **more})
    assert answer.status == 200, answer.text
    for name, value in more.items():
        if isinstance(value, float) and value > 0:
            assert client.ask(path, {**body, **more, name: value + 0.5}).status == 400


@pytest.mark.parametrize(("name", "least"), [("top_k", 1), ("top_n_sigma", 0.001)])
def test_minus_one_switches_a_stage_off(client: Client, name: str, least: float) -> None:
    body = {"prompt": "Once upon", "max_tokens": 12, "seed": 3, "temperature": 3, "top_p": 1, "min_p": 0}
    off, also_off, on = (client.ask("/v1/completions", {**body, name: n}) for n in (0, -1, least))
    assert off.json["choices"] == also_off.json["choices"] != on.json["choices"]
    assert client.ask("/v1/completions", {**body, name: -2}).status == 400
