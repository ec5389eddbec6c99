"""The claim of the same bits as a check: logits of small models, computed here, beside a table of hashes.

The models are those that the package ships, and eleven that are written here, each of another kind:
architecture, format of the matrices, type of keys and values, arithmetic. Their weights are the bytes of a
hash function, so they are the same on every machine. Each model runs twice, the second time with one thread,
in other chunks and with other pages. `python -m oxillama.apps.testing.claim` writes the table, after a change
of the contract.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.apps import demo
from oxillama.base.config import EngineConfig
from oxillama.base.contract import CONTRACT
from oxillama.base.formats import FORMATS
from oxillama.gguf.writer import Data, Tensor, Value, header, pair, write_tensor

TABLE = Path(__file__).with_name("claim.json")
WIDTH, HIDDEN, HEADS, LAYERS, EXPERTS, STATE = 256, 512, 4, 2, 4, 16
"""Sizes of the written models; rows of 256 values can be quantized to every format."""

TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))
ALIGNMENT = 32

OTHERWISE: Mapping[str, Any] = {"num_threads": 1, "prefill_chunk_size": 5, "page_size": 32}
"""Options of the second run, which may change no bit."""


@dataclass(frozen=True)
class Shape:
    """A model to write, and the options that it runs with.

    Attributes:
        type: the file type that it is quantized to, every matrix in the same format; "" for F32.
        options: of the engine.
        tensors: further matrices and vectors of a layer: their sizes, the contiguous dimension first.
        without: tensors that a layer of the architecture does not have.
        metadata: further keys, below the architecture's name.
    """

    architecture: str
    type: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    without: Sequence[str] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict)


HEAD, KV = WIDTH // HEADS, WIDTH // 2
LAYER: Mapping[str, tuple[int, ...]] = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, KV),
    "attn_v": (WIDTH, KV),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (WIDTH, HIDDEN),
    "ffn_up": (WIDTH, HIDDEN),
    "ffn_down": (HIDDEN, WIDTH),
}
DENSE = ("ffn_gate", "ffn_up", "ffn_down")
MIXTURE: Mapping[str, tuple[int, ...]] = {
    "ffn_gate_inp": (WIDTH, EXPERTS),
    "ffn_gate_exps": (WIDTH, HIDDEN, EXPERTS),
    "ffn_up_exps": (WIDTH, HIDDEN, EXPERTS),
    "ffn_down_exps": (HIDDEN, WIDTH, EXPERTS),
}
BIASES: Mapping[str, tuple[int, ...]] = {
    "attn_q.bias": (WIDTH,),
    "attn_k.bias": (KV,),
    "attn_v.bias": (KV,),
}
MAMBA: Mapping[str, tuple[int, ...]] = {
    "ssm_in": (WIDTH, 2 * HIDDEN),
    "ssm_conv1d": (4, HIDDEN),
    "ssm_conv1d.bias": (HIDDEN,),
    "ssm_x": (HIDDEN, 16 + 2 * STATE),
    "ssm_dt": (16, HIDDEN),
    "ssm_dt.bias": (HIDDEN,),
    "ssm_a": (STATE, HIDDEN),
    "ssm_d": (HIDDEN,),
    "ssm_out": (HIDDEN, WIDTH),
}
MAMBA_KEYS: Mapping[str, Value] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": HIDDEN,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": 16,
}

SHAPES: Mapping[str, Shape] = {
    "llama, F32": Shape("llama"),
    "llama, Q4_K, keys and values in q8_0": Shape("llama", "Q4_K_S", {"kv_type": "q8_0"}),
    "llama, Q6_K in float32": Shape("llama", "Q6_K", {"compute": "f32"}),
    "llama, W8A8, values in q4_0": Shape("llama", "", {"compute": "w8a8", "kv_type": "f16:q4_0"}),
    "llama, W8A8 in blocks of 128 columns": Shape("llama", "", {"compute": "w8a8-128"}),
    "llama, Q5_K in bfloat16": Shape("llama", "Q5_K_S", {"compute": "bf16", "kv_type": "bf16"}),
    "qwen2, Q8_0": Shape("qwen2", "Q8_0", tensors=BIASES),
    "qwen3, IQ4_XS": Shape("qwen3", "IQ4_XS", tensors={"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}),
    "gemma, Q4_0": Shape("gemma", "Q4_0"),
    "llama of experts, Q3_K": Shape(
        "llama", "Q3_K_S", {}, MIXTURE, DENSE, {"expert_count": EXPERTS, "expert_used_count": 2}
    ),
    "mamba, Q5_0": Shape(
        "mamba", "Q5_0", {}, MAMBA, [name for name in LAYER if name != "attn_norm"], MAMBA_KEYS
    ),
}
"""The written models by their names in the table."""

SHIPPED: Mapping[str, Mapping[str, Any]] = {
    "the story model": {"model_path": demo.STORY},
    "the story model with the pirate's adapter": {"model_path": demo.STORY, "adapters": demo.PIRATE},
    "the draft model": {"model_path": demo.DRAFT},
}
"""What the package ships, by names in the table."""


def names() -> list[str]:
    """The models of the table."""
    return [*SHIPPED, *SHAPES]


def values_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32: the numbers of a tensor, which follow from its name alone."""
    n = int(np.prod(shape))
    drawn = np.frombuffer(blake3(name.encode()).digest(length=2 * n), "<i2").astype(np.float32)
    unit = drawn * np.float32(2.0**-15)  # exact: no rounding depends on the machine
    if name.endswith("ssm_a"):
        return np.float32(-8.5) + np.float32(7.5) * unit
    if len(shape) == 1:
        return unit * np.float32(0.125) + np.float32(0.0 if name.endswith("bias") else 1.0)
    return unit * np.float32(0.125)


def write(path: Path, shape: Shape) -> None:
    keys: dict[str, Value] = {
        "context_length": 128,
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS // 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **shape.metadata,
    }
    pairs: list[Data] = [pair("general.architecture", shape.architecture)]
    pairs += [pair(f"{shape.architecture}.{key}", value) for key, value in keys.items()]
    types = [2, 3, 3, *[6] * 256]
    pairs += [
        pair("tokenizer.ggml.model", "llama"),
        pair("tokenizer.ggml.tokens", TOKENS),
        pair("tokenizer.ggml.scores", [0.0] * len(TOKENS)),
        pair("tokenizer.ggml.token_type", types),
        pair("tokenizer.ggml.bos_token_id", 1),
        pair("tokenizer.ggml.eos_token_id", 2),
    ]
    sizes = {"token_embd.weight": (WIDTH, len(TOKENS)), "output_norm.weight": (WIDTH,)}
    if shape.architecture != "gemma":
        sizes["output.weight"] = (WIDTH, len(TOKENS))
    for layer in range(LAYERS):
        for name, size in {**LAYER, **shape.tensors}.items():
            if name not in shape.without:
                whole = name if name.endswith(".bias") or name in ("ssm_a", "ssm_d") else f"{name}.weight"
                sizes[f"blk.{layer}.{whole}"] = size
    tensors = [Tensor(name, FORMATS["F32"], size) for name, size in sizes.items()]
    with path.open("wb") as file:
        file.write(header(pairs, tensors, ALIGNMENT))
        for tensor in tensors:
            write_tensor(file, tensor, [values_of(tensor.name, tensor.shape)], ALIGNMENT)


def computed(name: str, folder: Path) -> list[str]:
    """The hashes of a model's logits, of both runs."""
    from oxillama.apps.quantize.model import quantize_model
    from oxillama.engine.engine import InferenceEngine
    from oxillama.sessions.fingerprint import logits_hash

    if name in SHIPPED:
        options = dict(SHIPPED[name])
    else:
        path, shape = folder / "float.gguf", SHAPES[name]
        write(path, shape)
        if shape.type:
            quantize_model(path, folder / "model.gguf", shape.type, pure=True)
            path = folder / "model.gguf"
        options = {"model_path": path, **shape.options}
    found = []
    for more in ({}, OTHERWISE):
        config = EngineConfig(**{**options, "prefix_cache_bytes": 0, "packed": "off", **more})
        with InferenceEngine(config) as engine:
            adapters = engine.model.adaptation(None, None)
            found.append(logits_hash(engine.model, adapters).hex())
    return found


def checked(chosen: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(name, hash in the table, hashes computed here) of each chosen model, as soon as it has run."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            yield name, table["logits"].get(name, ""), computed(name, Path(folder))


def make_table() -> dict[str, Any]:
    """The table, computed here. Raises AssertionError if both runs of a model differ."""
    logits = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            first, second = computed(name, Path(folder))
            assert first == second, name
            logits[name] = first
    return {"contract": CONTRACT, "logits": logits}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(make_table(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {TABLE}")
