"""Facts of families are checked when they are stated: a misspelt word is an error that names the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.apps.cli.facts import describe
from oxillama.base.lazy_import import resolve
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.family import (
    Activation,
    AtLayers,
    Family,
    FeedForwardKind,
    Mixer,
    Only,
    RecurrentMixer,
    Routing,
    register,
)
from oxillama.models.layers.layer import FEED_FORWARDS, MIXERS
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.preflight import preflight
from oxillama.models.registry import FAMILIES
from tests.support import zoo
from tests.support.architectures import ARCHITECTURES
from tests.support.kernels import PRESENT, same_bits
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, Model

BASE = Family("base")


other = partial(BASE.derive, "other")
NOT_READ = r"other\.requires, only: .* its options, got \['attention\.scale'\]"


@pytest.mark.parametrize(
    ("make", "facts", "text"),
    [
        *(
            (other, {field: wrong}, rf"other\.{field}: expected one of {expected}.*, got '{wrong}'")
            for field, wrong, expected in (
                ("rope", "NEOX", "'norm', 'neox', 'none'"),
                ("norm", "rmsnorm", "'rms', 'layer'"),
                ("norm_bias", "maybe", "'no', 'yes', 'auto'"),
                ("local_rope", "unscalled", "'same', 'plain', 'unscaled'"),
                ("residual", "post-norm", "'sequential', 'parallel', 'post', 'auto'"),
                ("mixer", "mamba3", "'attention', 'mla', 'mamba'"),
                ("recurrent_mixer", "attention", "'', 'mamba'"),
                ("feed_forward", "moe", "'', 'dense', 'rwkv6'"),
                ("qk_norm", "Head", "'', 'head', 'heads', 'row', 'unit'"),
                ("logit_scale", "times", "'multiplies', 'divides'"),
                ("activation", "swiglu", "'silu', 'gelu'"),
                ("gate", "either", "'pair', 'fused', 'none', 'auto'"),
                ("positions", "learned", "'no', 'yes', 'auto'"),
                ("output", "untied", "'auto', 'own', 'both', 'tied', 'none'"),
                ("classifier", "mean", "'', 'cls', 'last'"),
            )
        ),
        *(
            (other, {field: wrong}, re.escape(f"other.{field}: expected {expected}"))
            for field, wrong, expected in (
                ("embd_norm", "yes", "bool, got 'yes'"),
                ("window", "6", "int, got '6'"),
                ("window", True, "int, got True"),
                ("soft_cap", 30, "float, got 30"),
                ("attn_post_norm", "post_attention_norm", "a tuple of strings, got 'post_attention_norm'"),
                ("options", ("attention.scale", 3), "a tuple of strings"),
                ("routing", "softmax", "oxillama.models.family.Routing | None, got 'softmax'"),
            )
        ),
        *(
            (Routing, {field: wrong}, rf"Routing\.{field}: expected .*, got '{wrong}'")
            for field, wrong in (
                ("gating", "chosen"), ("width", "ffn"), ("shared_width", "own"), ("gated", "no"),
            )
        ),
        (other, {"nrom": "layer"}, r"other: expected fields of Family \(activation, .*\), got \['nrom'\]"),
        (other, {"options": ("attention.scale", "attention.window")},
         r"other\.options: .*metadata\.OPTIONS .*\['attention\.window'\]"),
        (other, {"options": ("expert_gating_func",)},
         r"other\.options: .* no EXPERT_OPTIONS, got \['expert_gating_func'\]"),
        (Routing, {"options": ("attention.scale",)},
         r"Routing\.options: .*EXPERT_OPTIONS, got \['attention\.scale'\]"),
        # a key of `OPTIONS` that the family does not name would be ignored, and its check would be a lie
        (other, {"requires": ("attention.scale",)}, NOT_READ),
        (other, {"only": (Only("attention.scale", (1.0,)),)}, NOT_READ),
        (other, {"at_layers": (AtLayers(64, qk_nrom="heads"),)},
         r"other\.at_layers: expected fields of Family .*, got \['qk_nrom'\]"),
        (other, {"at_layers": (AtLayers(64, qk_norm="Heads"),)},
         r"other\.at_layers\.qk_norm: expected one of .*, got 'Heads'"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be_are_named(
    make: Callable[..., object], facts: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make(**facts)


def test_options_of_experts_stand_with_their_routing() -> None:
    routing = Routing(options=("expert_gating_func",))
    both = other(options=("attention.scale",), routing=routing)
    assert both.all_options == ("attention.scale", "expert_gating_func")
    assert other(options=("attention.scale",), routing=None).all_options == ("attention.scale",)


@pytest.mark.parametrize(
    "facts", [{"requires": ("attention.scale",)}, {"only": (Only("attention.scale", (1.0,)),)}]
)
def test_a_key_that_is_required_or_limited_is_read(facts: dict[str, Any]) -> None:
    other(options=("attention.scale",), **facts)


def test_facts_by_the_number_of_layers() -> None:
    cases = (AtLayers(64, qk_norm="heads"), AtLayers(32, None, rope="neox"), AtLayers(1, 2, token_types=True))
    family = other(at_layers=cases)
    found = {n: family.with_layers(n) for n in (1, 2, 3, 31, 32, 63, 64, 65)}
    assert [n for n, facts in found.items() if facts.qk_norm == "heads"] == [64]
    assert [n for n, facts in found.items() if facts.rope == "neox"] == [32, 63, 64, 65]
    assert [n for n, facts in found.items() if facts.token_types] == [1, 2]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model of an architecture that requires a key, limits another, and ignores some tensors."""
    facts = FAMILIES["llama"].derive(
        "strict",
        options=("logit_scale", "embedding_scale"),
        requires=("logit_scale",),
        only=(Only("embedding_scale", (1.0, 2.0)),),
        ignores=("attn_output.bias", "nextn.*"),
    )
    monkeypatch.setitem(FAMILIES.known, "strict", facts)
    monkeypatch.setitem(ARCHITECTURES, "strict", ARCHITECTURES["llama"])
    return Model("strict", keys={"logit_scale": ("f32", 2.0)})


def test_a_file_without_a_required_key_is_refused(strict: Model) -> None:
    Running(strict.file())
    for value, found in ((None, "no such key"), (0.0, "0.0")):
        text = f"strict.logit_scale: expected a value other than 0, got {found}"
        with pytest.raises(LoadError, match=text):
            Running(replace(strict, keys={"logit_scale": value}).file())


def test_a_value_that_is_not_supported_is_refused(strict: Model) -> None:
    for value in (1.0, 2.0):
        Running(replace(strict, keys=strict.keys | {"embedding_scale": value}).file())
    text = r"strict.embedding_scale: expected 1.0 or 2.0 or no such key, got 3.0"
    with pytest.raises(LoadError, match=text):
        Running(replace(strict, keys=strict.keys | {"embedding_scale": 3.0}).file())


def test_what_a_family_ignores_has_no_effect_and_is_told(strict: Model) -> None:
    extra: dict[str, np.ndarray | None] = {
        "blk.1.attn_output.bias": np.ones(32, np.float32),
        "blk.0.nextn.eh_proj.weight": np.ones((32, 64), np.float32),
        "nextn.pre_projection.weight": np.ones((32, 64), np.float32),
        "blk.1.attn_output.other": np.ones(32, np.float32),
    }
    data, tokens = strict.file(**extra), tokens_of(9, zoo.VOCAB)
    assert same_bits(Running(data).logits(tokens), Running(strict.file()).logits(tokens))
    found = preflight(ModelFile.open(data))
    assert found.spec is not None
    assert set(found.spec.ignored) == extra.keys() - {"blk.1.attn_output.other"}
    assert found.surplus == ("blk.1.attn_output.other",)


def test_draft_blocks_are_ignored_and_told() -> None:
    """The last ``nextn_predict_layers`` of the blocks are no layers of the model."""
    model = MODELS["qwen2"]
    longer = replace(model, n_layers=3, keys={"nextn_predict_layers": ("u32", 1)})
    data, tokens = longer.file(), tokens_of(9, zoo.VOCAB)
    names = [name for name in longer.tensors() if name.startswith("blk.2.")]
    shorter = replace(longer, keys={"block_count": ("u32", 2)}).file(**dict.fromkeys(names))
    assert same_bits(Running(data).logits(tokens), Running(shorter).logits(tokens))
    facts = describe(ModelFile.open(data))
    assert facts["ignored"] == names
    assert facts["surplus"] == []


def test_an_architecture_is_registered_once() -> None:
    with pytest.raises(ValueError, match="llama: registered twice"):
        register(FAMILIES["llama"])


def test_the_words_of_a_family_are_those_of_the_code() -> None:
    assert set(get_args(Mixer)) == set(MIXERS)
    assert set(get_args(FeedForwardKind)) == set(FEED_FORWARDS)
    found = {
        name: resolve(*maker.args) if isinstance(maker, partial) else maker for name, maker in MIXERS.items()
    }
    classes = {name: kind for name, kind in found.items() if isinstance(kind, type)}
    assert {name for name, kind in classes.items() if issubclass(kind, RecurrentBlock)} == set(
        get_args(RecurrentMixer)
    )
    for target in PRESENT:
        assert set(get_args(Activation)) == {*load(target).vector.ACTIVATIONS, "xielu", "situ"}
