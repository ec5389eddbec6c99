"""LoRA adapters: files that are none, and those that do not fit the model they are applied to."""

from __future__ import annotations

import functools
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np

from oxillama.engine.sequence import Sequence
from oxillama.models.adapters.bind import bind
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied
from tests.fuzz.harness import Target
from tests.fuzz.mutate import INTEGERS, SkipInput, mutated
from tests.fuzz.targets.containers import KINDS, TYPE_IDS, byte_change, container
from tests.support.tiny_models import Running
from tests.support.zoo import MODELS

NAMES = ("llama", "qwen3moe", "deepseek2", "jamba")


@functools.cache
def running(name: str) -> Running:
    return Running(MODELS[name].file())


def valid(name: str) -> dict[str, Any]:
    """An adapter of rank 2 for some matrices of a model, as `container` takes it."""
    tensors: list[Any] = []
    for base, values in MODELS[name].tensors().items():
        if values.ndim >= 2 and ("attn_q" in base or "ffn_down" in base or base == "token_embd.weight"):
            *experts, rows, cols = values.shape
            a, b = ([cols, 2, *experts], [2, rows, *experts])
            if base == "token_embd.weight":
                a, b = [2, rows], [2, cols]
            for part, shape in (("a", a), ("b", b)):
                tensors.append([f"{base}.lora_{part}", shape, 0, 4 * int(np.prod(shape)), None])
    metadata = [
        ["general.type", "str", "adapter"],
        ["general.architecture", "str", name],
        ["adapter.type", "str", "lora"],
        ["adapter.lora.alpha", "f32", 4.0],
        ["adapter.alora.invocation_tokens", "[u32]", [1, 2]],
    ]
    return {"model": name, "scale": 1.5, "gguf": {"metadata": metadata, "tensors": tensors}}


class AdapterTarget(Target):
    name = "adapter"
    per_run = 100

    def seeds(self) -> list[Any]:
        return [valid(name) for name in NAMES]

    def mutate(self, value: Any, rng: Random) -> Any:
        for _ in range(20):
            new = mutated(value, rng, values=[*INTEGERS, *KINDS, *TYPE_IDS, 2, 32, 48], donors=self.seeds())
            if rng.random() < 0.4 and isinstance(new.get("gguf"), dict):
                new["gguf"]["bytes"] = [byte_change(rng)]
            with suppress(SkipInput):
                self._data(new)
                return new
        return value

    def _data(self, value: Any) -> bytes:
        if not isinstance(value.get("gguf"), dict) or value.get("model") not in NAMES:
            raise SkipInput("no adapter")
        return container(value["gguf"])

    def run(self, value: Any) -> None:
        data, at = self._data(value), running(value["model"])
        lora = LoadedLora.load(data)
        adapter = bind(lora, at.model)
        scale = value.get("scale")
        scale = float(scale) if isinstance(scale, (int, float)) and abs(scale) < 1e9 else 1.0
        sequence = Sequence(at.pool, [1, 2, 3], adapters=Adaptation([Applied(lora, adapter, scale, 1)]))
        with np.errstate(all="ignore"):
            rows = at.runner.forward([(sequence, 3)], all_logits=True)
        assert rows.shape == (3, at.model.spec.n_vocab)
        sequence.release()
