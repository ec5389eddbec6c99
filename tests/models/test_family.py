"""Facts of families are checked when they are stated: a misspelt word is an error that names the field."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from oxillama._kernels import load
from oxillama.models.family import Activation, Family, FeedForwardKind, Mixer, RecurrentMixer, Routing
from oxillama.models.layers.layer import FEED_FORWARDS, MIXERS
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.registry import FAMILIES, register
from tests.support.kernels import PRESENT

BASE = Family("base")


@pytest.mark.parametrize(
    ("field", "wrong", "expected"),
    [
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
        ("output", "untied", "'auto', 'own', 'tied', 'none'"),
        ("classifier", "mean", "'', 'cls', 'last'"),
    ],
)
def test_a_misspelt_word_is_refused(field: str, wrong: str, expected: str) -> None:
    with pytest.raises(ValueError, match=rf"other\.{field}: expected one of {expected}.*, got '{wrong}'"):
        BASE.derive("other", **{field: wrong})


@pytest.mark.parametrize(
    ("field", "wrong", "expected"),
    [
        ("embd_norm", "yes", "bool, got 'yes'"),
        ("window", "6", "int, got '6'"),
        ("window", True, "int, got True"),
        ("soft_cap", 30, "float, got 30"),
        ("attn_post_norm", "post_attention_norm", "a tuple of strings, got 'post_attention_norm'"),
        ("options", ("attention.scale", 3), "a tuple of strings"),
        ("routing", "softmax", "oxillama.models.family.Routing | None, got 'softmax'"),
    ],
)
def test_a_value_of_another_type_is_refused(field: str, wrong: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"other.{field}: expected {expected}")):
        BASE.derive("other", **{field: wrong})


@pytest.mark.parametrize(
    ("field", "wrong"), [("gating", "chosen"), ("width", "ffn"), ("shared_width", "own"), ("gated", "no")]
)
def test_routing_is_checked(field: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=rf"Routing\.{field}: expected .*, got '{wrong}'"):
        Routing(**{field: wrong})  # type: ignore[arg-type]


def test_a_misspelt_field_or_option_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"other: expected fields of Family \(activation, .*\), got \['nrom'\]"
    ):
        BASE.derive("other", nrom="layer")
    with pytest.raises(ValueError, match=r"other\.options: .*metadata\.OPTIONS, got \['attention\.window'\]"):
        BASE.derive("other", options=("attention.scale", "attention.window"))


def test_an_architecture_is_registered_once() -> None:
    with pytest.raises(ValueError, match="llama: registered twice"):
        register(FAMILIES["llama"])


def test_the_words_of_a_family_are_those_of_the_code() -> None:
    assert set(get_args(Mixer)) == set(MIXERS)
    assert set(get_args(FeedForwardKind)) == set(FEED_FORWARDS)
    classes = {name: kind for name, kind in MIXERS.items() if isinstance(kind, type)}
    assert {name for name, kind in classes.items() if issubclass(kind, RecurrentBlock)} == set(
        get_args(RecurrentMixer)
    )
    for target in PRESENT:
        assert set(get_args(Activation)) == set(load(target).vector.ACTIVATIONS)
