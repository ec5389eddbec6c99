"""Where a text ends: at a stop string that is a special token, with its grammar, inside a character."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oxillama import BeamSearchConfig, InferenceEngine, demo
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.verification import verify
from tests.support.tiny_file import END_OF_TURN, TURN, write_tiny_model

ASK = [{"role": "user", "content": "hello"}]
PROMPT = "once upon"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", ends=False)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(model, num_threads=1) as found:
        yield found


# --- a stop string that is a special token ----------------------------------------------------------
def turning(engine: InferenceEngine) -> dict[str, Any]:
    """Options with which a text has the special token that begins a turn, after some others."""
    token = engine.tokenizer.vocab.ids[TURN]
    for bias, seed in product(range(5, 100, 3), range(3)):
        options = {"logit_bias": {token: float(bias)}, "seed": seed, "max_tokens": 30, "temperature": 2.0}
        tokens = engine.stream(PROMPT, **options).result().tokens
        if token in tokens[3:] and token not in tokens[:3]:
            return options
    raise AssertionError("no text has the token")


@pytest.mark.parametrize("stop", [TURN, [TURN], ["never", TURN, "<|other|>"], [TURN + "x", TURN]])
def test_a_text_ends_at_a_special_token(engine: InferenceEngine, stop: Any) -> None:
    options, token = turning(engine), engine.tokenizer.vocab.ids[TURN]
    free = engine.stream(PROMPT, **options).result()
    n = free.tokens.index(token)
    for more in ({}, {"logprobs": True}, {"speculate": "lookup"}, {"window": 1}):
        generation = engine.stream(PROMPT, stop=stop, **options, **more)
        text = "".join(generation)
        assert generation.tokens == free.tokens[: n + 1]
        assert text == engine.tokenizer.decode(free.tokens[:n], continuing=True)
        assert (generation.finish_reason, generation.stop_string) == ("stop", TURN)
    assert engine.generate(PROMPT, stop=stop, **options) == text
    assert engine.generate_batch([PROMPT] * 2, stop=stop, **options) == [text] * 2
    assert engine.generate_n(PROMPT, n=1, stop=stop, **options)[0].text == text


def test_a_chat_ends_at_a_special_token(engine: InferenceEngine) -> None:
    token = engine.tokenizer.vocab.ids[TURN]
    options: dict[str, Any] = {"logit_bias": {token: 60.0}, "max_tokens": 9, "temperature": 0}
    assert len(engine.stream_chat(ASK, **options).result().tokens) == 9
    for form in (None, "qwen-xml", "harmony"):
        generation = engine.stream_chat(ASK, stop=TURN, message_format=form, **options)
        done = generation.result()
        assert (done.text, done.finish_reason, len(done.tokens)) == ("", "stop", 1)
        assert generation.stop_string == TURN


def test_an_end_of_generation_may_be_a_stop_string(engine: InferenceEngine) -> None:
    options: dict[str, Any] = {
        "logit_bias": {engine.tokenizer.vocab.ids[END_OF_TURN]: 60.0},
        "temperature": 0,
    }
    for stop, found in ((END_OF_TURN, END_OF_TURN), ("x" * 9, None)):
        generation = engine.stream(PROMPT, stop=stop, **options)
        assert (generation.result().finish_reason, generation.stop_string) == ("stop", found)


def test_the_name_of_a_special_token_may_be_spelled(engine: InferenceEngine) -> None:
    """As text it ends the text, too."""
    done = engine.stream(PROMPT, stop=TURN, regex=f"ab{re.escape(TURN)}cd", temperature=0).result()
    assert (done.text, done.finish_reason) == ("ab", "stop")


def test_receipts_and_snapshots_of_texts_that_end_at_a_special_token(
    engine: InferenceEngine, model: Path
) -> None:
    options = turning(engine)
    done = engine.stream(PROMPT, stop=TURN, receipt=True, **options).result()
    assert done.receipt is not None and engine.verify(done.receipt)
    with ModelFile.open(model) as file:
        assert verify(file, done.receipt)
    generation = engine.stream(PROMPT, stop=TURN, window=1, **options)
    next(generation)
    assert engine.restore(generation.snapshot()).result().tokens == done.tokens  # type: ignore[union-attr]


# --- a grammar whose text is finished ---------------------------------------------------------------
FINITE: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": {"enum": ["high", "low"]}}, '"(high|low)"'),
    ({"choices": ["high", "low"]}, "high|low"),
    ({"regex": "x{3}"}, "xxx"),
    ({"grammar": 'root ::= "x" "y"?'}, "xy?"),
    ({"structural_tag": {"format": {"type": "const_string", "value": "xy"}}}, "xy"),
]


KEPT_UP: list[dict[str, Any]] = [{"ignore_eos": True}, {"min_tokens": 30}]
KEPT_UP += [{"min_tokens": 1, "ignore_eos": True}]


@pytest.mark.parametrize("more", KEPT_UP)
@pytest.mark.parametrize("constraint, pattern", FINITE, ids=[next(iter(each)) for each, _ in FINITE])
def test_a_finished_text_ends_whatever_keeps_texts_from_ending(
    constraint: dict[str, Any], pattern: str, more: dict[str, Any]
) -> None:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        for temperature in (0, 1.0):
            options: dict[str, Any] = {**constraint, **more, "temperature": temperature, "seed": 1}
            for extra in ({}, {"logprobs": True}, {"speculate": "lookup"}, {"xtc_probability": 0.5}):
                done = engine.stream("Mia", **options, **extra).result()
                assert re.fullmatch(pattern, done.text) and done.finish_reason == "stop"
            found = engine.generate_batch(["Mia", "Tom"], **options)
            assert all(re.fullmatch(pattern, text) for text in found)


def test_a_text_that_may_go_on_does(engine: InferenceEngine) -> None:
    for more, n in (({"ignore_eos": True}, 40), ({"min_tokens": 12}, 12)):
        options: dict[str, Any] = {"regex": "x{2,}", "max_tokens": 40, "temperature": 0, **more}
        bias = dict.fromkeys(engine.tokenizer.eog_ids, 90.0)
        done = engine.stream(PROMPT, logit_bias=bias, **options).result()
        assert re.fullmatch("x+", done.text) and len(done.tokens) - (done.finish_reason == "stop") == n


@pytest.mark.parametrize("more", KEPT_UP)
def test_receipts_of_finished_texts(more: dict[str, Any]) -> None:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        done = engine.stream("Mia", choices=("high", "low"), receipt=True, **more).result()
        assert done.receipt is not None and engine.verify(done.receipt)
        assert done.text in ("high", "low")
    with ModelFile.open(demo.STORY) as file:
        assert verify(file, done.receipt)


def test_beams_of_finished_texts() -> None:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        beams = engine.beam_search(
            "Mia", BeamSearchConfig(beam_width=2), choices=("high", "low"), ignore_eos=True
        )
        assert len(beams) == 2 and all(beam.tokens[-1] == engine.tokenizer.eos_id for beam in beams)
        assert {engine.tokenizer.decode(beam.tokens, continuing=True) for beam in beams} <= {"high", "low"}


# --- inside a character -----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_text_that_is_cut_inside_a_character_says_so(engine: InferenceEngine, n: int) -> None:
    """The bytes of a character that is not whole are one U+FFFD at the end, as `decode` has it."""
    options: dict[str, Any] = {"choices": ("é€\U0001f600",), "temperature": 0, "max_tokens": n}
    generation = engine.stream(PROMPT, **options)
    text = "".join(generation)
    whole = "é€\U0001f600".encode()[:n].decode(errors="ignore")
    assert text == whole + "\ufffd" * (len(whole.encode()) < n)
    assert text == engine.tokenizer.decode(generation.tokens, continuing=True)
    assert text == engine.generate(PROMPT, **options)
    assert generation.finish_reason == "length"
