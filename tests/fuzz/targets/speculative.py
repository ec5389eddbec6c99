"""Snapshots of two engines (`OXISPEC1`): damaged bytes, and sections that are wrong under good checksums."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any
from zlib import crc32

from oxillama import EngineConfig, SpeculativeConfig, SpeculativeEngine, SpeculativeEngineSnapshot, demo
from oxillama.errors import OxiLlamaError
from oxillama.sessions.container import SPECULATIVE, Container, pieces
from oxillama.sessions.snapshot import EngineSnapshot
from tests.fuzz.harness import Target
from tests.fuzz.mutate import FLOATS, INTEGERS, NONSENSE, SkipInput, built, edited, edits, mutated
from tests.fuzz.targets.snapshots import described, written

RESUMED = 8
"""One of so many inputs makes engines; the others are read, and written again."""
VALUES = [*INTEGERS, *FLOATS, "generation", "session", "engine", "speculative"]


def parts_of(data: bytes) -> dict[str, Any]:
    """A snapshot of two engines in parts."""
    parsed = Container.parse(data, SPECULATIVE)
    header = {key: value for key, value in parsed.header.items() if key != "sections"}
    both = {name: described("draft", bytes(section.stored)) for name, section in parsed.sections.items()}
    return {"header": header, **both, "agrees": False, "edits": []}


def whole(value: Any) -> bytes:
    """The bytes of a snapshot in parts. If it "agrees" the header says what the sections say."""
    try:
        contents = {name: written(value[name]) for name in ("target", "draft") if name in value}
        header = built(value["header"])
        if value["agrees"]:
            both = [EngineSnapshot.deserialize(contents[name]) for name in ("target", "draft")]
            return edited(SpeculativeEngineSnapshot(both[0], both[1], header["num_speculative"]).encode(), [])
        return edited(b"".join(pieces(header, contents, False, SPECULATIVE)), value["edits"])
    except OxiLlamaError as error:
        if not value["agrees"]:
            raise SkipInput(str(error)) from None
        return whole({**value, "agrees": False})
    except NONSENSE as error:
        raise SkipInput(str(error)) from None


class SpeculativeTarget(Target):
    name = "speculative"
    per_run = 80

    @functools.cached_property
    def _seeds(self) -> list[Any]:
        found: list[bytes] = []
        config = EngineConfig(model_path=demo.DRAFT, num_threads=1, context_size=64, page_size=8)
        with SpeculativeEngine(SpeculativeConfig(config, config, num_speculative=3, seed=4)) as engine:
            engine.target.prefill([5, 9, 7])
            found.append(engine.snapshot())
            engine.generate(
                "Once", 30, lambda piece: found.append(engine.snapshot()) if len(found) < 2 else None
            )
        return [parts_of(data) for data in found]

    def seeds(self) -> list[Any]:
        return self._seeds

    def mutate(self, value: Any, rng: Random) -> Any:
        if rng.random() < 0.2:
            return {**value, "edits": [*value["edits"], *edits(rng)]}
        fixed = ("edits", "agrees", *rng.choice([(), ("header",), ("header", "draft")]))
        new = mutated(value, rng, values=VALUES, donors=self.seeds(), fixed=fixed)
        new["agrees"] = rng.random() < 0.6
        return new

    def run(self, value: Any) -> None:
        data = whole(value)
        taken = SpeculativeEngineSnapshot.decode(data)
        again = SpeculativeEngineSnapshot.decode(taken.encode())
        assert again.header == taken.header and again.fingerprint() == taken.fingerprint()
        assert (again.target.tokens == taken.target.tokens).all() and not len(taken.draft.tokens)
        assert taken.accepted_tokens >= 0
        if crc32(data) % RESUMED or not is_harmless(taken):
            return
        with SpeculativeEngine.resume(data, demo.DRAFT, demo.DRAFT) as engine:
            text = engine.generate("Once", 4) if taken.target.kind == "engine" else engine.finish()
            assert isinstance(text, str)
            engine.target.check_integrity()


def is_harmless(taken: SpeculativeEngineSnapshot) -> bool:
    """Whether the options name no files and folders, which engines would read and write."""
    options = json.dumps([taken.target.engine, taken.draft.engine])
    return not any(sign in options for sign in ("..", "/", "\\\\"))
