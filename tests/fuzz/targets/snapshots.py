"""Snapshots: bytes changed behind the checksums' back, and values that are wrong under good checksums."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from oxillama import EngineConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine import loading
from oxillama.sessions.container import Container, pieces
from oxillama.sessions.snapshot import EngineSnapshot
from tests.fuzz.harness import Target
from tests.fuzz.mutate import FLOATS, INTEGERS, SkipInput, built, mutated, skipping
from tests.fuzz.targets.containers import byte_change
from tests.support.random_use import Few
from tests.support.zoo import MODELS

JSON = ("engine", "options", "request", "notes")
PROMPT = [5, 9, 7, 7, 2, 8]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"seed": 3, "stop": "zz", "speculate": "lookup", "draft_acceptance": "rejection"},
    "mirostat": {"mirostat": 2, "logprobs": True, "top_logprobs": 2, "timeout": 1e4},
    "regex": {"regex": "[a-z ]*", "keep_logits": True},
    "receipt": {"receipt": True, "temperature": 0.9},
}


@functools.cache
def engine_of(model: str) -> InferenceEngine:
    """An engine with a session."""
    engine = InferenceEngine(EngineConfig(num_threads=1, context_size=64, page_size=8))
    if model == "draft":
        engine.load_model_from_bytes(demo.DRAFT.read_bytes())
    else:
        with patch.object(loading, "load_tokenizer", lambda file, config: Few()):
            engine.load_model_from_bytes(MODELS[model].file())
    engine.prefill(PROMPT)
    return engine


def described(model: str, data: bytes) -> dict[str, Any]:
    """A snapshot in parts."""
    parsed = Container.parse(data)
    header = {key: value for key, value in parsed.header.items() if key != "sections"}
    sections: dict[str, Any] = {}
    for name, section in parsed.sections.items():
        stored = bytes(section.stored)
        sections[name] = json.loads(stored) if name in JSON else {"@bytes": stored.hex()}
    return {"model": model, "header": header, "sections": sections, "compress": False, "bytes": []}


def written(value: Any) -> bytes:
    """The bytes of a snapshot in parts, or those that are given as they are."""
    with skipping():
        if "raw" in value:
            return bytes.fromhex(value["raw"])
        contents = {
            name: part if isinstance(part, bytes) else json.dumps(part).encode()
            for name, part in built(value["sections"]).items()
        }
        data = bytearray(b"".join(pieces(built(value["header"]), contents, value["compress"] is True)))
        for at, new in built(value["bytes"]):
            place = int(at) % (len(data) + 1)
            if isinstance(new, int):
                del data[place : place + abs(new)]
            else:
                data[place : place + len(new)] = new
        return bytes(data)


class SnapshotTarget(Target):
    name = "snapshot"
    per_run = 150

    @functools.cached_property
    def _seeds(self) -> list[Any]:
        found = []
        for model, kind, tokens in (
            ("draft", "plain", "Once upon"),
            ("draft", "mirostat", "Once"),
            ("draft", "regex", "Once"),
            ("jamba", "plain", PROMPT),
            ("rwkv7", "mirostat", PROMPT),
        ):
            engine = engine_of(model)
            with engine.stream(tokens, max_tokens=40, window=1, ignore_eos=True, **REQUESTS[kind]) as going:
                next(going)
                found.append(described(model, going.snapshot(notes={"a": [1]})))
            found.append(described(model, engine.snapshot()))
        return found

    def seeds(self) -> list[Any]:
        return self._seeds

    def mutate(self, value: Any, rng: Random) -> Any:
        new = mutated(
            value, rng, values=[*INTEGERS, *FLOATS, "generation", "session"], donors=self.seeds(),
            fixed=("model", "bytes", "compress"),
        )  # fmt: skip
        if rng.random() < 0.25:
            new["bytes"] = [byte_change(rng)]
        new["compress"] = rng.random() < 0.3
        return new

    def run(self, value: Any) -> None:
        data = written(value)
        engine = engine_of(value["model"])
        tokens = engine._own.tokens
        try:
            taken = EngineSnapshot.deserialize(data)
            if taken.kind == "generation":
                with engine.resume_generation(taken, window=2, timeout=20, speculate="lookup") as going:
                    for _ in range(4):
                        next(going, None)
            else:
                with engine.restore_session(taken) as session:
                    if len(session) < 60:
                        assert np.shape(session.prefill(PROMPT[:2])) == (engine.model.spec.n_vocab,)
        except AttributeError as error:
            if value["model"] != "draft" and "Few" in str(error):
                raise SkipInput("a grammar for a tokenizer of tests") from None
            raise
        finally:
            assert engine._own.tokens == tokens
            engine.model.check_integrity()
