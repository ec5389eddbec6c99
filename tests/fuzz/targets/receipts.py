"""Receipts: JSON that is none, and receipts that say what cannot be or is not so."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

from oxillama import Receipt
from tests.fuzz.harness import Target
from tests.fuzz.mutate import INTEGERS, SkipInput, built, mutated
from tests.fuzz.targets.calls import engine

OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.2, "stop": ["q", "the "], "dry_multiplier": 0.8, "logit_bias": {20: 1.5}},
    {"grammar": "root ::= [a-z]+", "mirostat": 2, "temperature": 1.0},
    {"json_schema": {"type": "array", "items": {"enum": [1, "a"]}}, "repetition_penalty": 1.5},
    {"choices": ("abc", "abd"), "min_tokens": 2, "xtc_probability": 0.5},
)
VALUES = [*INTEGERS, "stop", "length", "cancelled", "f32", "Q8_0", "00" * 32, "00000000", 8, 300]


@functools.cache
def receipts() -> list[Any]:
    """True receipts, as JSON objects."""
    done = [
        engine().stream([5, 9, 3], receipt=True, seed=1, max_tokens=8, **fields).result()
        for fields in OPTIONS
    ]
    return [json.loads(one.receipt.to_json()) for one in done if one.receipt is not None]


class ReceiptTarget(Target):
    name = "receipt"
    per_run = 300

    def seeds(self) -> list[Any]:
        return [{"json": receipt} for receipt in receipts()]

    def mutate(self, value: Any, rng: Random) -> Any:
        receipt = value.get("json")
        if not isinstance(receipt, dict) or not receipt or rng.random() < 0.05:
            text = value.get("text") or json.dumps(receipt)
            at = rng.randrange(len(text) + 1)
            put = rng.choice(["", "{", "[" * 3000, '"', "1e999", "\0", "\u00e9"])
            return {"text": text[:at] + put + text[at + 1 :]}
        name = rng.choice([*receipt, "sampler", "sampler"])
        return {"json": part_mutated(receipt, name, rng, receipts())}

    def run(self, value: Any) -> None:
        try:
            text = value["text"] if "text" in value else json.dumps(built(value.get("json")))
        except (TypeError, ValueError, RecursionError):
            raise SkipInput from None
        if not isinstance(text, str):
            raise SkipInput
        receipt = Receipt.from_json(text)
        assert Receipt.from_json(receipt.to_json()) == receipt
        try:
            found = engine().verify(receipt)
        finally:
            engine().check_integrity()
        assert found.verified == (found.at is None) == (found.cause == "")
        assert found.at is None or 0 <= found.at <= len(receipt.tokens)
        sampled = engine().verify(receipt, sample=3)
        assert sampled.verified or not found.verified


def part_mutated(value: dict[str, Any], name: str, rng: Random, donors: list[Any]) -> dict[str, Any]:
    """The object with another value for one key, or without it; of the sampler's, for one of its options."""
    part = value.get(name)
    others = [donor[name] for donor in donors if name in donor]
    if name == "sampler" and isinstance(part, dict) and part:
        changed = {name: part_mutated(part, rng.choice(list(part)), rng, others)}
    else:
        changed = mutated({name: part}, rng, values=VALUES, donors=[{name: other} for other in others])
    rest = {key: item for key, item in value.items() if key != name}
    return {**rest, **changed} if isinstance(changed, dict) else rest
