"""Adapter files that are none, or that do not fit the model, are refused by the name of what is wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxillama import LoadedLora, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import LoadError, ModelFileError
from oxillama.models.adapters.bind import bind
from tests.support import gguf_writer
from tests.support.adapters import Pair, adapter_file
from tests.support.kernels import normal
from tests.support.paths import SHARED
from tests.support.tiny_models import Running, divergence
from tests.support.zoo import MODELS, VARIANTS

LLAMA = MODELS["llama"]
Q = "blk.0.attn_q.weight"
COLS, ROWS = LLAMA.tensors()[Q].shape[::-1]
PARITY = SHARED / "parity" / "lora"
ADAPTER = [
    ("general.type", "str", "adapter"),
    ("general.architecture", "str", "llama"),
    ("adapter.type", "str", "lora"),
    ("adapter.lora.alpha", "f32", 1.0),
]


def pair(rank: int = 2, cols: int = COLS, rows: int = ROWS) -> Pair:
    return normal(rank, cols), normal(rows, rank)


def adapter(pairs: dict[str, Pair], **options: Any) -> bytes:
    return adapter_file("llama", pairs, **options)


def of_one(name: str, *shape: int) -> bytes:
    """An adapter of one tensor."""
    return gguf_writer.write(ADAPTER, [gguf_writer.Tensor(name, shape, 0, bytes(4 * math.prod(shape)))])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (demo.STORY.read_bytes(), "adapter.type: expected a LoRA adapter, got None of type 'model'"),
        (adapter({"": pair()}), r"\.lora_a: expected a name that ends in"),
        (adapter({Q: (normal(2, COLS), normal(ROWS, 3))}), "lora_b: expected rank 2, as .*, got 3"),
        (adapter({Q: (normal(2, COLS), normal(2, ROWS, 2))}), "lora_a: expected 2 or 3 dimensions"),
        (adapter({Q: pair()}, alpha=float("inf")), "adapter.lora.alpha: expected a finite number"),
        (adapter({"blk.0.attn_norm.weight": (normal(COLS), normal(COLS))}), "2 or 3 dimensions"),
        (of_one(f"{Q}.lora_a", COLS, 2), rf"{Q}\.lora_a: expected {Q}\.lora_b beside it"),
        *(  # llama.cpp leaves norms out, so that the text would be another one than the adapter's
            (of_one(f"{name}.weight", COLS),
             rf"{name}.weight: expected a name that ends in .lora_a or .lora_b, for norms cannot be adapted")
            for name in ("blk.0.attn_norm", "output_norm", "blk.0.attn_q_norm")
        ),
    ],
)  # fmt: skip
def test_files_that_are_no_adapter(data: bytes, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        LoadedLora.load(data)


@pytest.mark.parametrize(
    ("name", "factors", "message"),
    [
        (Q, pair(cols=COLS + 1), rf"{Q}\.lora_a: expected shape \({COLS}, 2\), got \({COLS + 1}, 2\)"),
        (Q, pair(rows=ROWS + 8), rf"{Q}\.lora_b: expected shape \(2, {ROWS}\), got"),
        ("blk.7.attn_q.weight", pair(), r"blk\.7\.attn_q\.weight: is no matrix of the model"),
        ("blk.0.attn_norm.weight", pair(), r"blk\.0\.attn_norm\.weight: is no matrix of the model"),
        ("token_embd.weight", (normal(7, 2), normal(COLS, 2)), "token_embd.weight.lora_a: expected shape"),
    ],
)
def test_adapters_that_do_not_fit(name: str, factors: Pair, message: str) -> None:
    lora = LoadedLora.load(adapter({name: factors}))
    with pytest.raises(LoadError, match=message):
        bind(lora, Running(LLAMA.file()).model)


def test_an_adapter_of_another_architecture() -> None:
    lora = LoadedLora.load(adapter_file("qwen2", {Q: pair()}))
    with pytest.raises(LoadError, match=r"general\.architecture: expected llama, the model's, got qwen2"):
        bind(lora, Running(LLAMA.file()).model)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_every_format(kind: str) -> None:
    """An adapter of 16-bit numbers has the products of the same numbers in float32."""
    pairs = {Q: (normal(32, COLS), normal(ROWS, 32))}
    lora = LoadedLora.load(adapter_file("llama", pairs, kind=kind))
    held = lora.pairs[Q]
    again = {Q: (lora.values(held.a), lora.values(held.b))}
    plain = LoadedLora.load(adapter_file("llama", again))
    tokens = list(range(1, 9))
    found = [Running(LLAMA.file(), adapters=[(x, 1.0, 0)]).logits(tokens) for x in (lora, plain)]
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("alpha", [0.0, None])
def test_an_alpha_of_0_or_none_is_the_rank(alpha: float | None) -> None:
    pairs, tokens = {Q: pair(5)}, list(range(1, 9))
    lora, whole = (LoadedLora.load(adapter_file("llama", pairs, alpha=each)) for each in (alpha, 5.0))
    assert lora.factor(5) == 1.0 and lora.alpha == 0.0
    found = [Running(LLAMA.file(), adapters=[(each, 1.0, 0)]).logits(tokens) for each in (lora, whole)]
    assert np.array_equal(found[0], found[1])
    assert LoadedLora.load(adapter_file("llama", {Q: pair()}, alpha=6.0)).factor(4) == 1.5


def test_a_tied_output_is_adapted_by_its_own_name_and_the_input_by_its() -> None:
    model, output = LLAMA, "output.weight"
    tied = model.file(**{output: None})
    n_vocab, d = model.tensors()["token_embd.weight"].shape
    tokens = list(range(1, 9))
    plain = Running(tied).logits(tokens)

    def adapted(name: str, pair: Pair) -> np.ndarray:
        lora = LoadedLora.load(adapter_file("llama", {name: pair}, alpha=2.0))
        return Running(tied, adapters=[(lora, 1.0, 0)]).logits(tokens)

    a, b = normal(2, d, seed=1, std=0.3), normal(n_vocab, 2, seed=2, std=0.3)
    hidden = Running(tied).hidden_states([tokens])[0].astype(float)
    assert np.allclose(adapted(output, (a, b)), plain + hidden @ a.T @ b.T, atol=1e-3)
    embeddings = model.tensors()["token_embd.weight"]
    whole = Running(model.file(**{"token_embd.weight": embeddings + b @ a, output: embeddings}))
    found = adapted("token_embd.weight", (b, np.ascontiguousarray(a.T)))
    assert divergence(whole.logits(tokens), found) < 1e-5
    assert divergence(plain, found) > 1e-3


@pytest.mark.parametrize(
    ("architecture", "matrix"), [("deepseek2", "attn_kv_a_mqa"), ("deepseek32", "indexer.attn_k")]
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_matrices_that_llama_cpp_leaves_alone(architecture: str, matrix: str, everywhere: bool) -> None:
    model, name = MODELS[architecture], f"blk.0.{matrix}.weight"
    rows, cols = model.tensors()[name].shape
    data = adapter_file(architecture, {name: pair(2, cols, rows)})
    lora, other = (LoadedLora.load(data, everywhere=each) for each in (everywhere, not everywhere))
    assert lora.fingerprint != other.fingerprint  # or pages of one would answer the other
    tokens = list(range(1, 25))  # more than a selector chooses
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = Running(model.file(), adapters=[(lora, 1.0, 0)]).logits(tokens)
    assert np.array_equal(found, Running(model.file()).logits(tokens)) != everywhere
    messages = [str(w.message) for w in caught]
    assert (messages == []) == everywhere
    assert everywhere or f"does not change {matrix}, as in llama.cpp" in messages[0]


def test_an_adapter_of_what_the_model_does_not_use_is_said_to_be_one() -> None:
    """For example, the layer attends to the keys of another layer."""
    model, name = VARIANTS["gemma3n-deep"], "blk.20.attn_k.weight"
    rows, cols = model.tensors()[name].shape
    lora = LoadedLora.load(adapter_file("gemma3n", {name: pair(2, cols, rows)}))
    with pytest.warns(UserWarning, match=r"changes blk\.20\.attn_k\.weight, which the model does not use"):
        found = bind(lora, Running(model.file()).model)
    assert not found.factors


def refused(call: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_an_engine_refuses_a_missing_file_at_once() -> None:
    refused(
        lambda: InferenceEngine.from_gguf(demo.STORY, adapters="/no/such.gguf"), ModelFileError, "such.gguf"
    )
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        refused(lambda: engine.generate("a", adapters="/no/such.gguf"), ModelFileError, "such.gguf")
        refused(lambda: engine.generate("a", adapters=demo.DRAFT), LoadError, "adapter.type")
        assert engine.generate("Once", max_tokens=4, adapters=[])


@pytest.mark.parametrize("name", sorted(path.stem for path in PARITY.glob("*.npz")))
def test_shared_numbers(name: str) -> None:
    """llama.cpp's logits with two adapters, alone and together."""
    data = (PARITY.parent / f"{name}.gguf").read_bytes()
    with np.load(PARITY / f"{name}.npz") as reference, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokens = reference["tokens"].tolist()
        a, b = (LoadedLora.load(PARITY / f"{name}.{part}.gguf") for part in "ab")
        for key, adapters in (("base", []), ("a", [(a, 1.0, 0)]), ("ab", [(a, 0.5, 0), (b, 1.5, 0)])):
            found = Running(data, adapters=adapters).logits(tokens)
            assert divergence(reference[key], found) < 1e-4
            assert np.array_equal(found.argmax(axis=1), reference[key].argmax(axis=1))
