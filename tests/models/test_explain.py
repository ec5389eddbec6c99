"""A model as formulas: every matrix is in them, and they follow the facts of the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oxillama import demo
from oxillama._kernels import best
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.explain import Explanation, explain, ranges
from oxillama.models.explain_blocks import stem
from oxillama.models.preflight import UnpackedWeights
from tests.support import zoo

MODELS = zoo.MODELS | zoo.VARIANTS
PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def formulas(name: str) -> str:
    with ModelFile.open(MODELS[name].file()) as file:
        return explain(file)


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w.]+", text))


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_of_a_layer_is_in_its_formulas(name: str) -> None:
    with ModelFile.open(MODELS[name].file()) as file:
        model = Decoder(read_spec(file), UnpackedWeights(file, best()))
        explanation = Explanation(model, frozenset(file.tensors))
        text = explanation.text()
        for i, layer in enumerate(model.layers):
            used = {stem(source) for linear in layer.linears() for source in linear.sources}
            assert used <= words("\n".join(explanation.layer(i))), i
        used = {stem(source) for linear in model.linears() for source in linear.sources}
        assert used <= words(text)
        biased = {name for name in file.tensors if re.search(r"attn_(q|qkv|output)\.bias$", name)}
        assert not biased or "+ bias" in text


def test_equal_layers_are_one_group() -> None:
    assert re.findall(r"^layers? (.*):$", formulas("llama"), re.MULTILINE) == ["0-1"]
    assert re.findall(r"^layers? (.*):$", formulas("deepseek2"), re.MULTILINE) == ["0", "1-2"]
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"


def test_facts_of_attention() -> None:
    gemma, neox = formulas("gemma2"), formulas("gptneox")
    assert "softmax(50 * tanh(q @ k * 0.3536 / 50)) @ v" in gemma and "the last 6 positions" in gemma
    assert "x = x + rms_norm(out, attn_post_norm)" in gemma and "logits = 30 * tanh(" in gemma
    assert "x0 = x" in neox and "h = layer_norm(x0, ffn_norm)" in neox and "attn_qkv + bias" in neox
    assert "# 4 heads of 8" in gemma and "2 query heads to a key head" in gemma
    assert "all positions" in formulas("bert") and "all positions" not in gemma
    assert "rope(q, k)" in gemma and "rope(q, k)" not in formulas("gpt2")


def test_facts_of_feed_forward_blocks() -> None:
    assert "f = silu(h @ ffn_gate) * (h @ ffn_up)" in formulas("llama")
    assert "f = gelu(h @ ffn_up)" in formulas("gptneox")
    experts = formulas("qwen3moe")
    assert "w = top2(softmax(h @ ffn_gate_inp))" in experts and "2 of 4 experts, normalized" in experts


def test_the_page_shows_what_the_command_prints() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with ModelFile.open(demo.STORY) as file:
        assert explain(file) in page
