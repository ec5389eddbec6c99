"""An engine gives back its memory, threads and descriptors, whatever its options are."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from oxillama import EngineConfig, InferenceEngine, SamplerConfig, SchedulerConfig, demo
from oxillama.base.config.option import declared
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights import nodes
from tests.support.media import projector_file
from tests.support.spread import each
from tests.support.waiting import until

PROMPT = [5 + i % 200 for i in range(150)]

OPTIONS: dict[str, dict[str, Any]] = {
    "model_path": {},
    "tokenizer_path": {"tokenizer_path": "tokenizer.json"},
    "chat_template": {"chat_template": "chatml"},
    "context_size": {"context_size": 256},
    "mmproj": {"mmproj": "mmproj.gguf"},
    "media_cache_bytes": {"mmproj": "mmproj.gguf", "media_cache_bytes": 0},
    "num_threads": {"num_threads": 2},
    "sampler": {"sampler": SamplerConfig(regex="[a-z ]{1,20}", dry_multiplier=1.0)},
    "prefill_chunk_size": {"prefill_chunk_size": 32},
    "kv_type": {"kv_type": "q8_0"},
    "page_size": {"page_size": 64},
    "quantize": {"quantize": "Q4_0"},
    "compute": {"compute": "f32"},
    "packed": {"packed": "make"},
    "packed_access": {"packed": "make", "packed_access": "read"},
    "seed": {"seed": 5},
    "kv_memory_limit": {"kv_memory_limit": 4 << 20},
    "prefix_cache_bytes": {"prefix_cache_bytes": 0},
    "prefix_cache_dir": {"prefix_cache_dir": "blocks"},
    "prefix_cache_dir_bytes": {"prefix_cache_dir": "blocks", "prefix_cache_dir_bytes": 100_000},
    "adapters": {"adapters": demo.PIRATE},
    "speculate": {"speculate": str(demo.DRAFT)},
    "speculate, by the model": {"speculate": "self"},
    "draft_corpus": {"speculate": "lookup", "draft_corpus": (demo.HELDOUT,)},
    "draft_max": {"speculate": "lookup", "draft_max": 3},
    "offload_budget": {"offload_budget": 3 << 20},
    "offload_pinned": {"offload_budget": 3 << 20, "offload_pinned": ("blk.0.*",)},
    "offload_probe": {"offload_budget": 3 << 20, "offload_probe": False},
    "offload_access": {"offload_budget": 3 << 20, "packed": "make", "offload_access": "direct"},
    "numa": {"numa": "split"} if sys.platform == "linux" else {},
    "scheduler": {"scheduler": SchedulerConfig(max_sequences=2)},
    "trace": {"trace": "trace.json"},
}
"""By the name of an option: options with which it has an effect."""


def descriptors() -> int:
    """How many files the process has open; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


def used(folder: Path, options: dict[str, Any]) -> list[weakref.ref[object]]:
    """Makes an engine, uses, closes and drops it; references to its parts."""
    paths = {"prefix_cache_dir", "trace", "tokenizer_path", "mmproj"}
    given = {name: folder / value if name in paths else value for name, value in options.items()}
    engine = InferenceEngine(EngineConfig(model_path=folder / "model.gguf", **{"num_threads": 1, **given}))
    engine.generate(PROMPT, max_tokens=6)
    engine.generate_batch([PROMPT[:20]] * 3, max_tokens=4)
    model = engine.model
    parts = (model, model.runner.model, model.pool, model.loop, model.thread)
    engine.close()
    return [weakref.ref(part) for part in parts]


def write_files(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(demo.STORY.read_bytes())
    with ModelFile.open(demo.STORY) as file:
        width = file.tensors["token_embd.weight"].shape[0]
    (folder / "mmproj.gguf").write_bytes(projector_file(shapes={"mm.2.weight": (width, 32)}))
    words = {f"word{i}": i for i in range(1024)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "word0"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def test_the_table_has_every_option() -> None:
    names = {name.partition(",")[0] for name in OPTIONS}
    assert names == set(declared(EngineConfig))


@pytest.mark.parametrize("name", each(OPTIONS, 4))
def test_an_option_leaves_nothing_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "read_nodes", lambda: [nodes.Node(0, (0,)), nodes.Node(0, (1,))])
    monkeypatch.setattr(nodes, "place", lambda memory, nodes: None)
    write_files(tmp_path)
    used(tmp_path, OPTIONS[name])  # what is imported and cached once
    gc.collect()
    n_threads, n_descriptors = threading.active_count(), descriptors()
    parts = [part for _ in range(2) for part in used(tmp_path, OPTIONS[name])]
    gc.collect()
    until(lambda: all(part() is None for part in parts))
    until(lambda: threading.active_count() <= n_threads)
    until(lambda: descriptors() <= n_descriptors)
