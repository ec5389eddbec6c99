"""Published test vectors: inputs defined by a formula, and the bits that every implementation must compute.

Inputs come from SHAKE-256 of a label, so that any language can generate them; `numbers` and `block_bytes`
define how. ``vectors.json`` has for each case the SHA-256 of the result, float32 in little-endian order
(tokens: int32), and its first numbers. The models are GGUF files in the same folder. `tools/make_vectors.py`
writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.base.config import SamplerConfig
from oxillama.base.formats import FORMATS, KV_PAIRS, ROUNDED, Format
from oxillama.gguf.model_file import ModelFile
from oxillama.reference import rows
from oxillama.reference.attention import View, attend
from oxillama.reference.blocks import dequantize
from oxillama.reference.decoder import ReferenceModel
from oxillama.reference.floats import F32
from oxillama.reference.kv import store
from oxillama.reference.products import load_matrix
from oxillama.reference.sampling import ReferenceSampler
from oxillama.reference.selector import chosen_positions, position_scores

FOLDER = Path(__file__).parent / "data"
MODELS = ("gemma2", "gpt-oss", "llama", "qwen3moe")
"""Names of the model files."""


@dataclass(frozen=True)
class Case:
    """An operation with given inputs.

    Attributes:
        operation: a key of `OPERATIONS`.
        options: plain data.
        inputs: arrays by name.
    """

    operation: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """The expected bits of a result: the SHA-256 of its bytes, and its first numbers."""

    sha256: str
    first: list[float]

    @classmethod
    def of(cls, found: np.ndarray) -> Expected:
        """The expectation of float32 or int32 numbers of any shape."""
        data = np.ascontiguousarray(found, found.dtype.newbyteorder("<"))
        return cls(hashlib.sha256(data.tobytes()).hexdigest(), found.reshape(-1)[:4].tolist())


# --- inputs -------------------------------------------------------------------------------------------


def shake(label: str, n: int) -> np.ndarray:
    """uint8 (n,): the first bytes of SHAKE-256 of a label."""
    return np.frombuffer(hashlib.shake_256(label.encode()).digest(n), np.uint8)


def numbers(label: str, *shape: int, size: float = 4.0) -> np.ndarray:
    """float32 from -size to size: (upper 24 bits of little-endian 32-bit words - 2^23) * size /
    2^23."""
    words = shake(label, 4 * int(np.prod(shape))).view("<u4")
    found: np.ndarray = ((words >> 8).astype(np.int64) - 2**23).astype(F32) * F32(size / 2**23)
    return found.reshape(shape)


HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}
"""Byte offsets of the half-precision scales in a block; other formats have one at 0, and a minimum at 2."""
WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def block_bytes(fmt: Format, label: str, n: int) -> np.ndarray:
    """uint8 (n, block_bytes): bytes of SHAKE-256, with scales changed to have a small exponent.

    A half keeps its sign and fraction and gets the exponent 8 (2^-7); in BF16, F32 and Q8_K the upper half
    gets the exponent 120. MXFP4: byte 0 is 120 + its last 3 bits; IQ1_M: the last word's upper 4 bits are 2;
    NVFP4: nothing is changed.
    """
    data = shake(label, n * fmt.block_bytes).reshape(n, -1).copy()
    if fmt.name == "MXFP4":
        data[:, 0] = 120 + (data[:, 0] & 7)
    elif fmt.name == "IQ1_M":
        data[:, 55] = data[:, 55] & 15 | 0x20
    elif fmt.name in ("BF16", "F32", "Q8_K"):
        at = {"BF16": 0, "F32": 2, "Q8_K": 2}[fmt.name]
        _set_bits(data, at, 0x807F, 0x3C00)
    elif fmt.name != "NVFP4":
        for at in HALVES.get(fmt.name, (0, 2) if fmt.name in WITH_MINIMUM else (0,)):
            _set_bits(data, at, 0x83FF, 0x2000)
    return data


def _set_bits(data: np.ndarray, at: int, kept: int, bits: int) -> None:
    words = np.ascontiguousarray(data[:, at : at + 2]).view("<u2") & kept | bits
    data[:, at : at + 2] = words.astype("<u2").view(np.uint8)


# --- cases --------------------------------------------------------------------------------------------

ROWS, TOKENS = 35, 15
"""Rows of matrices, not a multiple of a panel, and numbers of tokens, which fill tiles of 8, 4, 2 and 1."""
SAMPLERS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "top-p": {"top_k": 0, "min_p": 0.0, "top_p": 0.9},
    "typical": {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "typical_p": 0.6},
    "many": {"top_k": 1500, "min_p": 0.0, "temperature": 2.0},
    "cutoffs": {"top_n_sigma": 2.0, "top_a": 0.1, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-3},
    "penalties": {
        "temperature": 0.0,
        "allowed_tokens": (1, 2, 3, 4, 5, 6),
        "repetition_penalty": 1.02,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.1,
    },
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "dynamic": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.4},
    "mirostat": {"mirostat": 1, "mirostat_tau": 4.0, "temperature": 1.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 4.0, "temperature": 1.0},
}
VIEWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 40},
    "chunk": {"chunk": 48},
    "soft cap": {"soft_cap": 5.0},
    "both ways": {"causal": False, "window": 30},
}


@cache
def cases() -> dict[str, Case]:
    """All cases by name."""
    found: dict[str, Case] = {}
    x = np.concatenate([numbers("x", 500, size=30.0), numbers("small x", 500, size=1.0)])
    for name in rows.ACTIVATIONS:
        found[f"activation {name}"] = Case("activation", {"name": name}, {"x": x})
        found[f"gate {name}"] = Case("gate", {"name": name}, {"x": x, "up": numbers("up", 1000, size=9.0)})
    for d in (5, 16, 331):
        norm = {"x": numbers(f"norm {d}", 40, d), "weight": numbers(f"weight {d}", d)}
        for centred in (False, True):
            found[f"norm {d} {centred}"] = Case("norm", {"eps": 1e-5, "centred": centred}, norm)
    found["soft cap"] = Case("soft cap", {"cap": 7.5}, {"x": numbers("cap", 4111, size=40.0)})
    found["cut gates"] = Case("cut gates", {"scale": 0.7}, {"x": numbers("cut", 30, 77)})
    selector = {"queries": numbers("selector q", 50, 3, 20), "keys": numbers("selector k", 50, 20)}
    selector["weights"] = numbers("selector w", 50, 3)
    for kv_type in ("f32", "q8_0"):
        found[f"selector {kv_type}"] = Case("selector", {"kv_type": kv_type, "most": 9}, selector)
    found["softmax"] = Case("softmax", {}, {"x": numbers("softmax", 777, size=20.0)})
    positions = {
        "positions": np.array([0, 1, 9, 500, 4097, 131072], np.int32),
        "x": numbers("rope", 6, 3, 32),
    }
    for neox in (False, True):
        found[f"rotation {neox}"] = Case("rotation", {"neox": neox, "base": 500000.0, "n_rot": 24}, positions)
    for gating in ("softmax", "sigmoid", "chosen"):
        logits = {"logits": numbers(f"experts {gating}", 9, 20), "bias": numbers("bias", 20, size=0.5)}
        groups = {"groups": 1, "kept": 1} if gating == "chosen" else {"groups": 5, "kept": 3}
        found[f"experts {gating}"] = Case("experts", {"gating": gating, "k": 4, **groups}, logits)
    for fmt in FORMATS.values():
        if fmt.layout:
            found[f"product {fmt.name}"] = product_case(fmt)
    for compute in ROUNDED:
        inputs = {"blocks": numbers(compute, ROWS, 160).view(np.uint8), "x": numbers("x of 160", TOKENS, 160)}
        found[f"product {compute}"] = Case("product", {"format": "F32", "compute": compute}, inputs)
    qkv = numbers("attention", 130, 2 * 40 + 40 + 21, size=2.0)
    longer = {"qkv": numbers("partitions", 1100, 2 * 3 + 3 + 2)}
    found["attention partitions"] = Case("attention", {"kv_type": "f32", "key_dim": 3}, longer)
    for kv_type in (*(pair for pair in KV_PAIRS if ":" not in pair), "q8_0:f16"):
        found[f"attention {kv_type}"] = Case(
            "attention", {"kv_type": kv_type, **VIEWS["plain"]}, {"qkv": qkv}
        )
    for name, view in VIEWS.items():
        found[f"attention {name}"] = Case("attention", {"kv_type": "f16", **view}, {"qkv": qkv})
    sinks = {"sinks": np.array([5.3, 6.1], F32), "slopes": np.array([0.3, 0.07], F32)}
    found["attention sinks"] = Case("attention", {"kv_type": "f16"}, {"qkv": qkv, **sinks})
    noise = numbers("noise", 12, 2500, size=1.0)
    for name, options in SAMPLERS.items():
        logits = {"logits": numbers(f"sampler {name}", 2500, size=8.0) + noise}
        found[f"sampler {name}"] = Case("sampler", {"seed": 5, **options}, logits)
    for name in MODELS:
        tokens = {"tokens": (shake(f"tokens {name}", 70) % 48).astype(np.int32)}
        found[f"model {name}"] = Case("model", {"file": f"{name}.gguf", "kv_type": "f16"}, tokens)
    return found


def product_case(fmt: Format) -> Case:
    """A matrix of a format times activations."""
    cols = {256: 512, 128: 128, 64: 128}.get(fmt.block_len, 96)
    blocks = block_bytes(fmt, f"product {fmt.name}", ROWS * cols // fmt.block_len)
    x = numbers(f"x of {cols}", TOKENS, cols)
    x[2] *= F32(1e-3)
    return Case("product", {"format": fmt.name}, {"blocks": blocks.reshape(ROWS, -1), "x": x})


# --- results of the reference ---------------------------------------------------------------------------


def _rotation(case: Case) -> np.ndarray:
    turns = rows.frequencies(case.options["n_rot"], case.options["base"])
    table = rows.rotation_table(case.inputs["positions"], turns)
    return rows.rotate(case.inputs["x"], table, case.options["neox"])


def _experts(case: Case) -> np.ndarray:
    """The experts of each row, then their weights."""
    options = {**case.options, "normalize": True, "scale": 2.5}
    bias = None if options["gating"] == "chosen" else case.inputs["bias"]
    k, gating = options.pop("k"), options.pop("gating")
    found = [rows.route(row, k, gating, bias=bias, **options) for row in case.inputs["logits"]]
    return np.array([np.concatenate([chosen.astype(F32), weights]) for chosen, weights in found])


def _product(case: Case) -> np.ndarray:
    """The product, then the matrix as float32."""
    fmt, blocks, x = FORMATS[case.options["format"]], case.inputs["blocks"], case.inputs["x"]
    product = load_matrix(fmt, blocks, ROWS, x.shape[1], case.options.get("compute", "int8")).times(x)
    return np.concatenate([product.reshape(-1), dequantize(fmt, blocks)])


def _attention(case: Case) -> np.ndarray:
    """Attention with two query heads and one head of keys and values; scores are multiplied by 0.3."""
    options: dict[str, Any] = {"key_dim": 40, **case.options}
    options |= {name: array for name, array in case.inputs.items() if name != "qkv"}
    kv_type, dim = options.pop("kv_type"), options.pop("key_dim")
    q, k, v = np.split(case.inputs["qkv"], [2 * dim, 3 * dim], axis=1)
    return attend(q.reshape(-1, 2, dim), store(k[:, None], v[:, None], kv_type), 0.3, View(**options))


def _selector(case: Case) -> np.ndarray:
    """The positions that each row except the first ones attends to."""
    keys, most = case.inputs["keys"][:, None], case.options["most"]
    kv = store(keys, keys, case.options["kv_type"])
    scores = position_scores(case.inputs["queries"], case.inputs["weights"], kv)
    chosen = [chosen_positions(scores[row, : row + 1], most) for row in range(most, len(scores))]
    return np.array(chosen, np.int32)


def _sampler(case: Case) -> np.ndarray:
    """The tokens sampled from rows of logits, one after another."""
    sampler, history = ReferenceSampler(SamplerConfig(**case.options), frozenset()), [3, 5]
    for logits in case.inputs["logits"]:
        history.append(sampler.sample(logits, history))
    return np.array(history[2:], np.int32)


def _model(case: Case) -> np.ndarray:
    """Logits after each token."""
    with ModelFile.open(FOLDER / case.options["file"]) as file:
        return ReferenceModel(file, kv_type=case.options["kv_type"]).logits(case.inputs["tokens"])


OPERATIONS: dict[str, Callable[[Case], np.ndarray]] = {
    "activation": lambda case: rows.ACTIVATIONS[case.options["name"]](case.inputs["x"]),
    "gate": lambda case: rows.gate(case.options["name"], case.inputs["x"], case.inputs["up"]),
    "norm": lambda case: rows.norm(
        case.inputs["x"], case.options["eps"], case.inputs["weight"], centred=case.options["centred"]
    ),
    "cut gates": lambda case: rows.cut(case.inputs["x"], case.options["scale"]),
    "selector": _selector,
    "soft cap": lambda case: rows.soft_cap(case.inputs["x"], case.options["cap"]),
    "softmax": lambda case: rows.softmax(case.inputs["x"]),
    "rotation": _rotation,
    "experts": _experts,
    "product": _product,
    "attention": _attention,
    "sampler": _sampler,
    "model": _model,
}
"""Functions that compute a case, by operation."""


def load() -> dict[str, Expected]:
    """The published results, by the name of a case."""
    found = json.loads((FOLDER / "vectors.json").read_text())
    return {name: Expected(**expected) for name, expected in found["cases"].items()}
