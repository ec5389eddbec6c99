"""Files as they are published: every matrix its own format, experts in blocks, odd widths, shards, padding.

The bits must be those of the reference on every target and in every chunk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from oxillama import SamplerConfig
from oxillama.base.formats import FORMATS
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import GGUFError, LoadError, ModelFileError
from oxillama.gguf.file_types import FALLBACK
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Spec, read_spec
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support import gguf_writer as ggufwriter
from tests.support.kernels import PRESENT, dequantized, matrix, same_bits
from tests.support.spread import ARCHITECTURES, few, pairs
from tests.support.tiny_file import N_CONTROL, tiny_vocabulary, write_tiny_model
from tests.support.tiny_models import Running, stated, tokens_of
from tests.support.zoo import ENCODERS, MODELS, VARIANTS, VOCAB, Model, stored

Recipe = Callable[[str, int], str]
"""The format of a matrix, by its name and the length of its rows."""


def fitted(kind: str, cols: int) -> str:
    """The format, or what stands in where rows are no whole blocks of it."""
    for name in (kind, FALLBACK.get(kind, "F16")):
        if cols % FORMATS[name].block_len == 0:
            return name
    return "F16"


def small(name: str) -> bool:
    """What no quantizer touches."""
    return any(part in name for part in ("ffn_gate_inp", "position_embd", "token_types", "time_mix", "conv"))


def k_m(name: str, cols: int) -> str:
    """The mix of Q4_K_M: attention values, half of the ways down and the output in Q6_K, all else Q4_K."""
    if small(name) or (name.startswith("blk.") and "_norm" in name):
        return "F32"
    better = "attn_v" in name or "attn_qkv" in name or name == "output.weight"
    better = better or ("ffn_down" in name and name.startswith("blk.0"))
    return fitted("Q6_K" if better else "Q4_K", cols)


def k_s(name: str, cols: int) -> str:
    """Q5_K and Q3_K; the table of embeddings is Q6_K, the output BF16, small matrices F16."""
    if small(name) or (name.startswith("blk.") and "_norm" in name):
        return "F16" if "conv" not in name and "time_mix" not in name else "F32"
    if name in ("token_embd.weight", "output.weight"):
        return fitted("Q6_K", cols) if name[0] == "t" else "BF16"
    return fitted("Q5_K" if "attn" in name else "Q3_K", cols)


def mxfp4(name: str, cols: int) -> str:
    """As gpt-oss comes: experts in MXFP4, all other matrices in Q8_0."""
    return "F32" if small(name) else "MXFP4" if "_exps" in name else fitted("Q8_0", cols)


def written(model: Model, recipe: Recipe, vectors: str = "F32", **replaced: np.ndarray | None) -> bytes:
    """The file of a model with matrices of random codes."""
    tensors = []
    for i, (name, values) in enumerate((model.tensors() | replaced).items()):
        if values is None:
            continue
        if values.dtype == np.int32:
            tensors.append(stored(name, values, "I32"))
            continue
        cols = values.shape[-1]
        kind = vectors if values.ndim == 1 else recipe(name, cols)
        if kind in ("F32", "F16", "BF16"):
            data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        else:
            data = matrix(kind, values.size // cols, cols, seed=model.seed + i)
        tensors.append(ggufwriter.Tensor(name, values.shape[::-1], FORMATS[kind].file_id, data.tobytes()))
    return model._file(tensors)


def wide(model: Model, **sizes: Any) -> Model:
    """The same with rows of whole blocks of 256."""
    found = replace(model, n_embd=256, n_ff=256, expert_ff=256, n_heads=4, n_experts=3, **sizes)
    found = replace(found, key_dim=64, value_dim=64, n_rot=64, n_kv_heads=2)
    if model.latent:
        return replace(found, key_dim=96, value_dim=64, n_rot=32, q_rank=256, kv_rank=256, n_kv_heads=4)
    if model.architecture == "qwen2vl":
        return replace(found, keys={"rope.dimension_sections": ("[i32]", [8, 12, 12, 0])})
    return found


def run(data: bytes, tokens: list[int], **options: Any) -> np.ndarray:
    """Logits of a decoder, states of an encoder."""
    running = Running(data, **options)
    assert running.weights.unused() == []
    return running.outputs(tokens)


SEVERAL = ("llama", "qwen2moe", "gemma2", "phi3", "gpt2", "deepseek2", "minicpm3", "mamba2", "jamba", "bert")


def check(model: Model, data: bytes) -> None:
    """The reference's bits in int8, however the model is run; those of some models dequantized, too."""
    tokens = tokens_of(12, VOCAB, seed=model.seed)  # more than a selector of the zoo chooses
    if model.architecture in SEVERAL:
        few_tokens = tokens[:3]
        assert same_bits(run(data, few_tokens, compute="f32"), stated(data, few_tokens, compute="f32"))
    wanted = stated(data, tokens)
    assert same_bits(run(data, tokens), wanted)
    if model.architecture not in ENCODERS:
        for i, target in enumerate(PRESENT[1:]):
            found = Running(data, target, n_threads=2, page_size=32).logits(tokens, 3 + i)
            assert same_bits(found, wanted)


# --- formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "recipe"),
    few(
        [*((name, k_m) for name in sorted(MODELS)), *((name, k_s) for name in SEVERAL)],
        [*((name, k_m) for name in ARCHITECTURES), ("llama", k_s), ("deepseek2", k_s), ("jamba", k_s)],
    ),
)
def test_mixes_of_superblocks(name: str, recipe: Recipe) -> None:
    model = wide(MODELS[name])
    check(model, written(model, recipe))


@pytest.mark.parametrize("vectors", ["F32", "F16", "BF16"])
def test_gpt_oss_as_it_comes(vectors: str) -> None:
    """Experts in MXFP4 with biases, everything else in Q8_0; norms, biases and sinks in any float."""
    model = wide(MODELS["gpt-oss"], n_layers=4)
    data = written(model, mxfp4, vectors)
    with ModelFile.open(data) as file:
        assert {t.format.name for t in file.tensors.values()} == {"F32", "Q8_0", "MXFP4", vectors}
    check(model, data)


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2", "qwen3moe", "gemma3"])
def test_widths_that_are_no_superblocks(name: str) -> None:
    """As gpt-oss with 2880 columns and Qwen2 0.5B with 896: formats of blocks of 32 throughout."""
    model = replace(wide(MODELS[name]), n_embd=96, n_ff=160, expert_ff=160)
    model = replace(model, key_dim=24, value_dim=24, n_rot=24)
    data = written(model, mxfp4 if name == "gpt-oss" else k_m)
    with ModelFile.open(data) as file:
        kinds = {info.format.name for info in file.tensors.values()}
    assert kinds == {"F32", "Q8_0", "MXFP4" if name == "gpt-oss" else "Q5_0"}
    check(model, data)


@pytest.mark.parametrize(
    ("name", "vectors"),
    pairs(["qwen2", "phi2", "stablelm", "gemma3", "mpt", "olmo2", "qwen3", "bert"], ["F16", "BF16"]),
)
def test_vectors_in_half_precision(name: str, vectors: str) -> None:
    model = wide(MODELS[name])
    check(model, written(model, k_m, vectors))


def test_gate_and_up_of_experts_in_one_tensor() -> None:
    """Merged, a tensor holds the gates' rows of an expert and then its ups'."""
    model = wide(MODELS["qwen3moe"])
    apart = written(model, k_m)
    file = ModelFile.open(apart)
    merged = []
    for name, info in file.tensors.items():
        if "ffn_up_exps" in name:
            continue
        data, shape = file.data(name), info.shape
        if "ffn_gate_exps" in name:
            up = file.data(name.replace("gate", "up"))
            parts = [part.reshape(model.n_experts, -1) for part in (data, up)]
            data, shape = np.hstack(parts).reshape(-1), (shape[0], 2 * shape[1], shape[2])
            name = name.replace("gate", "gate_up")
        merged.append(ggufwriter.Tensor(name, shape, info.format.id, data.tobytes()))
    tokens = tokens_of(12, VOCAB)
    assert same_bits(run(model._file(merged), tokens), run(apart, tokens))


def test_a_tensor_for_each_expert_in_formats_of_their_own() -> None:
    """As files of Mixtral were written first, here with another format for each expert."""
    model = wide(Model("llama", layer="n:attn_norm q k v o n:ffn_norm moe"))
    split: dict[str, np.ndarray | None] = {}
    for name, values in model.tensors().items():
        if "_exps" in name:
            split[name] = None
            split |= {name.replace("_exps", f".{e}"): part for e, part in enumerate(values)}
    formats = ("Q4_K", "Q6_K", "Q5_0")

    def recipe(name: str, cols: int) -> str:
        number = name.split(".")[-2]
        return formats[int(number)] if number.isdigit() and "ffn" in name else k_m(name, cols)

    data = written(model, recipe, **split)
    with ModelFile.open(data) as file:
        assert {file.tensors[f"blk.1.ffn_up.{e}.weight"].format.name for e in range(3)} == set(formats)
        held = {
            name: dequantized(info.format.name, file.data(name).reshape(1, -1)).reshape(info.shape[::-1])
            for name, info in file.tensors.items()
        }
    for layer in range(model.n_layers):
        for part in ("gate", "up", "down"):
            names = [f"blk.{layer}.ffn_{part}.{e}.weight" for e in range(model.n_experts)]
            held[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack([held.pop(name) for name in names])
    together = model.file_of(held)
    tokens = tokens_of(20, VOCAB)
    assert same_bits(run(data, tokens, compute="f32"), stated(together, tokens))
    del split["blk.1.ffn_up.2.weight"]
    with pytest.raises(LoadError, match=r"blk\.1\.ffn_up\.2\.weight: expected a tensor"):
        run(written(model, recipe, **split), tokens)


def test_matrices_of_one_input_in_formats_of_their_own() -> None:
    """q, k and v, and gate and up, are multiplied together whatever they are held in."""
    kinds = {"attn_q": "IQ4_XS", "attn_k": "Q2_K", "attn_v": "Q8_0", "ffn_gate": "F16", "ffn_up": "TQ2_0"}
    model = wide(MODELS["qwen3"])
    check(model, written(model, lambda name, cols: kinds.get(name.split(".")[-2], "Q4_K")))


@pytest.mark.parametrize("n_ff, kinds", [(320, ("Q5_0", "Q8_0")), (272, ("F16",))])
def test_rows_that_are_no_superblocks(n_ff: int, kinds: tuple[str, ...]) -> None:
    """Ways down of 320 columns come in what stands in for K-quants, those of 272 in F16."""
    model = replace(wide(MODELS["llama"]), n_ff=n_ff)
    data = written(model, k_m)
    with ModelFile.open(data) as file:
        assert {file.tensors[f"blk.{i}.ffn_down.weight"].format.name for i in (0, 1)} == set(kinds)
    check(model, data)


@pytest.mark.parametrize(
    ("name", "kind"),
    pairs(
        ["gemma3", "llama"],
        ["Q6_K", "Q5_K", "Q4_K", "IQ4_NL", "Q8_0", "F16", "BF16", "MXFP4", "TQ1_0"],
    ),
)
def test_a_table_that_is_the_output_too(name: str, kind: str) -> None:
    model = replace(wide(MODELS[name]), beside="n:output_norm")
    recipe: Recipe = lambda tensor, cols: kind if tensor.startswith("token_embd") else k_m(tensor, cols)  # noqa: E731
    data = written(model, recipe)
    assert "output.weight" not in ModelFile.open(data).tensors
    check(model, data)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_K"])
def test_factors_of_the_rotation(kind: str) -> None:
    """Llama 3's `rope_freqs.weight` beside blocks, in F32 as published and in halves."""
    model = wide(Model("llama", beside="n:output_norm output rope_freqs", seed=5))
    vectors = "F32" if kind == "Q4_K" else kind
    data = written(model, k_m, vectors)
    plain = written(replace(model, beside="n:output_norm output"), k_m, vectors)
    check(model, data)
    tokens = tokens_of(20, VOCAB)
    assert not same_bits(run(data, tokens), run(plain, tokens))


# --- metadata ---------------------------------------------------------------------------------------

WIDTHS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
ROOM = {kind: (-(2 ** (int(kind[1:]) - 1)) if kind[0] == "i" else 0) for kind in WIDTHS}


def in_width(kind: str, value: Any, width: str) -> tuple[str, Any]:
    """A pair with its integers in ``width`` where they fit, its floats in f64; flags as integers."""
    if kind == "[bool]":
        return f"[{width}]", [int(flag) for flag in value]
    if kind == "f32":
        return "f64", float(np.float32(value))
    bare = kind.strip("[]")
    if bare not in WIDTHS:
        return kind, value
    values = value if isinstance(value, list) else [value]
    most = 2 ** (int(width[1:]) - (width[0] == "i"))
    if not all(ROOM[width] <= v < most for v in values):
        return kind, value
    return (f"[{width}]" if kind[0] == "[" else width), value


def spec_of(model: Model) -> Spec:
    """Read from a file without weights to speak of."""
    a, d = model.architecture, model.n_embd
    pairs = [("general.architecture", "str", a)]
    pairs += [(model.full_key(key), *pair) for key, pair in model.metadata().items()]
    tensors = [ggufwriter.Tensor("token_embd.weight", (d, VOCAB), 0, bytes(4 * d * VOCAB))]
    tensors += [ggufwriter.f32_tensor(f"layer{i}", 1) for i in range(model.n_layers)]
    return read_spec(ModelFile.open(ggufwriter.write(pairs, tensors)))


@pytest.mark.parametrize(
    ("name", "width"), pairs([*sorted(MODELS), "gemma3-array", "deepseek2-v3", "llama-arrays"], WIDTHS)
)
def test_numbers_in_other_widths_say_the_same(name: str, width: str) -> None:
    model = (MODELS | VARIANTS)[name]
    keys = {key: in_width(*pair, width) for key, pair in model.metadata().items()}
    assert any(kind.strip("[]") == width for kind, _ in keys.values())
    assert spec_of(replace(model, keys={**model.keys, **keys})) == spec_of(model)


@pytest.mark.parametrize("width", WIDTHS)
def test_vocabularies_in_other_widths_say_the_same(width: str) -> None:
    tokens, types, merges = tiny_vocabulary()
    begin = len(tokens) - N_CONTROL
    pairs: dict[str, tuple[str, Any]] = {
        "model": ("str", "gpt2"),
        "pre": ("str", "gpt-2"),
        "tokens": ("[str]", tokens),
        "merges": ("[str]", merges),
        "scores": ("[f32]", [0.0] * len(tokens)),
        "token_type": ("[i32]", types),
        "bos_token_id": ("u32", begin),
        "eos_token_id": ("u32", begin + 1),
    }

    def bridge(changes: dict[str, tuple[str, Any]]) -> TokenizerBridge:
        named = [(f"tokenizer.ggml.{key}", *pair) for key, pair in (pairs | changes).items()]
        return TokenizerBridge.from_metadata(ModelFile.open(ggufwriter.write(named)).metadata)

    usual = bridge({})
    changes = {key: in_width(*pair, width) for key, pair in pairs.items() if key != "tokens"}
    assert changes["token_type"][0] == f"[{width}]"
    found = bridge(changes | {"scores": ("[f64]", [0.0] * len(tokens))})
    text = "once upon a time<|end|> there"
    assert found.encode(text, parse_special=True) == usual.encode(text, parse_special=True)
    assert begin + 1 in found.encode(text, parse_special=True)
    assert (found.special_ids, found.eog_ids) == (usual.special_ids, usual.eog_ids)


@pytest.mark.parametrize("name", few(sorted(MODELS)))
def test_any_key_that_is_missing_has_a_default_or_is_named(name: str) -> None:
    """What fails without a key is told by its name, or that of a tensor or key which depends on it."""
    model = MODELS[name]
    tensors = model.tensors()
    for key in model.metadata():
        data = replace(model, keys={**model.keys, key: None}).file_of(tensors)
        try:
            Running(data)
        except GGUFError as error:
            assert error.key == model.full_key(key)
        except LoadError as error:
            words = (f"{model.architecture}.", "expected shape", "expected a tensor of shape")
            assert any(word in str(error) for word in words), (key, str(error))


# --- padding ----------------------------------------------------------------------------------------


def padded_model(path: Path, rows: int) -> Path:
    """A tiny model whose tables have ``rows`` rows; those beyond the vocabulary have the largest logits."""
    rng = np.random.default_rng(1)
    n = len(tiny_vocabulary()[0])
    table, output = rng.standard_normal((2, n + 16, 64)).astype(np.float32)[:, :rows]
    output = output / 8
    output[n - N_CONTROL : n] = 0
    output[n:] *= 100
    return write_tiny_model(path, tensors={"token_embd.weight": table, "output.weight": output})


def test_rows_beyond_the_vocabulary_are_never_chosen(tmp_path: Path) -> None:
    """Tables are padded to round numbers: what no token stands for may have any logit."""
    n = len(tiny_vocabulary()[0])
    padded = InferenceEngine.from_gguf(padded_model(tmp_path / "a.gguf", n + 13), seed=3)
    usual = InferenceEngine.from_gguf(padded_model(tmp_path / "b.gguf", n), seed=3)
    logits = padded.logits(padded.tokenize("once upon"))
    assert logits.shape[1] == n + 13
    assert logits[-1].argmax() >= n
    for sampler in (
        SamplerConfig.greedy(),
        SamplerConfig(),
        SamplerConfig(temperature=5.0, top_k=0, top_p=1.0),
        SamplerConfig(regex="(once|upon|time){4}"),
    ):
        options: dict[str, Any] = {"sampler": sampler, "max_tokens": 12}
        assert padded.generate("once upon", **options) == usual.generate("once upon", **options)
    first, second = (e.stream("once", max_tokens=3, top_logprobs=5, seed=1).result() for e in (padded, usual))
    assert first.logprobs == second.logprobs


def test_more_tokens_than_rows_is_an_error(tmp_path: Path) -> None:
    n = len(tiny_vocabulary()[0])
    with pytest.raises(LoadError, match=f"tokenizer: has {n} tokens, the embedding only {n - 1} rows"):
        InferenceEngine.from_gguf(padded_model(tmp_path / "short.gguf", n - 1))
    output = np.zeros((n, 64), np.float32)
    path = write_tiny_model(
        tmp_path / "two.gguf",
        tensors={"token_embd.weight": np.zeros((n + 8, 64), np.float32), "output.weight": output},
    )
    with pytest.raises(LoadError, match=rf"output\.weight: expected shape \(64, {n + 8}\), got"):
        InferenceEngine.from_gguf(path)


# --- shards -----------------------------------------------------------------------------------------


def test_a_split_file_gives_the_bits_of_the_whole(tmp_path: Path) -> None:
    """Three shards as llama.cpp's gguf-split writes them: metadata in the first, tensors dealt in order."""
    whole = write_tiny_model(tmp_path / "whole.gguf", format="Q8_0", ends=False)
    raw = whole.read_bytes()
    with ModelFile.open(raw) as file:
        pairs = [value.tobytes() for value in file.raw_metadata().values()]
        tensors = [
            ggufwriter.Tensor(name, info.shape, info.format.id, file.data(name).tobytes())
            for name, info in file.tensors.items()
        ]
    assert len(tensors) == 21
    for number, part in enumerate((tensors[:5], tensors[5:6], tensors[6:])):
        split = [
            ggufwriter.pair("split.no", "u16", number),
            ggufwriter.pair("split.count", "u16", 3),
            ggufwriter.pair("split.tensors.count", "i32", len(tensors)),
        ]
        entries, data = [], b""
        for tensor in part:
            data += bytes(-len(data) % 32)
            entries.append(ggufwriter.entry(tensor.name, tensor.shape, tensor.type_id, len(data)))
            data += tensor.data
        shard = ggufwriter.assemble([*(pairs if number == 0 else []), *split], entries, data)
        (tmp_path / f"m-{number + 1:05d}-of-00003.gguf").write_bytes(shard)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = InferenceEngine.from_gguf(tmp_path / "m-00001-of-00003.gguf")
    usual = InferenceEngine.from_gguf(whole)
    ids = usual.tokenize("once upon a time")
    assert same_bits(engine.logits(ids), usual.logits(ids))
    assert engine.generate("once", max_tokens=6) is not None
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf: cannot be opened"):
        InferenceEngine.from_gguf(tmp_path / "m-00001-of-00003.gguf")
