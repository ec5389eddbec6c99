"""Converted adapters add to a converted base what PEFT adds to its weights, and what they cannot is named."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.apps.convert import Conversion, bases, convert
from oxillama.apps.convert.config import usual_name
from oxillama.errors import ConfigError, GGUFError, LoadError, ModelFileError
from oxillama.gguf.model_file import ModelFile
from tests.apps.convert.test_transformers import OF_TOWERS
from tests.support import huggingface as hf
from tests.support.command_line import error, output
from tests.support.convert_families import EXPERTS, NAMES, TIED, config_of, weights_of
from tests.support.newer_configs import CONFIGS
from tests.support.peft import adapter_config, adapter_of, is_table, matrices_of, merged, write_adapter
from tests.support.spread import each
from tests.support.transformers_models import recorded, weights_of as newer_weights

Weights = dict[str, np.ndarray]


def base_of(kind: str) -> tuple[dict[str, Any], Weights, dict[str, Any]]:
    """config.json, weights by name, and options of `hf.write_folder`."""
    if kind in CONFIGS:
        config, shapes, _ = recorded(kind)
        return config, newer_weights(shapes), {}
    if kind == "bert":
        return hf.BERT, hf.bert_weights(hf.BERT), {"tokenizer": "\n".join(hf.WORDS)}
    return config_of(kind), weights_of(kind, tied=kind in TIED).source, {}


def tensors_of(path: Path) -> Weights:
    """All tensors in NumPy's order, as floats."""
    found = {}
    with ModelFile.open(path) as file:
        for name, info in file.tensors.items():
            data, shape = file.data(name), info.shape[::-1]
            if info.format.name == "BF16":
                values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = data.view({"F32": np.float32, "F16": np.float16}[info.format.name])
            found[name] = values.reshape(shape).astype(np.float64)
    return found


def deltas(path: Path) -> Weights:
    """What an adapter adds to each tensor of its base, as readers of GGUF compute it."""
    found, halves = {}, tensors_of(path)
    with ModelFile.open(path) as file:
        alpha = file.get("adapter.lora.alpha", float)
    for name in [name.removesuffix(".lora_a") for name in halves if name.endswith(".lora_a")]:
        a, b = halves.pop(f"{name}.lora_a"), halves.pop(f"{name}.lora_b")
        rank = b.shape[-1]
        product = a @ b.T if name == "token_embd.weight" else b @ a
        found[name] = product * (alpha / rank)
    assert halves == {}
    return found


class Case:
    """A base and an adapter of it, on the disk."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.config, self.weights, self.options = base_of(kind)
        self.base = hf.write_folder(folder / "base", self.config, self.weights, **self.options)

    def convert(
        self, options: Mapping[str, Any], tensors: Weights, type: str | None = None, base: Path | None = None
    ) -> Conversion:
        source = write_adapter(self.folder / "pirate", options, tensors)
        return convert(source, self.folder / "pirate.gguf", type, base or self.base)

    def bare(self, **changes: Any) -> Path:
        """A folder with the config of the base alone."""
        found = self.folder / "bare"
        found.mkdir()
        (found / "config.json").write_text(json.dumps(self.config | changes))
        return found

    def check(
        self, tensors: Weights, scale_of: Callable[[str, int], float], prefix: str = "base_model.model."
    ) -> set[str]:
        """The base with the adapter is the merged base; returns the tensors that have one."""
        wanted = merged(self.weights, tensors, scale_of, prefix)
        hf.write_folder(self.folder / "merged", self.config, wanted, **self.options)
        convert(self.base, self.folder / "base.gguf", "F32")
        convert(self.folder / "merged", self.folder / "merged.gguf", "F32")
        before, after = tensors_of(self.folder / "base.gguf"), tensors_of(self.folder / "merged.gguf")
        added = deltas(self.folder / "pirate.gguf")
        for name, values in after.items():
            if name == "output.weight" and name not in added and "lm_head.weight" not in self.weights:
                continue  # a copy of the embedding, which has an adapter of its input only
            delta = added[name].reshape(values.shape) if name in added else 0
            np.testing.assert_allclose(before[name] + delta, values, rtol=0, atol=3e-5, err_msg=name)
            assert name not in added or np.abs(delta).max() > 0.1
        return set(added)


@pytest.fixture
def llama(tmp_path: Path) -> Case:
    return Case(tmp_path, "llama")


@pytest.fixture
def queries(llama: Case) -> Weights:
    """An adapter of one matrix."""
    return adapter_of(llama.weights, ["model.layers.0.self_attn.q_proj"])


def usual(module: str, rank: int) -> float:
    return 6 / rank


@pytest.mark.parametrize("kind", ["bert", *NAMES])
def test_every_family(tmp_path: Path, kind: str) -> None:
    """All matrices: permuted, fused and stacked ones, routers, words, the output."""
    case = Case(tmp_path, kind)
    modules = [name for name in matrices_of(case.weights) if "position" not in name and "type" not in name]
    tensors = adapter_of(case.weights, modules)
    done = case.convert(adapter_config(), tensors)
    assert done.is_adapter
    assert done.folded == done.left_out == ()
    names = case.check(tensors, usual)
    matrices = {name for name, values in tensors_of(tmp_path / "base.gguf").items() if values.ndim > 1}
    copied = {"output.weight"} if "lm_head.weight" not in case.weights else set()
    vectors = {name for name in names if "shexp" in name}  # a matrix of one row
    assert names == (matrices | vectors) - {"position_embd.weight", "token_types.weight"} - copied
    # from a GGUF file of the base: the same bytes
    whole = (tmp_path / "pirate.gguf").read_bytes()
    case.convert(adapter_config(), tensors, base=tmp_path / "base.gguf")
    assert (tmp_path / "pirate.gguf").read_bytes() == whole


@pytest.mark.parametrize("kind", each(sorted(CONFIGS), 4))
def test_newer_families(tmp_path: Path, kind: str) -> None:
    """All matrices that stay what they are; those that are changed on the way are refused by name."""
    case = Case(tmp_path, kind)
    known = bases.base_of(case.base)
    usual_names = {
        name: usual_name(known.renamed, name)
        for name in matrices_of(case.weights)
        if f"{name}.weight" in case.weights and not name.removeprefix("model.").startswith(OF_TOWERS)
    }
    modules = [name for name, usual in usual_names.items() if usual in known.places]
    assert len(modules) > len(usual_names) // 4 or kind.startswith("falcon_h1")
    tensors = adapter_of(case.weights, modules)
    case.convert(adapter_config(), tensors)
    assert case.check(tensors, usual) == {known.places[usual_names[name]].target for name in modules}
    whole = (tmp_path / "pirate.gguf").read_bytes()
    case.convert(adapter_config(), tensors, base=tmp_path / "base.gguf")
    assert (tmp_path / "pirate.gguf").read_bytes() == whole
    for name in sorted(usual_names.keys() - set(modules))[:2]:
        with pytest.raises(LoadError, match=rf"{re.escape(name)}\.lora"):
            case.convert(adapter_config(), adapter_of(case.weights, [name]))


def test_only_the_config_of_the_base_is_needed(tmp_path: Path, llama: Case) -> None:
    """Also one whose weights were quantized for training."""
    tensors = adapter_of(llama.weights, ["model.layers.1.self_attn.q_proj"])
    llama.convert(adapter_config(), tensors)
    wanted = (tmp_path / "pirate.gguf").read_bytes()
    bare = llama.bare(quantization_config={"bits": 4})
    llama.convert(adapter_config(), tensors, base=bare)
    assert (tmp_path / "pirate.gguf").read_bytes() == wanted
    options = adapter_config(base_model_name_or_path=str(bare))
    convert(write_adapter(tmp_path / "pirate", options, tensors), tmp_path / "pirate.gguf")
    assert deltas(tmp_path / "pirate.gguf").keys() == {"blk.1.attn_q.weight"}


def test_rank_stabilized(tmp_path: Path, llama: Case) -> None:
    """alpha / sqrt(rank), in the file's alpha; nothing is folded."""
    tensors = adapter_of(llama.weights, matrices_of(llama.weights)[1:4])
    done = llama.convert(adapter_config(use_rslora=True), tensors)
    assert done.folded == ()
    with ModelFile.open(tmp_path / "pirate.gguf") as file:
        assert file.get("adapter.lora.alpha", float) == 6 * math.sqrt(4)
    llama.check(tensors, lambda module, rank: 6 / math.sqrt(rank))


@pytest.mark.parametrize("stabilized", [False, True])
def test_ranks_and_alphas_by_pattern(tmp_path: Path, llama: Case, stabilized: bool) -> None:
    """The first pattern that matches counts, at the beginning of the name or behind a dot."""
    options = adapter_config(
        rank_pattern={r"^model\.layers\.0\..*": 2, "proj": 9, r"mlp\.(up|down)_proj": 5},
        alpha_pattern={"model.layers.1.mlp.up_proj": 11, r".*\.1\.mlp\..*": 3, "q_proj": 7},
        use_rslora=stabilized,
    )

    def rank_of(module: str) -> int:
        return 2 if "layers.0" in module else 5 if "up" in module or "down" in module else 4

    def alpha_of(module: str) -> float:
        if "layers.1.mlp" in module:
            return 11 if "up_proj" in module else 3
        return 7 if "q_proj" in module else 6

    modules = [module for module in matrices_of(llama.weights) if re.search(r"layers\.[01]\.", module)]
    tensors = adapter_of(llama.weights, modules, rank_of)
    done = llama.convert(options, tensors, "F16")
    power = 0.5 if stabilized else 1
    folded = {"blk.0.attn_q", "blk.1.attn_q", "blk.1.ffn_up", "blk.1.ffn_gate", "blk.1.ffn_down"}
    if stabilized:  # alpha' is that of the usual rank
        folded |= {f"blk.0.{part}" for part in ("attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate")}
        folded.add("blk.0.ffn_down")
    assert set(done.folded) == {f"{name}.weight.lora_b" for name in folded}
    with ModelFile.open(tmp_path / "pirate.gguf") as file:
        for name, info in file.tensors.items():
            assert info.format.name == ("F32" if name in done.folded else "F16"), name
    done = llama.convert(options, tensors, "F32")
    llama.check(tensors, lambda module, rank: alpha_of(module) / rank**power)


def test_some_experts_of_several_ranks(tmp_path: Path) -> None:
    case = Case(tmp_path, "qwen3_moe")
    start = "model.layers.2.mlp.experts"
    modules = [f"{start}.{e}.up_proj" for e in (0, 3, 5)] + [f"{start}.1.down_proj"]
    tensors = adapter_of(case.weights, modules, lambda module: 7 if ".3." in module else 4)
    done = case.convert(adapter_config(rank_pattern={r"experts\.3\.up_proj": 7}), tensors)
    assert done.folded == ("blk.2.ffn_up_exps.weight.lora_b",)
    assert case.check(tensors, usual) == {"blk.2.ffn_up_exps.weight", "blk.2.ffn_down_exps.weight"}
    values = tensors_of(tmp_path / "pirate.gguf")
    assert values["blk.2.ffn_up_exps.weight.lora_a"].shape == (EXPERTS, 7, 32)
    assert values["blk.2.ffn_down_exps.weight.lora_b"].shape == (EXPERTS, 32, 4)
    assert not values["blk.2.ffn_up_exps.weight.lora_a"][[1, 2, 4]].any()


def test_fan_in_fan_out_is_about_the_base(tmp_path: Path) -> None:
    case = Case(tmp_path, "starcoder2")
    tensors = adapter_of(case.weights, ["model.layers.0.mlp.c_fc"])
    case.convert(adapter_config(fan_in_fan_out=True), tensors)
    case.check(tensors, usual)


def test_a_model_without_its_head(llama: Case) -> None:
    """As AutoModel names things: "layers.0", not "model.layers.0". Patterns see that name."""
    module = "model.layers.0.self_attn.k_proj"
    tensors = adapter_of(llama.weights, [module])
    named = {name.replace("base_model.model.model.", "base_model.model."): v for name, v in tensors.items()}
    llama.convert(adapter_config(alpha_pattern={"^layers.0.self_attn.k_proj": 2}), named)
    llama.check(tensors, lambda module, rank: 2 / rank)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_types(tmp_path: Path, llama: Case, kind: str) -> None:
    tensors = adapter_of(llama.weights, ["model.layers.0.self_attn.k_proj"])
    assert llama.convert(adapter_config(), tensors, kind.lower()).formats == {kind: 2}
    stored = {name: hf.as_stored(v, "F16") for name, v in tensors.items()} if kind == "F16" else tensors
    found = tensors_of(tmp_path / "pirate.gguf")["blk.0.attn_k.weight.lora_a"]
    wanted = stored["base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"]
    np.testing.assert_allclose(found, wanted, rtol=0 if kind == "F16" else 2**-8)
    tensors["base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"][0, 0] = 1e5
    if kind == "F16":
        with pytest.raises(GGUFError, match=r"blk.0.attn_k.weight.lora_b: expected values .* for F16"):
            llama.convert(adapter_config(), tensors, kind)


def test_metadata(tmp_path: Path, llama: Case) -> None:
    """llama.cpp's keys and types, as the gguf package reads them."""
    from gguf import GGUFReader, GGUFValueType

    tensors = adapter_of(llama.weights, ["model.layers.0.self_attn.q_proj", "model.embed_tokens"])
    llama.convert(adapter_config(alora_invocation_tokens=[3, 1, 4]), tensors)
    reader = GGUFReader(tmp_path / "pirate.gguf")
    found = {name: part.contents() for name, part in reader.fields.items() if not name.startswith("GGUF.")}
    assert found == {
        "general.architecture": "llama", "general.type": "adapter", "general.name": "pirate",
        "general.base_model.count": 1, "general.base_model.0.name": "tiny-model",
        "general.base_model.0.organization": "org",
        "general.base_model.0.repo_url": "https://huggingface.co/org/tiny-model", "adapter.type": "lora",
        "adapter.lora.alpha": 6.0, "adapter.alora.invocation_tokens": [3, 1, 4],
    }  # fmt: skip
    types = reader.fields["adapter.alora.invocation_tokens"].types
    assert types == [GGUFValueType.ARRAY, GGUFValueType.UINT32]
    assert reader.fields["adapter.lora.alpha"].types == [GGUFValueType.FLOAT32]
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes == {
        "blk.0.attn_q.weight.lora_a": [32, 4],
        "blk.0.attn_q.weight.lora_b": [4, 48],
        "token_embd.weight.lora_a": [4, hf.N_VOCAB],
        "token_embd.weight.lora_b": [4, 32],
    }


# --- copies of the base ------------------------------------------------------------------------------


def test_copies_of_the_embedding(llama: Case) -> None:
    """PEFT writes the embedding beside its adapter; copies are left out, other weights are not."""
    tensors = adapter_of(llama.weights, ["model.embed_tokens"])
    copy = "base_model.model.model.embed_tokens.base_layer.weight"
    tensors[copy] = llama.weights["model.embed_tokens.weight"].copy()
    assert llama.convert(adapter_config(), tensors).left_out == (copy,)
    llama.check(tensors, usual)
    bare = llama.bare()
    assert llama.convert(adapter_config(), tensors, base=bare).left_out == (copy,)
    tensors[copy][-1, -1] += 1
    with pytest.raises(LoadError, match=r"embed_tokens\.base_layer\.weight: expected .* copy .*, got others"):
        llama.convert(adapter_config(), tensors)
    tensors[copy] = np.zeros((hf.N_VOCAB + 1, 32), np.float32)
    with pytest.raises(LoadError, match=r"embed_tokens\.base_layer\.weight: expected"):
        llama.convert(adapter_config(), tensors, base=bare)


def test_whole_tables_are_compared_or_refused(llama: Case, queries: Weights) -> None:
    copy = "base_model.model.lm_head.weight"
    queries[copy] = llama.weights["lm_head.weight"]
    assert llama.convert(adapter_config(), queries).left_out == (copy,)
    with pytest.raises(LoadError, match=r"lm_head\.weight: expected .* does not have to compare with"):
        llama.convert(adapter_config(), queries, base=llama.bare())


def test_copies_are_compared_chunk_by_chunk(llama: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.apps.convert.adapters.CHUNK", 1000)
    test_copies_of_the_embedding(llama)


# --- what is refused ---------------------------------------------------------------------------------

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    "changes, finding",
    [
        ({"use_dora": True}, "use_dora: True is not supported"),
        ({"bias": "all"}, "bias: 'all' is not supported"),
        ({"lora_bias": True}, "lora_bias: True is not supported"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save: \['lm_head'\] is not supported"),
        ({"trainable_token_indices": [5]}, r"trainable_token_indices: \[5\] is not supported"),
        ({"target_parameters": ["mlp.experts.up"]}, "target_parameters: .* is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication: .* is not supported"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights: 'pissa_niter_16' is not supported: it"),
        ({"use_qalora": True}, "use_qalora: True is not supported"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora: .* is not supported"),
        ({"peft_type": "LOHA"}, "peft_type: 'LOHA' is not supported"),
        ({"peft_type": None}, "peft_type: expected 'LORA', got none"),
        ({"lora_alpha": 0}, "lora_alpha: expected a number above 0, got 0"),
        ({"r": 0}, "r: expected an integer from 1"),
        ({"r": 3}, rf"{Q}\.lora_A\.weight: expected shape \[3, 32\] of rank 3 and .*, got \[4, 32\]"),
        ({"rank_pattern": {"q_proj": 2.0}}, "rank_pattern: q_proj: expected an integer"),
        ({"rank_pattern": {"(": 2}}, r"rank_pattern: \(: expected a regular expression"),
        ({"alpha_pattern": {r"(q)\1": 2}}, r"alpha_pattern: \(q\)\\1: expected a regular expression"),
        ({"alpha_pattern": [1]}, "alpha_pattern: expected an object"),
        ({"invocation_string": "<|start|>"}, "invocation_string: .* is not supported: give its tokens"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens: expected token ids"),
        ({"use_rslora": 1}, "use_rslora: expected true or false"),
    ],
)
def test_options_that_are_refused(
    tmp_path: Path, llama: Case, queries: Weights, changes: dict[str, Any], finding: str
) -> None:
    with pytest.raises(LoadError, match=finding):
        llama.convert(adapter_config(**changes), queries)
    assert not (tmp_path / "pirate.gguf").exists()


def test_unknown_options_are_told(llama: Case, queries: Weights) -> None:
    with pytest.warns(UserWarning, match=r"adapter_config\.json: novel: unknown, left out"):
        llama.convert(adapter_config(novel=3, other=False, empty={}), queries)


@pytest.mark.parametrize(
    "change, finding",
    [
        ({f"{Q}.lora_magnitude_vector": (48,)}, rf"got {Q}\.lora_magnitude_vector"),
        ({f"{Q}.lora_B.bias": (48,)}, rf"got {Q}\.lora_B\.bias"),
        ({f"{Q}.lora_B.weight": None}, "q_proj: expected A and B, got only .*lora_A"),
        ({f"{Q}.lora_A.weight": (4, 31)}, r"lora_A\.weight: expected shape \[4, 32\] .* got \[4, 31\]"),
        ({f"{Q}.lora_B.weight": (47, 4)}, r"lora_B\.weight: expected shape \[48, 4\] .* got \[47, 4\]"),
        ({f"{Q}.lora_B.weight": (4, 48)}, r"lora_B\.weight: expected shape \[48, 4\] .* got \[4, 48\]"),
        ({"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": (4, 32)}, "got .*layers.9"),
        ({"base_model.model.model.layers.0.mlp.other.lora_A.weight": (4, 32)}, "got .*mlp.other"),
        ({"base_model.model.model.norm.weight": (32,)}, "got .*model.norm.weight"),
        ({f"{Q}.weight": (48, 32)}, r"q_proj\.weight: expected LoRA matrices or a copy"),
        ({"layers.0.self_attn.q_proj.lora_A.weight": (4, 32)}, "q_proj under two names"),
        ({"base_model.model.model.embed_tokens.lora_A.weight": (4, 32)},
         "embed_tokens.lora_A.weight: expected lora_embedding_A of tables"),
        ({f"{Q}.lora_embedding_A": (4, 32)}, "q_proj.lora_embedding_A: expected lora_embedding_A of tables"),
        ({f"{Q}.lora_A.weight": None, f"{Q}.lora_B.weight": None}, "expected the matrices of an adapter"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(
    llama: Case, queries: Weights, change: Mapping[str, Any], finding: str
) -> None:
    for name, shape in change.items():
        queries.pop(name, None)
        if shape is not None:
            queries[name] = np.ones(shape, np.float32)
    with pytest.raises(LoadError, match=finding):
        llama.convert(adapter_config(), queries)


def test_the_output_of_tied_embeddings_has_no_adapter(tmp_path: Path) -> None:
    case = Case(tmp_path, "gemma")
    weights = {**case.weights, "lm_head.weight": case.weights["model.embed_tokens.weight"]}
    tensors = adapter_of(weights, ["lm_head"])
    convert(case.base, tmp_path / "base.gguf")
    for base in (case.base, tmp_path / "base.gguf"):
        with pytest.raises(LoadError, match=r"lm_head\.lora_A\.weight: .* only the input can be adapted"):
            case.convert(adapter_config(), tensors, base=base)


def test_tables_of_positions_have_no_adapter(tmp_path: Path) -> None:
    case = Case(tmp_path, "bert")
    assert is_table("embeddings.position_embeddings")
    tensors = adapter_of(case.weights, ["embeddings.position_embeddings"])
    with pytest.raises(LoadError, match=r"position_embeddings\.lora_embedding_A: expected no adapter"):
        case.convert(adapter_config(), tensors)


def test_where_the_base_is(tmp_path: Path, llama: Case, queries: Weights) -> None:
    source = write_adapter(tmp_path / "pirate", adapter_config(), queries)
    target = tmp_path / "pirate.gguf"
    with pytest.raises(LoadError, match=r"base: expected a folder .* names 'org/tiny-model', which is not"):
        convert(source, target)
    write_adapter(tmp_path / "pirate", adapter_config(base_model_name_or_path="a\0b"), queries)
    with pytest.raises(LoadError, match="base: expected a folder"):
        convert(source, target)
    with pytest.raises(ModelFileError, match=r"none: cannot be opened"):
        convert(source, target, base=tmp_path / "none")
    with pytest.raises(ConfigError, match="base: expected None where the folder has no adapter_config"):
        convert(llama.base, target, base=llama.base)
    llama.convert(adapter_config(), queries)
    with pytest.raises(LoadError, match=r"pirate\.gguf: expected a model of .*, got a adapter of 'llama'"):
        convert(source, tmp_path / "again.gguf", base=target)
    other = Case(tmp_path / "pirate", "phi3")
    with pytest.raises(LoadError, match=r"expected LoRA matrices of phi3 .* got .*q_proj\.lora_A\.weight"):
        convert(source, target, base=other.base)


def test_names_of_bases(tmp_path: Path, llama: Case, queries: Weights) -> None:
    """Names of the Hub, of folders, and names too long for a path; only names of the Hub have a page."""
    for name, wanted, page in (
        ("org/m", "m", "https://huggingface.co/org/m"),
        (str(llama.base), "base", None),
        ("m", "m", None),
        ("org/" + "m" * 300, "m" * 300, "https://huggingface.co/org/" + "m" * 300),
    ):
        llama.convert(adapter_config(base_model_name_or_path=name), queries)
        with ModelFile.open(tmp_path / "pirate.gguf") as file:
            assert file.get("general.base_model.0.name", str) == wanted
            assert file.get("general.base_model.0.repo_url", str, None) == page
    llama.convert(adapter_config(base_model_name_or_path=None), queries)
    with ModelFile.open(tmp_path / "pirate.gguf") as file:
        assert "general.base_model.count" not in file.metadata


def test_pickles_and_types_are_refused(tmp_path: Path, llama: Case) -> None:
    source = write_adapter(tmp_path / "pirate", adapter_config(), {})
    (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    with pytest.raises(ModelFileError, match=r"expected adapter_model\.safetensors, got adapter_model\.bin"):
        convert(source, tmp_path / "pirate.gguf", base=llama.base)
    with pytest.raises(ConfigError, match="type: expected one of F32, F16, BF16, got 'Q8_0'"):
        convert(source, tmp_path / "pirate.gguf", "Q8_0", llama.base)


def test_command(tmp_path: Path, llama: Case) -> None:
    tensors = adapter_of(llama.weights, ["model.layers.0.self_attn.q_proj", "model.embed_tokens"])
    tensors["base_model.model.model.embed_tokens.base_layer.weight"] = llama.weights[
        "model.embed_tokens.weight"
    ]
    source = write_adapter(tmp_path / "pirate", adapter_config(alpha_pattern={"q_proj": 1}), tensors)
    told = output("convert", source, "--base", llama.base, "--type", "bf16")
    assert told.startswith(f"wrote {tmp_path / 'pirate.gguf'}: adapter of llama, ")
    assert "tensors: 3 BF16, 1 F32" in told
    assert "expected no such file" in error("convert", source, "--base", llama.base)
    assert "base: expected a folder" in error("convert", source, tmp_path / "other.gguf")
