"""Decoders over streams of hidden states that attend to blocks of positions: Qwen 3.8, DeepSeek-V4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.families.deepseek import SELECTOR_KEYS, STATED, expert_limits, read_selector
from oxillama.models.families.delta import QWEN35_MOE, interleaved_layers
from oxillama.models.families.latent import connections, count_streams
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.rope import Rope, refuse_base_1
from oxillama.models.sizes import Compression, Connections, Ngrams
from oxillama.models.spec import Spec

TABLE = "per_layer_token_embd.weight"


def read_numbers(read: Reader, key: str, n: int) -> tuple[int, ...]:
    """``n`` integers below 2^64."""
    full = f"{read.prefix}.{key}"
    values: Any = read.file.metadata.get(full)
    is_good = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and len(values) == n
    read.expect(is_good and (values >= 0).all(), key, f"{n} integers from 0 on", f"{values!r:.60}")
    return tuple(values.tolist())


def read_ngrams(spec: Spec, read: Reader) -> Ngrams | None:
    """The embeddings of n-grams; None in a file without."""
    listed: list[int] = read.get("ple.layers", list[int], [])
    if not listed:
        return None
    size, heads = read.size("ple.ngram_size", least=2), read.size("ple.heads_per_ngram")
    n, width = (size - 1) * heads, read.size("embedding_length_per_layer_input")
    info = read.file.tensors.get(TABLE)
    found = Ngrams(
        layer=listed[0],
        size=size,
        heads=heads,
        kernel=read.size("ple.conv_kernel"),
        eos=read.size("ple.eos_token_id", least=0),
        width=width,
        rows=info.shape[1] if info is not None and len(info.shape) == 2 else 0,
        multipliers=read_numbers(read, "ple.layer_multipliers", size),
        sizes=read_numbers(read, "ple.head_vocab_sizes", n),
        offsets=read_numbers(read, "ple.head_offsets", n),
    )
    ends = [each + offset for each, offset in zip(found.sizes, found.offsets)]
    is_linear = len(listed) == 1 and 0 <= listed[0] < spec.n_layers and not spec.layers[listed[0]].n_kv_heads
    for key, good, wanted in (
        ("ple.layers", is_linear, "one layer with linear attention"),
        (
            "ple.head_vocab_sizes",
            min(found.sizes) > 0 and (not found.rows or max(ends) <= found.rows),
            f"rows of the {found.rows} in {TABLE}",
        ),
        ("embedding_length_per_layer_input", n * width == spec.n_embd, f"{spec.n_embd} / {n} heads"),
    ):
        read.expect(good, key, wanted, f"{read.file.metadata[f'{read.prefix}.{key}']!r:.60}")
    return found


def qwen38_layers(spec: Spec, read: Reader) -> Spec:
    """Streams, linear layers with sigmoid gates, and attention to blocks in the layers that state their
    size."""
    spec = interleaved_layers(spec, read)
    assert spec.recurrent is not None
    streams, rank = count_streams(read, least=2), read.size("hyper_connection.low_rank")
    spec = replace(
        spec,
        recurrent=replace(spec.recurrent, gate="sigmoid"),
        connections=Connections(streams, rank=rank, has_head=False),
    )
    spec = replace(spec, ngrams=read_ngrams(spec, read))
    read.expect(spec.causal, "attention.causal", "true beside selectors", "false")
    key = "attention.compress_ratios"
    sizes = read.per_layer(key, spec.n_layers, 0, least=0)
    used = {size for size, layer in zip(sizes, spec.layers) if size and layer.n_kv_heads}
    idle = tuple(
        name
        for name in read.file.tensors
        if name.startswith("blk.")
        and ".indexer." in name
        and not sizes[min(int(name.split(".")[1]), len(sizes) - 1)]
    )
    spec = replace(spec, ignored=(*spec.ignored, *idle))
    if not used:
        return spec
    read.expect(len(used) == 1, key, "one size of blocks", sorted(used))
    size, rope = used.pop(), spec.ropes[0]
    n_chosen = read.size("attention.indexer.top_k", least=size) // size
    selector = read_selector(spec, read, rope.n_rot, n_chosen, neox=rope.neox, block=size)
    layers = (
        replace(layer, mixer="blocked", selected_by=i) if ratio and layer.n_kv_heads else layer
        for i, (layer, ratio) in enumerate(zip(spec.layers, sizes))
    )
    return replace(spec, layers=tuple(layers), selector=selector)


QWEN4_EXP = QWEN35_MOE.variant(
    "qwen4exp", options=(*QWEN35_MOE.options, *SELECTOR_KEYS, "embedding_length_per_layer_input"),
    attn_norm="", ffn_norm="", output_norm="", next_token="streams", streams="gated", adjust=qwen38_layers,
)  # fmt: skip


def deepseek4_layers(spec: Spec, read: Reader) -> Spec:
    """Streams, windows beside compressed blocks, and experts that a table chooses in the first layers."""
    n, key = spec.n_layers, "attention.compress_ratios"
    spec = expert_limits(replace(spec, connections=connections(read, has_rounds=True)), read, "copy")
    sizes = read.per_layer(key, n, least=0)
    read.expect({*sizes} <= {0, 4, 128}, key, "0, 4 or 128", sorted({*sizes}))
    heads = {layer.n_heads for layer in spec.layers}
    sizes_of = Compression(
        q_rank=read.size("attention.q_lora_rank"),
        window=read.size("attention.sliding_window"),
        groups=read.size("attention.output_group_count"),
        rank=read.size("attention.output_lora_rank"),
    )
    for name, good, wanted in (
        ("attention.head_count", len(heads) == 1, "as many in each layer"),
        ("attention.head_count_kv", {each.n_kv_heads for each in spec.layers} == {1}, "1"),
        ("attention.output_group_count", max(heads) % sizes_of.groups == 0, f"a divisor of {max(heads)}"),
        ("attention.value_length", spec.value_dim == spec.key_dim, f"{spec.key_dim}, as keys have"),
        ("attention.causal", spec.causal, "true"),
    ):
        if not good:
            raise LoadError(f"{read.prefix}.{name}: expected {wanted}")
    rope = spec.ropes[0]
    base = read.number("attention.compress_rope_freq_base")
    ropes = Rope(rope.n_rot, False, rope.base), replace(rope, base=base, magnitude=1.0)
    if rope.mix:
        refuse_base_1(read, "attention.compress_rope_freq_base", base)
    hashed = read.size("hash_layer_count", 0, least=0)
    layers = (
        replace(
            layer,
            mixer="compressed",
            window=0 if size else sizes_of.window,
            rope=1 if size else 0,
            block_size=size,
            places=2 if size else 1,
            selected_by=i if size == 4 else None,
            chosen_by_token=i < hashed,
        )
        for i, (layer, size) in enumerate(zip(spec.layers, sizes))
    )
    spec = replace(spec, layers=tuple(layers), ropes=ropes, compression=sizes_of)
    if 4 not in sizes:
        return spec
    selector = read_selector(spec, read, rope.n_rot, neox=False, turns_last=True, block=4)
    return replace(spec, selector=selector)


DEEPSEEK4 = LLAMA.variant(
    "deepseek4",
    options=(*SELECTOR_KEYS, "attention.sliding_window", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    requires=("expert_count", "expert_gating_func", "swiglu_clamp_exp", "attention.sliding_window"),
    only=(Only("expert_gating_func", (4,)),), ignored_keys=("leading_dense_block_count",),
    ignores=("exp_probs_b_vl.bias",), mixer="compressed", sinks="yes", next_token="streams",
    streams="connected", limits="before",
    routing=Routing(
        options=tuple(key for key in STATED if not key.startswith("leading")), gating="sqrt_softplus",
        normalize=False, shared_width="counted", bias="yes",
    ),
    output="own", adjust=deepseek4_layers,
)  # fmt: skip
