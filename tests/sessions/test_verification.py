"""Verification finds whatever was changed in a receipt, and at which token.

What the changed receipt claims is generated too, with its logits kept: verification must find the first row
or token that is another one there.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import (
    Completion,
    ConfigError,
    GrammarError,
    Receipt,
    ReceiptError,
    SamplerConfig,
    Verification,
    demo,
    quantize_model,
    verify_batch,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.sessions.receipt import AdapterUse
from oxillama.sessions.verification import positions_of
from tests.sessions.test_receipts import receipt_of
from tests.support.adapters import activated_adapter

PROMPT = demo.PROMPTS[0]
GRAMMAR = "root ::= [A-Za-z ,.'\\n]+"
OPTIONS: dict[str, Any] = {
    "temperature": 1.1, "seed": 7, "grammar": GRAMMAR, "max_tokens": 30, "repetition_penalty": 1.2,
    "adapters": [(demo.PIRATE, 0.5)],
}  # fmt: skip


@pytest.fixture(scope="module")
def truth(engine: InferenceEngine) -> Completion:
    return engine.stream(PROMPT, receipt=True, **OPTIONS).result()


@pytest.fixture(scope="module")
def receipt(truth: Completion) -> Receipt:
    assert truth.receipt is not None
    assert truth.finish_reason == "length"
    assert len(truth.tokens) == 30
    return truth.receipt


def checked(engine: InferenceEngine, receipt: Receipt, **fields: Any) -> Verification:
    return engine.verify(dataclasses.replace(receipt, **fields).to_json(), adapters=demo.PIRATE)


def difference(engine: InferenceEngine, receipt: Receipt, **fields: Any) -> tuple[str, int | None]:
    """Cause and place of the first difference of a receipt with changed fields."""
    found = checked(engine, receipt, **fields)
    return found.cause, found.at


def expected(engine: InferenceEngine, receipt: Receipt, **changes: Any) -> tuple[str, int]:
    """Cause and place of the first difference, by generating with the changed options."""
    options = {"receipt": True, **OPTIONS, **changes}
    other = engine.stream(options.pop("prompt", receipt.prompt), **options).result().receipt
    assert other is not None
    for i, (points, tokens) in enumerate(
        zip(zip(receipt.points, other.points), zip(receipt.tokens, other.tokens))
    ):
        if len(set(points)) > 1:
            return "logits", i
        if len(set(tokens)) > 1:
            return "token", i
    raise AssertionError("nothing differs")


def sampler_with(receipt: Receipt, **fields: Any) -> dict[str, Any]:
    return {**receipt.sampler, **fields}


def test_the_truth_is_verified(engine: InferenceEngine, truth: Completion, receipt: Receipt) -> None:
    found = checked(engine, receipt)
    assert found == Verification(30, "", None, "verified: 30 tokens", truth.text)
    assert found.verified
    assert found


@pytest.mark.parametrize("at", [0, 1, 13, 29])
def test_a_token(engine: InferenceEngine, receipt: Receipt, at: int) -> None:
    tokens = receipt.tokens.copy()
    tokens[at] ^= 1
    found = checked(engine, receipt, tokens=tokens)
    assert (found.cause, found.at, found.verified) == ("token", at, False)
    assert found.message == f"token {at}: expected {tokens[at]}, the sampler chooses {receipt.tokens[at]}"
    assert found.text == engine.detokenize([*receipt.prompt, *receipt.tokens[:at]])[len(PROMPT) :]


@pytest.mark.parametrize("token", [1024, 2**31 - 1])
def test_a_token_that_is_none(engine: InferenceEngine, receipt: Receipt, token: int) -> None:
    for at in (0, 13, 29):
        tokens = [*receipt.tokens[:at], token, *receipt.tokens[at + 1 :]]
        assert difference(engine, receipt, tokens=tokens) == ("token", at)


CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 8},
    "temperature": {"temperature": 2.0},
    "top_k": {"top_k": 2},
    "repetition_penalty": {"repetition_penalty": 1.0},
    "order": {"order": [*SamplerConfig().order[::-1]]},
    "biases": {"logit_bias": [[15, 9.0]]},
    "xtc": {"xtc_probability": 0.9, "xtc_threshold": 0.01},
}


@pytest.mark.parametrize("fields", CHANGES.values(), ids=CHANGES)
def test_an_option_of_the_sampler(engine: InferenceEngine, receipt: Receipt, fields: dict[str, Any]) -> None:
    found = checked(engine, receipt, sampler=sampler_with(receipt, **fields))
    wanted = {name: dict(value) if name == "logit_bias" else value for name, value in fields.items()}
    assert (found.cause, found.at) == expected(engine, receipt, **wanted)
    assert found.cause == "token"


def test_a_grammar_left_out(engine: InferenceEngine) -> None:
    options = {**OPTIONS, "grammar": "root ::= [a-f ]+"}
    receipt = receipt_of(engine, PROMPT, **options)
    without = sampler_with(receipt, grammar=None)
    other = expected(engine, receipt, grammar=None)
    assert difference(engine, receipt, sampler=without, grammar=None) == other
    wrong: list[dict[str, Any]] = [{"sampler": sampler_with(receipt, grammar=GRAMMAR)}, {"sampler": without}]
    for fields in (*wrong, {"grammar": "00" * 32}, {"grammar": None}):
        with pytest.raises(ReceiptError, match="grammar: expected the hash"):
            checked(engine, receipt, **fields)


def test_a_grammar_that_allows_no_token_of_the_text(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, PROMPT, temperature=0, max_tokens=9)
    claimed = engine.stream(PROMPT, receipt=True, temperature=0, max_tokens=9, grammar='root ::= "Q"')
    other = claimed.result().receipt
    assert other is not None
    assert difference(engine, receipt, sampler=other.sampler, grammar=other.grammar) == ("token", 0)


@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_token_of_the_prompt(engine: InferenceEngine, receipt: Receipt, at: int) -> None:
    prompt = receipt.prompt.copy()
    prompt[at] ^= 3
    found = checked(engine, receipt, prompt=prompt)
    assert (found.cause, found.at) == expected(engine, receipt, prompt=prompt) == ("logits", 0)
    assert found.message == "token 0: the logits differ from here on"
    with pytest.raises(ReceiptError, match="prompt: expected token ids below 1024, got 1024"):
        checked(engine, receipt, prompt=[*prompt, 1024])


def test_adapters(engine: InferenceEngine, receipt: Receipt, tmp_path: Path) -> None:
    (use,) = receipt.adapters
    assert expected(engine, receipt, adapters=()) == ("logits", 0)
    for adapters in ((), (dataclasses.replace(use, scale=0.5000001),), (use, use)):
        assert difference(engine, receipt, adapters=adapters) == ("logits", 0)
    for wrong in (dataclasses.replace(use, scale=0.0), dataclasses.replace(use, start=1)):
        found = checked(engine, receipt, adapters=(wrong,))
        assert (found.cause, found.at) == ("adapters", 0)
        assert "would not apply from where" in found.message
    found = engine.verify(receipt)
    assert (found.cause, found.at) == ("adapters", 0)
    assert found.message == f"another adapter: expected {use.fingerprint}, got none"
    found = checked(engine, receipt, adapters=(AdapterUse("00" * 32, 1.0, 0),))
    assert found.message == f"another adapter: expected {'00' * 32}, got {use.fingerprint}"


def test_where_an_activated_adapter_begins(engine: InferenceEngine, tmp_path: Path) -> None:
    invocation = engine.tokenize(" a little", add_special=False)
    path = activated_adapter(tmp_path / "activated.gguf", invocation)
    receipt = receipt_of(engine, PROMPT, **{**OPTIONS, "adapters": path})
    (use,) = receipt.adapters
    assert 0 < use.start < len(receipt.prompt)
    assert engine.verify(receipt, adapters=path)
    for wrong in ((dataclasses.replace(use, start=0),), ()):
        found = engine.verify(dataclasses.replace(receipt, adapters=wrong), adapters=path)
        assert (found.cause, found.at) == ("adapters" if wrong else "logits", 0)


def test_another_kv_type(receipt: Receipt) -> None:
    """Than stated: the engine that the receipt asks for gives other logits."""
    told = dataclasses.replace(receipt, kv_type="q8_0")
    with InferenceEngine.from_gguf(demo.STORY, **told.engine_options) as other:
        found = other.verify(told, adapters=demo.PIRATE)
        assert (found.cause, found.at) == expected(other, receipt)
        with pytest.raises(ConfigError, match="kv_type: expected f16 as in the receipt, got q8_0"):
            other.verify(receipt)


def test_another_model(engine: InferenceEngine, receipt: Receipt, tmp_path: Path) -> None:
    quantize_model(demo.STORY, tmp_path / "smaller.gguf", "Q4_K_M", allow_requantize=True)
    with InferenceEngine.from_gguf(tmp_path / "smaller.gguf") as other:
        found = other.verify(receipt, adapters=demo.PIRATE)
        assert (found.cause, found.at) == ("model", 0)
        mine = other.model.fingerprint.content.hex()
        assert found.message == f"another model: expected {receipt.model}, got {mine}"
        claimed = dataclasses.replace(receipt, model=mine)  # the receipt claims this model
        found = other.verify(claimed, adapters=demo.PIRATE)
        assert (found.cause, found.at) == expected(other, receipt) == ("logits", 0)
    with InferenceEngine.from_gguf(demo.STORY, quantize="Q4_K") as other:
        with pytest.raises(ConfigError, match="quantize: expected None as in the receipt, got Q4_K"):
            other.verify(receipt)
        claimed = dataclasses.replace(receipt, quantize="Q4_K")
        assert other.verify(claimed, adapters=demo.PIRATE), "its matrices are quantized already"


@pytest.mark.parametrize("n", [0, 1, 29])
def test_a_text_that_was_cut(engine: InferenceEngine, receipt: Receipt, n: int) -> None:
    cut = {"tokens": receipt.tokens[:n], "points": receipt.points[:n]}
    found = checked(engine, receipt, **cut)
    if n:  # its last link is not known
        assert (found.cause, found.at) == ("logits", n - 1)
        link = last_link(engine, receipt, n)
        found = checked(engine, receipt, **cut, chain=link)
        assert (found.cause, found.at) == ("end", n)
        assert found.message == f"token {n}: expected the end (length), the text goes on"
        assert checked(engine, receipt, **cut, chain=link, finish_reason="stop").at == n
        assert checked(engine, receipt, **cut, chain=link, finish_reason="cancelled")
    else:
        assert (found.cause, found.at) == ("logits", 0)


def last_link(engine: InferenceEngine, receipt: Receipt, n: int) -> str:
    """The last link of the first ``n`` tokens."""
    other = receipt_of(engine, receipt.prompt, **{**OPTIONS, "max_tokens": n})
    return other.chain


def test_a_text_that_was_lengthened(engine: InferenceEngine, receipt: Receipt) -> None:
    longer = receipt_of(engine, receipt.prompt, **{**OPTIONS, "max_tokens": 33})
    with pytest.raises(ReceiptError, match="tokens: expected 0 to 30 token ids, got 33"):
        dataclasses.replace(longer, max_tokens=30)
    for stop in (["QZX"], [engine.detokenize(longer.tokens)[-12:-8]]):
        found = checked(engine, longer, stop=stop)
        assert found.verified == (stop == ["QZX"])
    assert found.cause == "end"
    assert found.at is not None
    stopped = engine.stream(receipt.prompt, stop=stop, **{**OPTIONS, "max_tokens": 33}).result()
    assert (found.at, found.text) == (len(stopped.tokens), stopped.text)
    assert found.message == f"token {found.at}: the text should have ended before it (stop)"


def test_a_text_behind_the_token_that_ends_it(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, PROMPT, temperature=0, max_tokens=None)
    assert receipt.finish_reason == "stop"
    longer = {"tokens": [*receipt.tokens, 5], "points": [*receipt.points, "00000000"]}
    found = checked(engine, receipt, **longer)
    assert (found.cause, found.at) == ("end", len(receipt.tokens))
    assert found.message == f"token {found.at}: the text should have ended before it (stop)"
    found = checked(engine, receipt, finish_reason="length")
    assert (found.cause, found.at) == ("end", len(receipt.tokens))
    assert found.message.endswith("expected the end (length), the text ends with stop")


@pytest.mark.parametrize("at", [0, 13, 29])
def test_a_link_of_the_chain(engine: InferenceEngine, receipt: Receipt, at: int) -> None:
    points = [*receipt.points[:at], f"{int(receipt.points[at], 16) ^ 1:08x}", *receipt.points[at + 1 :]]
    assert difference(engine, receipt, points=points) == ("logits", at)
    if at == 29:
        last = receipt.chain[:-1] + ("1" if receipt.chain[-1] == "0" else "0")
        assert difference(engine, receipt, chain=last) == ("logits", at)


def test_the_chain_of_no_tokens(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, PROMPT, max_tokens=0)
    assert engine.verify(receipt)
    assert difference(engine, receipt, chain="00" * 32) == ("logits", 0)
    assert difference(engine, receipt, max_tokens=5) == ("end", 0)


def test_another_version_is_told(engine: InferenceEngine, receipt: Receipt) -> None:
    assert checked(engine, receipt, library="0.0.1").message == "verified: 30 tokens"
    found = checked(engine, receipt, library="0.0.1", points=["00000000"] * 30)
    assert "(oxillama 0.0.1 made the receipt, this is " in found.message


def test_nothing_is_run_behind_the_first_difference(
    engine: InferenceEngine, receipt: Receipt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxillama.sessions.verification.LOGIT_BYTES", 4 * 4 * engine.model.spec.n_vocab)
    rows: list[int] = []
    forward = type(engine.model.runner).forward

    def counted(self: Any, *args: Any) -> np.ndarray:
        found = forward(self, *args)
        rows.append(len(found))
        return found

    monkeypatch.setattr(type(engine.model.runner), "forward", counted)
    points = [*receipt.points[:5], "00000000", *receipt.points[6:]]
    assert checked(engine, receipt, points=points).at == 5
    assert rows == [1, 4, 4]
    engine.model.check_integrity()


def test_what_is_no_receipt(engine: InferenceEngine, receipt: Receipt) -> None:
    with pytest.raises(ReceiptError, match="expected JSON text, got NoneType"):
        engine.verify(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="top_k: expected an integer"):
        checked(engine, receipt, sampler=sampler_with(receipt, top_k="x"))
    with pytest.raises(ConfigError, match="'topk': no such field"):
        checked(engine, receipt, sampler=sampler_with(receipt, topk=1))
    with pytest.raises(ReceiptError, match="seed: expected an integer"):
        checked(engine, receipt, sampler=sampler_with(receipt, seed=None))
    malformed = sampler_with(receipt, grammar="root ::= (")
    with pytest.raises((GrammarError, ReceiptError)):
        checked(engine, receipt, sampler=malformed)


def test_a_context_that_is_too_small(receipt: Receipt) -> None:
    n = len(receipt.prompt) + len(receipt.tokens) - 1
    with InferenceEngine.from_gguf(demo.STORY, context_size=n) as exact:
        assert exact.verify(receipt, adapters=demo.PIRATE)
    with (
        InferenceEngine.from_gguf(demo.STORY, context_size=n - 1) as small,
        pytest.raises(ConfigError, match=f"context_size: expected at least {n} for the receipt"),
    ):
        small.verify(receipt, adapters=demo.PIRATE)


def test_receipts_are_small(receipt: Receipt) -> None:
    more = json.dumps({"tokens": receipt.tokens, "points": receipt.points, "prompt": receipt.prompt})
    assert len(receipt.to_json()) < 2500 + len(more)


def test_an_option_under_which_the_same_text_follows(engine: InferenceEngine, receipt: Receipt) -> None:
    """The changed receipt is as true as the other."""
    assert checked(engine, receipt, sampler=sampler_with(receipt, temperature=1.1000001))
    assert checked(engine, receipt, stop=["QZX"], max_tokens=30, context_size=511)


# --- many receipts, and samples of tokens -----------------------------------------------------------------


@pytest.fixture(scope="module")
def receipts(engine: InferenceEngine) -> list[Receipt]:
    """Receipts of texts with penalties, grammars, mirostat, greedy sampling, and stops."""
    kinds: list[dict[str, Any]] = [
        {"seed": 1, "repetition_penalty": 1.3, "dry_multiplier": 0.8},
        {"temperature": 0}, {"seed": 2, "mirostat": 2, "temperature": 1.0},
        {"seed": 3, "grammar": GRAMMAR}, {"seed": 4, "min_tokens": 5, "xtc_probability": 0.5},
    ]  # fmt: skip
    texts = [engine.stream(PROMPT, receipt=True, max_tokens=20 + i, **kind) for i, kind in enumerate(kinds)]
    made = [text.result().receipt for text in texts]
    return [receipt for receipt in made if receipt is not None]


def test_a_batch_is_as_each_alone(engine: InferenceEngine, receipts: list[Receipt]) -> None:
    assert len(receipts) == 5
    wrong = [
        dataclasses.replace(receipt, tokens=[*receipt.tokens[:7], receipt.tokens[7] ^ 1, *receipt.tokens[8:]])
        for receipt in receipts
    ]
    both = [*receipts, *wrong]
    alone = [engine.verify(receipt) for receipt in both]
    assert [found.verified for found in alone] == [True] * 5 + [False] * 5
    assert [found.at for found in alone[5:]] == [7] * 5
    assert verify_batch(engine, both) == alone
    assert verify_batch(engine, [receipt.to_json() for receipt in both]) == alone
    assert verify_batch(engine, []) == []
    engine.model.check_integrity()
    assert engine.model.loop.held == {}


def test_errors_in_a_batch(engine: InferenceEngine, receipts: list[Receipt]) -> None:
    hostile: list[Any] = [
        receipts[0], "{", b"\xff", None, '{"format": "oxillama receipt"}',
        dataclasses.replace(receipts[1], prompt=[2**31 - 1]), receipts[2],
        dataclasses.replace(receipts[3], sampler={**receipts[3].sampler, "grammar": "root ::= ("}),
    ]  # fmt: skip
    found = verify_batch(engine, hostile, return_exceptions=True)
    assert [bool(one) for one in (found[0], found[6])] == [True, True]
    assert all(isinstance(found[i], ReceiptError) for i in (1, 2, 3, 4, 5))
    assert isinstance(found[7], (ReceiptError, GrammarError))
    with pytest.raises(ReceiptError):
        verify_batch(engine, hostile)
    with pytest.raises(ConfigError, match="receipts: "):
        verify_batch(engine, "{}")
    engine.model.check_integrity()
    assert engine.model.loop.held == {}


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_sample_finds_a_change_at_its_positions_alone(
    engine: InferenceEngine, receipts: list[Receipt], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers, penalties and grammars of a sample are those of a full verification."""
    for receipt in (receipts[0], receipts[1], receipts[3], receipts[4]):
        n = len(receipt.tokens)
        other = next(
            token
            for token in range(40, 400)
            if token != receipt.tokens[at] and engine.detokenize([token]).strip().isalpha()
        )
        tokens = [*receipt.tokens[:at], other, *receipt.tokens[at + 1 :]]
        changed = dataclasses.replace(receipt, tokens=tokens)
        for positions in ({at}, set(range(n)) - {at}, {0, n - 1, at}):
            chosen = frozenset(positions)
            monkeypatch.setattr("oxillama.sessions.verification.positions_of", lambda *_: chosen)  # noqa: B023
            true = engine.verify(receipt, sample=len(chosen))
            assert (true.cause, true.n_checked) == ("", len(chosen))
            found = engine.verify(changed, sample=len(chosen))
            assert (found.cause, found.at) == ("token", at) or at not in chosen
    engine.model.check_integrity()


def test_what_a_sample_does_not_look_at(
    engine: InferenceEngine, receipts: list[Receipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = receipts[0]
    monkeypatch.setattr("oxillama.sessions.verification.positions_of", lambda *_: frozenset({3}))
    tokens = [*receipt.tokens[:-1], receipt.tokens[-1] ^ 1]
    missed = engine.verify(dataclasses.replace(receipt, tokens=tokens), sample=1)
    assert missed.verified
    assert missed.missed() == pytest.approx(19 / 20)
    none = [*receipt.tokens[:9], 2**31 - 1, *receipt.tokens[10:]]
    found = engine.verify(dataclasses.replace(receipt, tokens=none), sample=1)
    assert (found.cause, found.at) == ("token", 9)
    cut = {"tokens": receipt.tokens[:9], "points": receipt.points[:9]}
    found = engine.verify(dataclasses.replace(receipt, **cut), sample=1)
    assert (found.cause, found.at) == ("end", 9)


def test_positions_of_a_sample(engine: InferenceEngine, receipts: list[Receipt]) -> None:
    drawn = [positions_of(100, 10) for _ in range(200)]
    assert all(positions is not None and len(positions) == 10 for positions in drawn)
    assert frozenset().union(*(p for p in drawn if p is not None)) == frozenset(range(100))
    assert positions_of(10, 10) is None and positions_of(0, 1) is None
    found = engine.verify(receipts[0], sample=5)
    said = "verified: 5 of 20 tokens; a change of one token is missed with a probability of 0.75"
    assert (found.message, found.missed(20), found.missed(0)) == (said, 0.0, 1.0)
    assert found.missed(2) == pytest.approx(15 / 20 * 14 / 19)
    whole = engine.verify(receipts[0], sample=20)
    assert (whole.n_checked, whole.missed()) == (None, 0.0)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="sample: expected"):
            engine.verify(receipts[0], sample=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sample: cannot be combined with mirostat"):
        engine.verify(receipts[2], sample=5)
