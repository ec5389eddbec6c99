"""Every family that is converted: from random Hugging Face weights to logits, against a float64 twin.

The twin gets the source's own values, in GGUF's names, by what is written down here once more: what
the published modelling code does (where norms stand, which get 1 added, what is fused) is not taken from the
library.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxillama import InferenceEngine
from oxillama.convert import convert
from oxillama.errors import LoadError, OxiLlamaError
from oxillama.modelfile import ModelFile
from tests import huggingface as hf
from tests.tinymodels import Running
from tests.twins.transformer import Twin
from tests.zoo import Model

TOKENS = [3, 77, 200, 5, 5, 301, 0, 42, 17, 260, 9, 31, 8, 120, 121, 122]
D, HEADS, KV, DIM, FF, LAYERS = 32, 4, 2, 8, 40, 4
EXPERTS, WIDTH, SHARED = 6, 24, 20


class TwinOf(Twin):
    """With windows given by layer, and logits from a table of another size than the zoo's."""

    def __init__(self, model: Model, weights: dict[str, np.ndarray], windows: list[int] | None) -> None:
        super().__init__(model, weights)
        self.windows = windows

    def window(self, i: int) -> int:
        return super().window(i) if self.windows is None else self.windows[i]


@dataclass
class Source:
    """Weights by Hugging Face's names, and what the twin is to have of them."""

    source: dict[str, np.ndarray] = field(default_factory=dict)
    twin: dict[str, np.ndarray] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    def matrix(self, name: str, target: str, *shape: int, bias: bool = False) -> None:
        values = (self.rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        self.put(f"{name}.weight", f"{target}.weight", values)
        if bias:
            values = (0.3 * self.rng.standard_normal(shape[0])).astype(np.float32)
            self.put(f"{name}.bias", f"{target}.bias", values)

    def norm(self, name: str, target: str, n: int, plus: float = 0.0, bias: bool = False) -> None:
        values = (1 - plus + 0.3 * self.rng.standard_normal(n)).astype(np.float32)
        self.put(f"{name}.weight", f"{target}.weight", values, plus)
        if bias:
            values = (0.3 * self.rng.standard_normal(n)).astype(np.float32)
            self.put(f"{name}.bias", f"{target}.bias", values)

    def experts(self, name: str, target: str, *shape: int) -> None:
        """One tensor for each; the twin has them stacked."""
        values = (self.rng.standard_normal((EXPERTS, *shape)) * shape[-1] ** -0.5).astype(np.float32)
        self.twin[f"{target}.weight"] = values
        self.source |= {f"{name.format(e)}.weight": part for e, part in enumerate(values)}

    def put(self, name: str, target: str, values: np.ndarray, plus: float = 0.0) -> None:
        self.source[name] = values
        self.twin[target] = values.astype(np.float64) + plus


def weights_of(kind: str, n_layers: int = LAYERS, tied: bool = False) -> Source:
    """A model's, by the model_type of Hugging Face."""
    made = Source()
    plus = 1.0 if kind.startswith("gemma") else 0.0
    layer_norm = kind == "starcoder2"
    made.matrix("model.embed_tokens", "token_embd", hf.N_VOCAB, D)
    made.source["model.embed_tokens.weight"] *= np.float32(3)
    made.twin["token_embd.weight"] *= 3
    for i in range(n_layers):
        there, here = f"model.layers.{i}", f"blk.{i}"

        def norm(name: str, target: str, n: int = D) -> None:
            made.norm(f"{there}.{name}", f"{here}.{target}", n, plus, layer_norm)  # noqa: B023

        if kind == "phi3":
            made.matrix(f"{there}.self_attn.qkv_proj", f"{here}.attn_qkv", (HEADS + 2 * KV) * DIM, D)
        else:
            biased = kind in ("qwen2_moe", "starcoder2")
            for part, heads in (("q", HEADS), ("k", KV), ("v", KV)):
                made.matrix(
                    f"{there}.self_attn.{part}_proj", f"{here}.attn_{part}", heads * DIM, D, bias=biased
                )
        made.matrix(f"{there}.self_attn.o_proj", f"{here}.attn_output", D, HEADS * DIM, bias=layer_norm)
        for part, heads in (("q", HEADS), ("k", KV)):
            if kind in ("qwen3_moe", "gemma3_text"):
                norm(f"self_attn.{part}_norm", f"attn_{part}_norm", DIM)
            elif kind in ("olmo2", "olmo3", "olmoe"):
                norm(f"self_attn.{part}_norm", f"attn_{part}_norm", heads * DIM)
        if kind in ("olmo2", "olmo3"):
            norm("post_attention_layernorm", "post_attention_norm")
            norm("post_feedforward_layernorm", "post_ffw_norm")
        else:
            norm("input_layernorm", "attn_norm")
            after = "post_attention_norm" if kind in ("gemma2", "gemma3_text") else "ffn_norm"
            norm("post_attention_layernorm", after)
            if kind in ("gemma2", "gemma3_text"):
                norm("pre_feedforward_layernorm", "ffn_norm")
                norm("post_feedforward_layernorm", "post_ffw_norm")
        feed(made, kind, there, here)
    made.norm("model.norm", "output_norm", D, plus, layer_norm)
    if not tied:
        made.matrix("lm_head", "output", hf.N_VOCAB, D)
    return made


def feed(made: Source, kind: str, there: str, here: str) -> None:
    """The feed-forward block of a layer."""
    if kind == "mixtral":
        made.matrix(f"{there}.block_sparse_moe.gate", f"{here}.ffn_gate_inp", EXPERTS, D)
        for name, part, shape in (("w1", "gate", (FF, D)), ("w2", "down", (D, FF)), ("w3", "up", (FF, D))):
            made.experts(f"{there}.block_sparse_moe.experts.{{}}.{name}", f"{here}.ffn_{part}_exps", *shape)
    elif kind in ("qwen2_moe", "qwen3_moe", "olmoe"):
        made.matrix(f"{there}.mlp.gate", f"{here}.ffn_gate_inp", EXPERTS, D)
        for part, shape in (("gate", (WIDTH, D)), ("up", (WIDTH, D)), ("down", (D, WIDTH))):
            made.experts(f"{there}.mlp.experts.{{}}.{part}_proj", f"{here}.ffn_{part}_exps", *shape)
        if kind == "qwen2_moe":
            for part, shape in (("gate", (SHARED, D)), ("up", (SHARED, D)), ("down", (D, SHARED))):
                made.matrix(f"{there}.mlp.shared_expert.{part}_proj", f"{here}.ffn_{part}_shexp", *shape)
            made.matrix(f"{there}.mlp.shared_expert_gate", f"{here}.ffn_gate_inp_shexp", 1, D)
            made.twin[f"{here}.ffn_gate_inp_shexp.weight"] = made.twin[f"{here}.ffn_gate_inp_shexp.weight"][0]
    elif kind == "phi3":
        made.matrix(f"{there}.mlp.gate_up_proj", f"{here}.ffn_up", 2 * FF, D)
        made.matrix(f"{there}.mlp.down_proj", f"{here}.ffn_down", D, FF)
    elif kind == "starcoder2":
        made.matrix(f"{there}.mlp.c_fc", f"{here}.ffn_up", FF, D, bias=True)
        made.matrix(f"{there}.mlp.c_proj", f"{here}.ffn_down", D, FF, bias=True)
    else:
        for part, shape in (("gate", (FF, D)), ("up", (FF, D)), ("down", (D, FF))):
            made.matrix(f"{there}.mlp.{part}_proj", f"{here}.ffn_{part}", *shape)


NAMES = {
    "mistral": "Mistral", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe",
    "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3", "phi3": "Phi3", "olmo2": "Olmo2",
    "olmo3": "Olmo3", "olmoe": "Olmoe", "starcoder2": "Starcoder2",
}  # fmt: skip
QWEN_EXPERTS = {"num_experts": EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": WIDTH}
GEMMA_TANH = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
SPECIFIC: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 3},
    "qwen2_moe": {
        **QWEN_EXPERTS, "shared_expert_intermediate_size": SHARED, "decoder_sparse_step": 1,
        "norm_topk_prob": False, "use_sliding_window": False, "sliding_window": 4, "mlp_only_layers": [],
        "attention_bias": True,  # which the model's code does not read
    },
    "qwen3_moe": {**QWEN_EXPERTS, "norm_topk_prob": True, "attention_bias": False},
    "gemma": {**GEMMA_TANH, "head_dim": DIM},
    "gemma2": {
        **GEMMA_TANH, "head_dim": DIM, "query_pre_attn_scalar": 5, "sliding_window": 6,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **GEMMA_TANH, "head_dim": DIM, "query_pre_attn_scalar": 5, "sliding_window": 6,
        "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "olmoe": {"num_experts": EXPERTS, "num_experts_per_tok": 3, "intermediate_size": WIDTH},
    "olmo3": {"sliding_window": 6},
    "starcoder2": {
        "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-3, "use_bias": True, "rms_norm_eps": None,
    },
}  # fmt: skip
TIED = ("gemma", "gemma2", "gemma3_text", "starcoder2")


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    """As published, for a model of a few numbers."""
    return {
        "architectures": [f"{NAMES[kind]}ForCausalLM"], "model_type": kind, **hf.SIZES,
        "num_hidden_layers": LAYERS, "vocab_size": hf.N_VOCAB, **SPECIFIC.get(kind, {}), **changes,
    }  # fmt: skip


ARCHITECTURES = {  # whose twin it is; with halves that rotate, Mixtral is a Qwen3 of experts without norms
    "mistral": "qwen2", "mixtral": "qwen3moe", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3", "olmo3": "olmo2",
}  # fmt: skip


def twin_of(
    kind: str, made: Source, windows: list[int] | None = None, n_rot: int = DIM, **keys: Any
) -> np.ndarray:
    """Logits of TOKENS."""
    widths = {"expert_ff": FF if kind == "mixtral" else WIDTH, "n_experts": EXPERTS, "n_used": 3}
    kinds = {float: "f32", int: "u32", str: "str", bool: "bool", list: "[bool]"}
    model = Model(
        ARCHITECTURES.get(kind, kind),
        n_layers=LAYERS,
        n_rot=n_rot,
        keys={key.replace("__", "."): (kinds[type(value)], value) for key, value in keys.items()},
        **widths,
    )
    return TwinOf(model, made.twin, windows).logits(TOKENS)


def converted(folder: Path, config: dict[str, Any], made: Source, type: str = "F32", **options: Any) -> bytes:
    source = hf.write_folder(folder / "model", config, made.source, **options)
    convert(source, folder / "out.gguf", type)
    return (folder / "out.gguf").read_bytes()


def check(data: bytes, wanted: np.ndarray, tolerance: float = 3e-4) -> None:
    running = Running(data)
    assert running.weights.unused() == []
    found = running.logits(TOKENS)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


GEMMA2_KEYS: dict[str, Any] = {
    "attention__scale": 5**-0.5, "attention__sliding_window": 6, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA3_KEYS: dict[str, Any] = {
    "attention__scale": 5**-0.5, "attention__sliding_window": 6, "rope__freq_base_swa": 50.0,
    "rope__scaling__type": "linear", "rope__scaling__factor": 8.0,
}  # fmt: skip
OLMO3_KEYS: dict[str, Any] = {"attention__sliding_window": 6}
KEYS = {"gemma2": GEMMA2_KEYS, "gemma3_text": GEMMA3_KEYS, "olmo3": OLMO3_KEYS}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", NAMES)
def test_every_family(tmp_path: Path, kind: str, shards: int) -> None:
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind), made, shards=shards)
    check(data, twin_of(kind, made, **KEYS.get(kind, {})))


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "gemma2", "phi3", "starcoder2"])
@pytest.mark.parametrize(
    "stored, written, tolerance", [("BF16", "BF16", 0.05), ("BF16", "Q8_0", 0.2), ("F16", "F16", 0.02)]
)
def test_types(tmp_path: Path, kind: str, stored: str, written: str, tolerance: float) -> None:
    """Read as bfloat16 or float16; matrices of experts are of the type asked for, routers and vectors F32."""
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind), made, written, kind=stored)
    with ModelFile.open(data) as file:
        for name, info in file.tensors.items():
            small = len(info.shape) == 1 or "ffn_gate_inp" in name
            fits = written != "Q8_0" or info.shape[0] % 32 == 0
            assert info.format.name == ("F32" if small else written if fits else "F16"), name
    running = Running(data)
    wanted, found = twin_of(kind, made, **KEYS.get(kind, {})), running.logits(TOKENS)
    errors = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(errors) < tolerance


# --- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2_moe", "olmo2", "olmoe", "qwen3_moe", "phi3", "mistral", "mixtral"])
def test_tied_embeddings(tmp_path: Path, kind: str) -> None:
    """Where GGUF's architecture has no tied output, the table is written twice."""
    made = weights_of(kind, tied=True)
    data = converted(tmp_path, config_of(kind, tie_word_embeddings=True), made)
    check(data, twin_of(kind, made))
    with ModelFile.open(data) as file:
        assert ("output.weight" in file.tensors) == (kind in ("qwen2_moe", "olmo2", "olmoe"))


@pytest.mark.parametrize("kind, flag", [("gemma3_text", False), ("starcoder2", False)])
def test_outputs_of_their_own(tmp_path: Path, kind: str, flag: bool) -> None:
    made = weights_of(kind)
    data = converted(tmp_path, config_of(kind, tie_word_embeddings=flag), made)
    check(data, twin_of(kind, made, **KEYS.get(kind, {})))


@pytest.mark.parametrize("kind", ["mistral", "starcoder2", "phi3"])
def test_windows_of_all_layers(tmp_path: Path, kind: str) -> None:
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind, sliding_window=5), made)
    wanted = twin_of(kind, made, windows=[5] * LAYERS)
    assert np.abs(wanted - twin_of(kind, made)).max() > 0.01 * np.abs(wanted).max()
    check(data, wanted)


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    made = weights_of("phi3")
    data = converted(tmp_path, config_of("phi3", sliding_window=262144), made)
    check(data, twin_of("phi3", made))


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3", "mistral"])
@pytest.mark.parametrize("has", [[True, True, False, False], [False, True] * 2, [False] * 4, [True] * 4])
def test_windows_of_some_layers(tmp_path: Path, kind: str, has: list[bool]) -> None:
    made = weights_of(kind, tied=kind in TIED)
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in has]
    data = converted(tmp_path, config_of(kind, sliding_window=6, layer_types=kinds), made)
    check(data, twin_of(kind, made, windows=[6 * windowed for windowed in has], **KEYS.get(kind, {})))


def test_gemma_3_may_say_its_period_and_both_rotations(tmp_path: Path) -> None:
    made = weights_of("gemma3_text", tied=True)
    both = {
        "full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    config = config_of("gemma3_text", rope_parameters=both, rope_scaling=None, rope_local_base_freq=None)
    del config["rope_theta"]
    wanted = twin_of("gemma3_text", made, windows=[6, 0, 6, 0], **GEMMA3_KEYS)
    check(converted(tmp_path, {**config, "sliding_window_pattern": 2}, made), wanted)


@pytest.mark.parametrize("local", [None, 50.0])
def test_olmo_3_may_say_both_rotations(tmp_path: Path, local: float | None) -> None:
    made = weights_of("olmo3")
    inner = {"rope_type": "default", **({"rope_theta": local} if local else {})}
    full = {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0}
    both = {"full_attention": full, "sliding_attention": inner}
    keys = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0, "attention__sliding_window": 6}
    wanted = twin_of("olmo3", made, rope__freq_base_swa=local or 100.0, **keys)
    check(converted(tmp_path, config_of("olmo3", rope_parameters=both), made), wanted)


@pytest.mark.parametrize(
    "both, finding",
    [
        ({"full_attention": {}, "chunked_attention": {}}, "chunked_attention is not supported"),
        (
            {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            "rope_type: 'linear' is not supported",
        ),
        ({"sliding_attention": {"rope_type": "default", "factor": 2.0}}, "factor is not supported"),
        ({"full_attention": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ({"full_attention": 3}, "full_attention: needs an object, got 3"),
    ],
)
def test_rotations_that_are_refused(tmp_path: Path, both: dict[str, Any], finding: str) -> None:
    made = weights_of("olmo3")
    with pytest.raises(LoadError, match=finding):
        converted(tmp_path, config_of("olmo3", rope_parameters=both), made)


def test_what_config_classes_fill_in(tmp_path: Path) -> None:
    """Keys that a family's config class has values for, and that published files may leave out."""
    usual: dict[str, dict[str, Any]] = {
        "mixtral": {"rope.freq_base": 1e6},
        "olmo3": {"rope.freq_base": 500000.0, "attention.sliding_window": 4096},
        "gemma3_text": {
            **{"rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 4096},
            **{"context_length": 131072, "attention.scale": 1 / 16},
        },
        "gemma2": {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.scale": 1 / 16,
        },
    }
    left_out = {
        *("rope_theta", "sliding_window", "max_position_embeddings", "rope_local_base_freq"),
        *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "rope_scaling"),
    }
    for kind, wanted in usual.items():
        keep = {"max_position_embeddings"} if kind != "gemma3_text" else set()
        config = {key: value for key, value in config_of(kind).items() if key not in left_out - keep}
        data = converted(tmp_path, config, weights_of(kind, tied=kind in TIED))
        with ModelFile.open(data) as file:
            architecture = file.get("general.architecture", str)
            found = {key: file.metadata[f"{architecture}.{key}"] for key in wanted}
        assert found == pytest.approx(wanted), kind


def test_gemma_2_without_caps_and_with_the_usual_scale(tmp_path: Path) -> None:
    made = weights_of("gemma2", tied=True)
    off = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": DIM}
    wanted = twin_of(
        "gemma2", made, attention__sliding_window=6, attn_logit_softcapping=0.0, final_logit_softcapping=0.0
    )
    check(converted(tmp_path, config_of("gemma2", **off), made), wanted)


@pytest.mark.parametrize("kind, normalized", [("qwen2_moe", True), ("olmoe", True), ("olmoe", False)])
def test_weights_of_experts(tmp_path: Path, kind: str, normalized: bool) -> None:
    made = weights_of(kind)
    data = converted(tmp_path, config_of(kind, norm_topk_prob=normalized), made)
    check(data, twin_of(kind, made, expert_weights_norm=normalized))


def test_clipped_values(tmp_path: Path) -> None:
    made = weights_of("olmoe")
    data = converted(tmp_path, config_of("olmoe", clip_qkv=0.4), made)
    check(data, twin_of("olmoe", made, attention__clamp_kqv=0.4))


# --- rotations --------------------------------------------------------------------------------------

FACTORS = {"short": [1.0, 1.5, 2.0, 3.0], "long": [1.0, 2.5, 4.0, 9.0]}


def longrope(kind: str, original: int, n: int = 4, **more: Any) -> dict[str, Any]:
    factors = {f"{length}_factor": values[:n] for length, values in FACTORS.items()}
    scaling = {"rope_type": "longrope", **factors, **more}
    return config_of(kind, rope_scaling=scaling, original_max_position_embeddings=original)


@pytest.mark.parametrize("name", ["longrope", "su"])
@pytest.mark.parametrize("original, length", [(64, "long"), (256, "short")])
def test_longrope(tmp_path: Path, original: int, length: str, name: str) -> None:
    """The context of 256 is beyond the first one of 64: long factors, and larger cosines."""
    made = weights_of("phi3")
    stretch = 256 / original
    gain = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    data = converted(tmp_path, longrope("phi3", original, rope_type=name), made)
    made.twin["rope_factors_long.weight"] = made.twin["rope_factors_short.weight"] = np.array(FACTORS[length])
    keys = {"rope__scaling__original_context_length": original, "rope__scaling__attn_factor": gain}
    check(data, twin_of("phi3", made, **keys))


def test_longrope_switches_with_the_context(tmp_path: Path) -> None:
    made = weights_of("phi3")
    converted(tmp_path, longrope("phi3", 64), made)
    found = {}
    for context in (64, 65):
        engine = InferenceEngine.from_gguf(tmp_path / "out.gguf", context_size=context)
        found[context] = engine.runner.model.frequencies[0]
    plain = 100.0 ** (-np.arange(0, DIM, 2) / DIM)
    assert np.allclose(found[64], plain / FACTORS["short"])
    assert np.allclose(found[65], plain / FACTORS["long"])


def test_longrope_of_a_share_of_each_head(tmp_path: Path) -> None:
    made = weights_of("phi3")
    config = longrope("phi3", 64, n=3, attention_factor=1.5) | {"partial_rotary_factor": 0.75}
    data = converted(tmp_path, config, made)
    factors = np.array(FACTORS["long"][:3])
    made.twin["rope_factors_long.weight"] = made.twin["rope_factors_short.weight"] = factors
    keys = {"rope__scaling__original_context_length": 64, "rope__scaling__attn_factor": 1.5}
    check(data, twin_of("phi3", made, n_rot=6, **keys))


def test_dynamic(tmp_path: Path) -> None:
    """Up to the context of training nothing is scaled; beyond it the base is, by the engine's context."""
    made = weights_of("mistral")
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 256}
    check(converted(tmp_path, config_of("mistral", rope_scaling=scaling), made), twin_of("mistral", made))
    with pytest.warns(UserWarning, match="context_size: 1024 is more than the 256"):
        engine = InferenceEngine.from_gguf(tmp_path / "out.gguf", context_size=1024)
    base = 100.0 * (2.0 * 1024 / 256 - 1) ** (DIM / (DIM - 2))
    found = engine.runner.model.frequencies[0]
    assert np.allclose(found, base ** (-np.arange(0, DIM, 2) / DIM), rtol=1e-12)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "olmo3"])
@pytest.mark.parametrize(
    ("more", "gain"),
    [
        ({}, 1 + 0.1 * math.log(4)),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4))),
        ({"mscale": 0.7}, 1 + 0.1 * math.log(4)),
        ({"factor": None}, 1 + 0.1 * math.log(4)),  # the context of 256 over the original one
    ],
)
def test_yarn(tmp_path: Path, kind: str, more: dict[str, float], gain: float) -> None:
    made = weights_of(kind)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **more}
    data = converted(tmp_path, config_of(kind, rope_scaling=scaling), made)
    keys = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 64,
        "rope__scaling__attn_factor": gain / (1 + 0.1 * math.log(4)),
    }
    check(data, twin_of(kind, made, **keys, **KEYS.get(kind, {})))


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, changes, finding",
    [
        ("mixtral", {"num_local_experts": 2**30}, "experts of all layers: 4294967296 are more than the"),
        ("gemma2", {"layer_types": [["full_attention"]] * 4}, "layer_types: needs"),
        ("mixtral", {"num_local_experts": None}, "num_local_experts: needs a number"),
        ("mixtral", {"num_local_experts": 7}, r"gate\.weight: should be \[7, 32\], found \[6, 32\]"),
        ("mixtral", {"num_hidden_layers": 5}, r"layers\.4\.self_attn\.q_proj\.weight: the source has no"),
        ("mixtral", {"model_type": "mistral"}, "model_type: 'mistral' is not supported"),
        ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\] is not supported"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window: True is not supported"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob: needs true or false"),
        ("qwen3_moe", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
        ("gemma", {"hidden_activation": "relu"}, "hidden_activation: 'relu' is not supported"),
        ("gemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types: needs .* for each of 4 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types: needs"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not"),
        ("phi3", {"partial_rotary_factor": 0.4}, "partial_rotary_factor: 0.4 of 8 dim"),
        ("phi3", {"attention_bias": True}, "attention_bias: True is not supported"),
        (
            "phi3",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
            "original_max_position_embeddings: 64 is not supported",
        ),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "factor: needs a number above 0"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0, "long_factor": [1]}}, "long_factor of"),
        ("olmo2", {"layer_types": ["sliding_attention"] * 4}, "layer_types: .* is not supported"),
        ("olmo2", {"clip_qkv": 8.0}, "clip_qkv: 8.0 is not supported"),
        ("starcoder2", {"mlp_type": "gated"}, "mlp_type: 'gated' is not supported"),
        ("starcoder2", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ("mistral", {"residual_multiplier": 0.5}, "residual_multiplier: 0.5 is not supported"),
        ("mistral", {"num_local_experts": 8}, "num_local_experts: 8 is not supported"),
    ],
)  # fmt: skip
def test_options_that_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], finding: str) -> None:
    made = weights_of(kind, tied=kind in TIED)
    with pytest.raises(LoadError, match=finding):
        converted(tmp_path, config_of(kind, **changes), made)
    assert not (tmp_path / "out.gguf").exists()


ODD: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 2**31, 10**30, 0.5, 1.5, -2.0, 1e-30, 1e300, math.nan, math.inf),
    *("", "silu", "yarn", [], [1], ["full_attention"] * LAYERS, [[1]], {}, {"rope_type": "longrope"}),
    {"rope_type": "yarn", "factor": 1e300},
    {"rope_type": "dynamic", "factor": 1e-300, "original_max_position_embeddings": 1},
    {"rope_type": "longrope", "factor": 2.0, "long_factor": [1.0] * 4, "short_factor": [1e-30] * 4},
    {"rope_type": "llama3", "factor": 1e-12, "original_max_position_embeddings": 2**31 - 1},
    {"full_attention": {"rope_type": "default"}, "sliding_attention": 3},
]
OTHERS = (
    *("rope_scaling", "rope_parameters", "head_dim", "layer_types", "tie_word_embeddings", "sliding_window"),
    *("original_max_position_embeddings", "partial_rotary_factor", "sliding_window_pattern", "clip_qkv"),
    *("attention_bias", "mlp_bias", "query_pre_attn_scalar", "num_experts", "quantization_config"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_config_says_it_is_refused_or_the_file_runs(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(NAMES)))
    config = config_of(kind)
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted({*config, *OTHERS} - {"architectures"})))
        config[key] = data.draw(st.sampled_from(ODD))
    made = SOURCES.setdefault(kind, weights_of(kind, tied=kind in TIED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys that nothing is known about
        try:
            raw = converted(tmp_path, config, made)
        except OxiLlamaError:
            return
    assert Running(raw).logits([1, 2, 3]).shape == (3, hf.N_VOCAB)


SOURCES: dict[str, Source] = {}


def test_factors_that_are_not_as_many(tmp_path: Path) -> None:
    made = weights_of("phi3")
    with pytest.raises(LoadError, match=r"long_factor: needs 4 numbers above 0, got \[1.0, 2.5, 4.0\]"):
        converted(tmp_path, longrope("phi3", 64, n=3), made)


def test_an_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    made = weights_of("qwen3_moe")
    name = "model.layers.2.mlp.experts.4.up_proj.weight"
    made.source[name] = made.source[name].T
    with pytest.raises(LoadError, match=rf"{name}: should be \[24, 32\], found \[32, 24\]"):
        converted(tmp_path, config_of("qwen3_moe"), made)


def test_a_tokenizer_as_gemma_has_it(tmp_path: Path) -> None:
    """Spaces become U+2581 and nothing stands before the text; the cut at spaces then finds none."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer: Any = hf.sentence_piece_tokenizer()
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made = weights_of("gemma", tied=True)
    converted(tmp_path, config_of("gemma"), made, tokenizer=tokenizer)
    engine = InferenceEngine.from_gguf(tmp_path / "out.gguf")
    for text in ("the hell in there", " the  hell\n", "é"):
        assert engine.tokenize(text) == tokenizer.encode(text).ids
