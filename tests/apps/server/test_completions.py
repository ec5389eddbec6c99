"""``/v1/completions``: the texts are the library's, and every field is honoured or refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from oxillama import GenerationOptions, SamplerConfig, SchedulerConfig, demo, token_logprobs
from oxillama.apps.server import scoring
from oxillama.apps.server.openai.logprobs import token_name
from oxillama.apps.server.options import HARMLESS, OPTIONS, options_of
from oxillama.compat.engine import InferenceEngine
from tests.support.server import Client, serving
from tests.support.waiting import stopped, until

MODEL = demo.STORY
PROMPT = "Once upon a time"
PATH = "/v1/completions"


def test_the_text_is_the_librarys(client: Client, alone: InferenceEngine) -> None:
    answer = client.ask(PATH, {"model": "story", "prompt": PROMPT, "seed": 5, "max_tokens": 20}).json
    done = alone.stream(PROMPT, seed=5, max_tokens=20).result()
    (choice,) = answer["choices"]
    assert choice == {"index": 0, "text": done.text, "logprobs": None, "finish_reason": "length"}
    assert (answer["object"], answer["model"]) == ("text_completion", "story")
    assert answer["usage"]["prompt_tokens"] == done.usage.prompt_tokens
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["usage"]["total_tokens"] == done.usage.total_tokens


def test_sixteen_tokens_unless_the_body_says(client: Client) -> None:
    usage = client.ask(PATH, {"prompt": PROMPT, "ignore_eos": True}).json["usage"]
    assert usage["completion_tokens"] == 16
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        answer = client.ask(PATH, {"prompt": PROMPT, name: 5, "ignore_eos": True})
        assert answer.json["usage"]["completion_tokens"] == 5
    whole = client.ask(PATH, {"prompt": PROMPT, "max_tokens": -1, "ignore_eos": True}).json
    assert whole["usage"]["total_tokens"] == 512
    assert whole["choices"][0]["finish_reason"] == "length"
    empty = client.ask(PATH, {"prompt": PROMPT, "max_tokens": 0}).json
    assert (empty["choices"][0]["text"], empty["usage"]["completion_tokens"]) == ("", 0)


def test_prompts_of_every_form(client: Client, alone: InferenceEngine) -> None:
    tokens = alone.tokenizer.encode(PROMPT)
    texts = [PROMPT, "The old toad"]
    ask: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    expected = [alone.generate(text, **ask) for text in texts]
    for prompt, wanted in (
        (PROMPT, expected[:1]),
        (tokens, expected[:1]),
        ([PROMPT], expected[:1]),
        (texts, expected),
        ([tokens, alone.tokenizer.encode(texts[1])], expected),
    ):
        choices = client.ask(PATH, {"prompt": prompt, **ask}).json["choices"]
        assert [choice["text"] for choice in choices] == wanted
        assert [choice["index"] for choice in choices] == list(range(len(wanted)))
        echoed = client.ask(PATH, {"prompt": prompt, **ask, "echo": True}).json["choices"]
        assert [choice["text"] for choice in echoed] == [a + b for a, b in zip(texts, wanted)]


def test_several_samples(client: Client, alone: InferenceEngine) -> None:
    prompts = [PROMPT, "The old toad"]
    body = {"prompt": prompts, "n": 3, "seed": 7, "max_tokens": 8}
    answer = client.ask(PATH, body).json
    expected = [s.text for p in prompts for s in alone.generate_n(p, n=3, seed=7, max_tokens=8)]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == sum(len(alone.tokenizer.encode(p)) for p in prompts)
    best = client.ask(PATH, {**body, "best_of": 5, "n": 2}).json["choices"]
    chosen = [s.text for p in prompts for s in alone.generate_n(p, n=2, best_of=5, seed=7, max_tokens=8)]
    assert [choice["text"] for choice in best] == chosen
    assert best[0]["logprobs"] is None


def test_streams_join_to_the_whole(client: Client) -> None:
    body = {"prompt": [PROMPT, "The old toad"], "n": 2, "seed": 7, "max_tokens": 12, "logprobs": 1}
    whole = client.ask(PATH, body).json
    answer = client.ask(PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    assert all(chunk["usage"] is None for chunk in chunks)
    for expected in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == expected["index"]]
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == expected["finish_reason"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [item for part in parts for item in part["logprobs"][name]]
            assert joined == expected["logprobs"][name]


def test_stop_strings_biases_and_grammars(client: Client, alone: InferenceEngine) -> None:
    plain = alone.generate(PROMPT, temperature=0, max_tokens=40)
    word = plain.split()[6]
    choice = client.ask(PATH, {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "stop": word}).choice
    text = plain[: plain.index(word)]
    assert choice == {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    first = alone.stream(PROMPT, temperature=0, max_tokens=1).result().tokens[0]
    ask = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "logprobs": 0}
    name = client.ask(PATH, ask).choice["logprobs"]["tokens"]
    spelled = alone.tokenizer.token_text(first)
    assert alone.tokenizer.encode(spelled, add_special=False) == [first]
    pairs = [[[first, False]], [[first, -100.0]], [[spelled, False]]]
    for bias in ({str(first): -100}, {spelled: -100}, *pairs):
        other = client.ask(PATH, {**ask, "logit_bias": bias}).choice["logprobs"]["tokens"]
        assert other != name
    for field, value, text in (
        ("choices", [" Rita", " Tom"], " Tom"),
        ("regex", " (Tom|Rita)", " Tom"),
        ("grammar", 'root ::= " Tom" | " Rita"', " Tom"),
    ):
        body = {"prompt": "Mia had a good friend,", "temperature": 0, field: value}
        assert client.ask(PATH, body).choice["text"] == text


def test_a_seed_is_the_same_for_all_signs(client: Client) -> None:
    texts = [
        client.ask(PATH, {"prompt": PROMPT, "seed": seed, "temperature": 2}).choice["text"]
        for seed in (-7, 2**64 - 7, -8)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert client.ask(PATH, {"prompt": PROMPT, "seed": -1}).status == 200


def test_a_receipt_verifies(client: Client, alone: InferenceEngine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "receipt": True}
    choice = client.ask(PATH, body).choice
    assert alone.verify(choice["receipt"]).text == choice["text"]
    last = client.ask(PATH, {**body, "stream": True}).events[-2]["choices"][0]
    assert alone.verify(last["receipt"])


# --- log-probabilities --------------------------------------------------------------------------------


def test_the_prompts_own_logprobs(
    client: Client, alone: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = alone.tokenizer.encode("Mia and the little fox went to the sea.")
    rows = alone.logits(tokens)
    expected = [token_logprobs(row, token, 2) for row, token in zip(rows, tokens[1:])]
    body = {"prompt": tokens, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
    for n_bytes in (scoring.LOGIT_BYTES, 3 * 4 * 1024):  # in one piece, and three rows at a time
        monkeypatch.setattr(scoring, "LOGIT_BYTES", n_bytes)
        choice = client.ask(PATH, body).choice
        found = choice["logprobs"]
        assert len(found["tokens"]) == len(tokens) + 1
        assert "".join(found["tokens"][1:]) == choice["text"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert found["token_logprobs"][1:-1] == [each.logprob for each in expected]
        tops = [[logprob for _, logprob in each.top] for each in expected]
        assert [list(top.values()) for top in found["top_logprobs"][1:-1]] == tops
        offsets = np.cumsum([0, 0, *map(len, found["tokens"][1:-1])])
        assert found["text_offset"] == offsets.tolist()
    whole = alone.stream(tokens, temperature=0, max_tokens=1, top_logprobs=2).result()
    assert whole.logprobs is not None
    assert found["token_logprobs"][-1] == whole.logprobs[0].raw.logprob


def test_what_evaluations_send(client: Client, alone: InferenceEngine) -> None:
    prompts = [alone.tokenizer.encode(text) for text in ("The fox ran", "The fox slept far")]
    body = {"prompt": prompts, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234}
    for prompt, choice in zip(prompts, client.ask(PATH, body).json["choices"], strict=True):
        known = choice["logprobs"]
        assert len(known["token_logprobs"][1:-1]) == len(prompt) - 1
        greedy = [
            max(top.values()) == logprob
            for top, logprob in zip(known["top_logprobs"][1:], known["token_logprobs"][1:])
        ]
        assert greedy[-1]


def test_scored_prompts_go_on_as_others_do(client: Client) -> None:
    body = {"prompt": [PROMPT, "The old toad"], "n": 2, "seed": 3, "max_tokens": 9, "logprobs": 0}
    plain = client.ask(PATH, body).json["choices"]
    scored = client.ask(PATH, {**body, "echo": True}).json["choices"]
    prompts = [PROMPT, PROMPT, "The old toad", "The old toad"]
    for prompt, one, other in zip(prompts, plain, scored, strict=True):
        assert other["text"] == prompt + one["text"]
        n = len(one["logprobs"]["tokens"])
        assert other["logprobs"]["token_logprobs"][-n:] == one["logprobs"]["token_logprobs"]
        assert other["logprobs"]["top_logprobs"] is None
    streamed = client.ask(PATH, {**body, "echo": True, "stream": True}).events[:-1]
    for choice in scored:
        parts = [c for chunk in streamed for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name in ("tokens", "token_logprobs", "text_offset"):
            joined = [item for part in parts for item in part["logprobs"][name]]
            assert joined == choice["logprobs"][name]
    alone = client.ask(PATH, {"prompt": PROMPT, "echo": True, "logprobs": 0, "max_tokens": 0}).json
    assert alone["choices"][0]["text"] == PROMPT
    until(lambda: not client.hosted.ready().model.loop.held)


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"temprature": 1}, "temprature", "temprature: is no option; did you mean temperature?"),
        ({"top_logprobs": 3}, "top_logprobs", "top_logprobs: is no option"),
        ({"temperature": -1}, "temperature", "temperature: expected a number >= 0"),
        ({"temperature": "hot"}, "temperature", "temperature: expected a number"),
        ({"top_p": -0.1}, "top_p", "top_p: expected a number >= 0 and <= 1, got -0.1"),
        ({"repeat_penalty": 0}, "repetition_penalty", "repetition_penalty: expected a number > 0"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens: expected an integer >= 0, got 1.5"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict", "n_predict: expected the value of max_tokens"),
        ({"n": 0}, "n", "n: expected greater than or equal to 1, got 0"),
        ({"n": 2.5}, "n", "n: expected a valid integer, got 2.5"),
        ({"n": True}, "n", "n: expected a valid integer, got True"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of: expected at least n, 3, got 2"),
        ({"best_of": 2, "stream": True}, "best_of", "best_of: expected n, 1, for a stream, got 2"),
        ({"n": 1000, "prompt": ["a", "b"]}, "n", "n: expected at most 1024 texts in all, got 2 times 1000"),
        ({"logprobs": 101}, "logprobs", "logprobs: expected less than or equal to 100, got 101"),
        ({"logit_bias": {"": 1}}, "logit_bias", "logit_bias: expected an object or pairs of token ids"),
        ({"logit_bias": [[True, 1]]}, "logit_bias", "logit_bias: expected an object or pairs of token ids"),
        ({"logit_bias": ["x"]}, "logit_bias", "logit_bias: expected an object or pairs of token ids"),
        ({"logit_bias": {"99999": 1}}, None, "banned_tokens, allowed_tokens and logit_bias: "),
        ({"seed": 1.5}, "seed", "seed: expected an integer"),
        ({"stop": [""]}, "stop", "stop: expected strings that are not empty"),
        ({"stop": 5}, "stop", "stop: expected strings"),
        ({"suffix": "x"}, "suffix", "suffix: expected a model with tokens for infill"),
        ({"model": "gpt-4"}, "model", "model: expected story, got gpt-4"),
        ({"speculate": "/etc/passwd"}, "speculate", 'speculate: expected one of "off", "lookup", "self"'),
        ({"adapters": "/etc/passwd"}, "adapters", "adapters: is no option"),
        ({"window": 1}, "window", "window: is no option"),
        ({"store": True}, "store", "store: expected False, which is all that is supported, got True"),
        ({"cache_prompt": 0}, "cache_prompt", "cache_prompt: expected true or false, got 0"),
        ({"cache_prompt": False, "salt": "a"}, "salt", "salt: expected the value of cache_prompt"),
        ({"grammar": "root ::= ("}, None, "line 1"),
        ({"grammar": "root ::= x"}, None, ""),
        ({"json_schema": {"type": "nonsense"}}, None, ""),
        ({"regex": "a", "choices": ["b"]}, "choices", "choices: cannot be combined with regex"),
        ({"prompt": ""}, "prompt", "prompt: "),
        ({"prompt": []}, "prompt", "prompt: expected"),
        ({"prompt": [[]]}, "prompt", "prompt: expected a text, token ids, or a list of"),
        ({"prompt": [5000]}, "prompt", "prompt: expected token ids below 1024, got 5000"),
        ({"prompt": [-1]}, "prompt", "prompt: expected token ids below 1024, got -1"),
        ({"prompt": ["a", {"b": 5}]}, "prompt", "prompt: expected a text, token ids, or a list of"),
        ({"prompt": {"a": 1}}, "prompt", "prompt: expected a text, token ids, or a list of"),
        ({"prompt": [True]}, "prompt", "prompt: expected a text"),
        ({"prompt": 5}, "prompt", "prompt: expected a text"),
        ({"stream_options": {"oops": 1}}, "stream_options.oops", "stream_options.oops: expected"),
        ({"mirostat": 2, "typical_p": 0.5}, "mirostat", "mirostat: cannot be combined with typical_p"),
        ({"order": ["top_k", "nonsense"]}, "order", "order: expected"),
        ({"timeout": 0}, "timeout", "timeout: expected a number > 0"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(
    client: Client, body: dict[str, Any], param: str | None, message: str, stream: bool
) -> None:
    answer = client.ask(PATH, {"prompt": PROMPT, "stream": stream, **body})
    assert answer.status == (404 if "model" in body else 400), answer.text
    assert answer.error["message"].startswith(message), answer.error
    assert param is None or answer.error["param"] == param
    assert len(answer.text) < 2000


def test_a_prompt_that_does_not_fit(client: Client) -> None:
    for stream in (False, True):
        answer = client.ask(PATH, {"prompt": [[5], [5] * 512], "stream": stream}, status=400)
        assert answer.error["type"] == "exceed_context_size_error"
        assert answer.error["code"] == "context_length_exceeded"
        assert (answer.error["n_prompt_tokens"], answer.error["n_ctx"]) == (512, 512)
        assert "context_length_exceeded" in answer.error["message"]
    assert client.ask(PATH, {"prompt": [5] * 511}).json["usage"]["completion_tokens"] == 1


def test_null_is_as_good_as_absent(client: Client, alone: InferenceEngine) -> None:
    nothing = dict.fromkeys([*OPTIONS, *HARMLESS, "n", "echo", "logprobs", "stream", "suffix", "model"])
    answer = client.ask(PATH, {**nothing, "prompt": PROMPT, "temperature": 0})
    assert answer.choice["text"] == alone.generate(PROMPT, temperature=0, max_tokens=16)


def test_harmless_fields_are_accepted(client: Client) -> None:
    body = {name: "x" if values is None else values[0] for name, values in HARMLESS.items()}
    assert client.ask(PATH, {"prompt": PROMPT, "max_tokens": 1, **body}).status == 200


def test_every_option_of_the_library_has_a_name() -> None:
    from oxillama.base.config.generation import OPTION_NAMES

    not_offered = {
        *("sampler", "window", "keep_logits", "request_id", "tenant"),  # the server's own
        *("logprobs", "top_logprobs"),  # each interface has its form
        *("tools", "tool_choice", "parallel_tool_calls", "message_format"),  # of chats alone
    }
    assert set(OPTIONS.values()) == set(OPTION_NAMES) - not_offered
    assert not set(OPTIONS) & set(HARMLESS)


def test_streams_may_be_further_ahead_of_a_busy_event_loop(alone: InferenceEngine) -> None:
    plain = GenerationOptions(max_tokens=400, sampler=SamplerConfig(ignore_eos=True))
    served = options_of({"max_tokens": 400, "ignore_eos": True}, alone)
    assert [pieces_ahead(alone, options) for options in (plain, served)] == [16, 64]


def pieces_ahead(engine: InferenceEngine, options: GenerationOptions) -> int:
    """How many pieces a stream is ahead of a consumer who reads none."""
    with engine.stream(PROMPT, options) as generation:
        request = generation._request
        until(lambda: not request.has_room)
        return request.n_events


# --- many, and those that go away ---------------------------------------------------------------------


def test_a_full_queue_is_429() -> None:
    scheduler = SchedulerConfig(max_sequences=1, max_waiting=1)
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, scheduler=scheduler)
    with serving(engine, ping_seconds=0.02) as client:
        body = {"prompt": PROMPT, "n": 4, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with stopped(engine):
            connection, _ = client.open(PATH, body)
            until(lambda: len(engine.model.thread._coming) == 4)
            talk = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9}
            answers = [client.ask(PATH, body), client.ask("/v1/messages", talk)]
        for answer in answers:
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "queue_full")
        assert answers[1].json["type"] == "error"
        connection.close()
        until(lambda: sum(engine.metrics.snapshot().finished.values()) == 4)
        assert client.ask(PATH, {**body, "n": 1, "max_tokens": 4}).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"prompt": PROMPT, "max_tokens": 450}),
        (PATH, {"prompt": PROMPT, "max_tokens": 450, "n": 3}),
        ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/responses", {"input": PROMPT}),
    ],
)
def test_a_client_that_goes_away_ends_its_request(
    client: Client, path: str, body: dict[str, Any], stream: bool
) -> None:
    engine = client.hosted.ready()
    before = engine.metrics.snapshot()
    connection = client.begin(path, {**body, "ignore_eos": True, "stream": stream})
    until(lambda: engine.metrics.snapshot().generation_tokens > before.generation_tokens)
    connection.close()
    ended = before.finished.get("cancelled", 0) + body.get("n", 1)
    until(lambda: engine.metrics.snapshot().finished.get("cancelled", 0) == ended)
    assert engine.metrics.snapshot().finished.get("length") == before.finished.get("length")
    engine.model.check_integrity()


def test_a_client_that_goes_away_while_its_prompt_waits(client: Client) -> None:
    engine = client.hosted.ready()
    before = engine.metrics.snapshot().finished.get("cancelled", 0)
    with stopped(engine):
        connection = client.begin(PATH, {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True})
        until(lambda: engine.model.thread._inbox.qsize() > 0)
        connection.close()
    until(lambda: engine.metrics.snapshot().finished.get("cancelled", 0) == before + 1)


def test_an_error_in_the_middle_of_a_stream_is_an_event(client: Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
    *_, last, done, _ = client.failed_stream(PATH, body, b"data: ").split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


def test_pings_while_nothing_comes() -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    with serving(engine, ping_seconds=0.02) as client:
        with stopped(engine):
            connection, response = client.open(PATH, {"prompt": PROMPT, "max_tokens": 2, "stream": True})
            assert [response.readline() for _ in range(4)] == [b": ping\n", b"\n", b": ping\n", b"\n"]
        rest = response.read().decode()
        connection.close()
        assert rest.endswith("data: [DONE]\n\n")


def test_samplers_are_checked_by_the_library(client: Client) -> None:
    defaults = SamplerConfig()
    body = {"prompt": PROMPT, "max_tokens": 6, "seed": 1}
    named = {name: getattr(defaults, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    texts = {client.ask(PATH, {**body, **more}).choice["text"] for more in ({}, named)}
    assert len(texts) == 1


def test_the_servers_number_of_tokens_is_for_requests_that_do_not_say() -> None:
    with serving(demo.STORY, max_tokens=3) as client:
        for more, n in (({}, 3), ({"max_tokens": 5}, 5)):
            said = client.ask("/v1/completions", {"prompt": "Once", "ignore_eos": True, **more}).json
            assert said["usage"]["completion_tokens"] == n


def test_the_name_of_a_token_that_is_no_text_by_itself() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    with serving(engine) as client:
        euro = engine.tokenizer.encode("\u20ac", add_special=False)
        names = [token_name(engine.tokenizer, token) for token in euro]
        assert len(euro) > 1 and names[0].startswith("bytes:\\xe2")
        body = {"prompt": [euro], "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
        told = client.ask(PATH, body).choice["logprobs"]["tokens"]
        assert told[-len(euro) - 1 : -1] == names
