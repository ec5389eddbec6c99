"""Reads the spec of a model from its file's metadata, and checks it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.family import Family
from oxillama.models.metadata import UNSUPPORTED, Reader
from oxillama.models.registry import ADJUSTMENTS, FAMILIES
from oxillama.models.rope import Rope, read_rope, refuse_base_1
from oxillama.models.spec import Experts, LayerSpec, Spec

MAX_EXPERTS = MAX_LABELS = 1024
MAX_BUCKETS = 256
GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_after_topk"}  # expert_gating_func, by llama.cpp's numbers
POOLINGS = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}  # pooling_type, by llama.cpp's numbers


def family_of(file: ModelFile) -> Family:
    """The family of a file. Raises LoadError for an unknown architecture, or a file that is not a model."""
    kind = file.get("general.type", str, "model")
    if kind != "model":
        raise LoadError(f"general.type: expected 'model', got {kind!r}")
    name = file.get("general.architecture", str)
    if name not in FAMILIES:
        raise LoadError(f"general.architecture: expected one of {', '.join(sorted(FAMILIES))}, got {name!r}")
    return FAMILIES[name]


def read_spec(file: ModelFile) -> Spec:
    """Reads and checks the metadata.

    Raises
    ------
    LoadError : the architecture or an option is not supported, or a size is out of bounds.
    GGUFError : a key is missing or has the wrong type.
    """
    family = family_of(file)
    n_layers = count_layers(Reader(file, family.name))
    family = family.with_layers(n_layers)
    read = Reader(file, family.name, family.all_options, family.ignored_keys)
    check_support(read, family)
    n_embd, context = read.size("embedding_length"), read.size("context_length")
    layers = read_layers(read, family, n_embd, n_layers)
    key_dim = max(layer.key_dim for layer in layers)
    scaled_by = {"key_dim": key_dim, "embd/heads": n_embd // layers[0].n_heads, "one": 1}[family.score_scale]
    epsilon = "layer_norm_epsilon" if family.norm == "layer" else "layer_norm_rms_epsilon"
    if family.any_epsilon and not read.has(f"attention.{epsilon}"):
        epsilon = "layer_norm_epsilon"
    spec = Spec(
        family=family,
        layers=layers,
        n_embd=n_embd,
        n_vocab=vocabulary_size(family, file),
        key_dim=key_dim,
        value_dim=max(layer.value_dim for layer in layers),
        ropes=read_ropes(read, family, layers, context) if family.rope != "none" else (),
        norm_eps=read.number(f"attention.{epsilon}"),
        context_length=context,
        score_scale=read.amount("attention.scale") or 1 / math.sqrt(scaled_by),
        soft_cap=read.amount("attn_logit_softcapping", family.soft_cap),
        final_soft_cap=read.amount("final_logit_softcapping", family.final_soft_cap),
        clamp=read.amount("attention.clamp_kqv"),
        alibi_bias=read.amount("attention.max_alibi_bias", family.alibi_bias),
        relative_buckets=read_buckets(read) if family.relative_bias else 0,
        layer_width=read.size("embedding_length_per_layer_input", least=0) if family.per_layer_input else 0,
        embedding_scale=read.factor("embedding_scale", family.embedding_scale or math.sqrt(n_embd)),
        residual_scale=read.factor("residual_scale"),
        value_scale=read.factor("attention.value_scale"),
        logit_scale=read_logit_scale(read, family),
        experts=read_experts(read, family, layers),
        causal=family.causal and read.flag("attention.causal", True),
        pooling=read_pooling(read),
        labels=read_labels(read) if family.classifier else (),
        unread=read.unread(),
        ignored=ignored_tensors(file, family, n_layers),
    )
    adjust = ADJUSTMENTS.get(family.name)
    if adjust is not None:
        spec = adjust(spec, read)
    return check_heads(spec, read)


def count_layers(read: Reader) -> int:
    """Layers of the model, without the draft blocks behind them."""
    n, most = read.size("block_count") - read.size("nextn_predict_layers", 0, least=0), len(read.file.tensors)
    if n < 1 or n > most:
        raise LoadError(f"{read.prefix}.block_count: expected 1 to {most} (the file's tensors), got {n}")
    return n


def check_support(read: Reader, family: Family) -> None:
    """Raises LoadError if a file needs something unsupported, or lacks a key that its family requires."""
    for key, harmless in UNSUPPORTED.items():
        if key not in family.all_options:
            read.refuse(key, harmless)
    for only in family.only:
        read.refuse(only.key, only.values)
    for key in family.requires:
        found = read.file.metadata.get(f"{read.prefix}.{key}")
        if found is None or (not isinstance(found, np.ndarray) and not found):
            finding = "no such key" if found is None else repr(found)
            raise LoadError(f"{read.prefix}.{key}: expected a value other than 0, got {finding}")


def ignored_tensors(file: ModelFile, family: Family, n_layers: int) -> tuple[str, ...]:
    """Tensors of the file that the model does not use on purpose: MTP layers, and those its family names."""
    found = []
    for name in file.tensors:
        layer, rest = re.fullmatch(r"(?:blk\.(\d+)\.)?(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
        beyond = layer is not None and len(layer) < 10 and int(layer) >= n_layers
        if beyond or any(fnmatchcase(rest, pattern) for pattern in family.ignores):
            found.append(name)
    return tuple(found)


def read_layers(read: Reader, family: Family, n_embd: int, n: int) -> tuple[LayerSpec, ...]:
    """Sizes of all ``n`` layers."""
    heads, kv_heads = read_heads(read, family, n)
    first = next(n for n in heads if n)
    if n_embd % first and not read.has("attention.key_length"):
        raise LoadError(f"{read.prefix}.embedding_length: expected a multiple of {first} heads, got {n_embd}")
    key_dim = read.size("attention.key_length", n_embd // first or 1)
    value_dim = read.size("attention.value_length", n_embd // first or 1)
    if not family.feed_forward:
        widths = [0] * n
    elif read.has("expert_feed_forward_length") and not read.has("feed_forward_length"):
        widths = [0] * n  # all layers have experts only
    else:
        only_experts = read.has("expert_feed_forward_length")  # then files may state 0
        widths = read.per_layer("feed_forward_length", n, least=0 if only_experts else 1)
    windows = read_windows(read, family, n)
    if family.centred_windows:
        windows = [window and window // 2 + 1 for window in windows]
    dims = [read_dims(read, family, bool(window), key_dim, value_dim) for window in windows]
    used, expert_widths = read_used(read, family, widths)
    layers = []
    for i in range(n):
        turns = family.rope != "none" and not (family.no_rope_every and (i + 1) % family.no_rope_every == 0)
        turns = turns and (bool(windows[i]) or not family.rope_on_windows_only) and kv_heads[i] > 0
        layers.append(
            LayerSpec(
                n_heads=heads[i],
                n_kv_heads=kv_heads[i],
                n_ff=widths[i],
                key_dim=dims[i][0],
                value_dim=dims[i][1],
                window=0 if family.chunk else windows[i],
                chunk=windows[i] if family.chunk else 0,
                rope=(1 if windows[i] else 0) if turns else None,
                experts=used[i],
                expert_width=expert_widths[i],
                mixer=family.mixer if kv_heads[i] else family.recurrent_mixer,
            )
        )
    return tuple(layers)


def read_dims(read: Reader, family: Family, windowed: bool, key_dim: int, value_dim: int) -> tuple[int, int]:
    """Widths of a key and of a value of a layer, from those of layers without a window."""
    if not windowed:
        return key_dim, value_dim
    if "attention.key_length_swa" in family.options:
        local = read.size("attention.key_length_swa", key_dim)
        return local, read.size("attention.value_length_swa", value_dim)
    read.refuse("attention.key_length_swa", (key_dim,))
    read.refuse("attention.value_length_swa", (value_dim,))
    if "rope.dimension_count_swa" not in family.options:
        read.refuse("rope.dimension_count_swa", (read.size("rope.dimension_count", key_dim),))
    return key_dim, value_dim


def read_heads(read: Reader, family: Family, n_layers: int) -> tuple[list[int], list[int]]:
    """Query heads and key heads of each layer; a recurrent layer has no key heads."""
    if family.mixer == family.recurrent_mixer:
        return [1] * n_layers, [0] * n_layers
    least = 0 if family.recurrent_mixer else 1
    heads = read.per_layer("attention.head_count", n_layers, least=least)
    if not any(heads):
        raise LoadError(f"{read.prefix}.attention.head_count: expected heads in some layer, got 0 in all")
    if not read.has("attention.head_count_kv"):
        return heads, heads
    return heads, read.per_layer("attention.head_count_kv", n_layers, least=least)


def read_windows(read: Reader, family: Family, n_layers: int) -> list[int]:
    """The window of each layer, 0 for none."""
    window = family.chunk or read.size("attention.sliding_window", family.window, least=0)
    key = "attention.sliding_window_pattern"
    if read.is_array(key):
        windowed = read.per_layer(key, n_layers, least=0)
    else:
        period = read.size(key, family.window_period, least=0)
        full = 0 if family.full_layer == "first" else period - 1
        windowed = [period == 0 or i % period != full for i in range(n_layers)]
    return [window if has else 0 for has in windowed]


def read_ropes(
    read: Reader, family: Family, layers: tuple[LayerSpec, ...], context: int
) -> tuple[Rope, Rope]:
    """The rotation of layers without a window, and that of windowed layers."""
    full = next((layer.key_dim for layer in layers if not layer.window), layers[0].key_dim)
    local = next((layer.key_dim for layer in layers if layer.window), full)
    n_rot = read.size("rope.dimension_count", full)
    n_local = read.size("rope.dimension_count_swa", n_rot)
    for key, n, dim in (("dimension_count", n_rot, full), ("dimension_count_swa", n_local, local)):
        if n % 2 or (n > dim and family.mixer == "attention"):
            raise LoadError(f"{read.prefix}.rope.{key}: expected an even number up to {dim}, got {n}")
    rope = read_rope(read, family.rope == "neox", n_rot, context)
    base = read.number("rope.freq_base_swa", family.local_base or rope.base)
    if family.local_rope == "plain":
        return rope, Rope(n_local, rope.neox, base)
    if family.local_rope == "unscaled":
        return rope, Rope(n_local, rope.neox, base, magnitude=read.number("rope.scaling.attn_factor", 1.0))
    if rope.mix:
        refuse_base_1(read, "rope.freq_base_swa", base)
    return rope, replace(rope, base=base, n_rot=n_local)


def expert_layers(read: Reader, family: Family, n_layers: int) -> list[bool]:
    """Whether each layer has experts."""
    if family.routing is None or not read.size("expert_count", 0, least=0):
        if family.routing is None:
            read.refuse("expert_count", (0,))
        return [False] * n_layers
    if family.routing.layers == "router":
        return [f"blk.{i}.ffn_gate_inp.weight" in read.file.tensors for i in range(n_layers)]
    dense = read.size("leading_dense_block_count", 0, least=0)
    step = read.size("interleave_moe_layer_step", 1, least=0)
    if "moe_every_n_layers" in family.all_options:
        every = read.size("moe_every_n_layers", 0, least=0)
        return [every > 0 and i % every == 1 for i in range(n_layers)]
    return [i >= dense and step > 0 and (i + 1) % step == 0 for i in range(n_layers)]


def read_used(read: Reader, family: Family, widths: list[int]) -> tuple[list[int], list[int]]:
    """For each layer, the experts that a token uses, 0 without experts, and the width of an expert."""
    n_layers, has = len(widths), expert_layers(read, family, len(widths))
    if family.routing is None or not any(has):
        return [0] * n_layers, [0] * n_layers
    n, counts = read.size("expert_count"), read.per_layer("expert_used_count", n_layers, least=0)
    if any(here and not 0 < count <= n for here, count in zip(has, counts)):
        raise LoadError(f"{read.prefix}.expert_used_count: expected 1 to {n} experts, got {counts}")
    parts = counts if family.routing.width == "ff/used" else [1] * n_layers
    stated = read.per_layer("expert_feed_forward_length", n_layers, 0, least=0)
    found = [stated[i] or widths[i] // parts[i] if has[i] else 0 for i in range(n_layers)]
    return [count if here else 0 for here, count in zip(has, counts)], found


def read_experts(read: Reader, family: Family, layers: tuple[LayerSpec, ...]) -> Experts | None:
    """The experts of the model, checked; None where no layer has experts."""
    routing, first = family.routing, next((layer for layer in layers if layer.experts), None)
    if routing is None or first is None:
        return None
    n, used = read.size("expert_count"), max(layer.experts for layer in layers)
    if n > MAX_EXPERTS:
        raise LoadError(f"{read.prefix}.expert_count: expected at most {MAX_EXPERTS}, got {n}")
    shared = read.size("expert_shared_feed_forward_length", 0, least=0)
    if routing.shared_width == "expert" and not shared:
        shared = first.expert_width * read.size("expert_shared_count", 1, least=0)
    elif routing.shared_width == "ff" and not shared:
        shared = first.n_ff
    number = read.size("expert_gating_func", 0, least=0)
    if number not in (0, *GATINGS):
        raise LoadError(
            f"{read.prefix}.expert_gating_func: expected one of {', '.join(map(str, GATINGS))}, got {number}"
        )
    groups = read.size("expert_group_count", 1, least=0) or 1
    kept = read.size("expert_group_used_count", 1, least=0) or 1
    if groups > 1 and (n % groups or kept > groups or used > kept * (n // groups)):
        found = f"{used} of {n} experts from {kept} of {groups} groups"
        raise LoadError(f"{read.prefix}.expert_group_count: expected groups of enough experts, got {found}")
    gating = GATINGS.get(number, routing.gating)
    if groups > 1 and (gating == "softmax_after_topk" or routing.scales_input):
        key = f"{read.prefix}.expert_group_count"
        raise LoadError(f"{key}: expected 1 group for experts chosen by their logits, got {groups}")
    return Experts(
        n_experts=n,
        shared_width=shared,
        gating=gating,
        normalize=read.flag("expert_weights_norm", routing.normalize),
        scale=read.factor("expert_weights_scale"),
        groups=groups,
        groups_used=kept,
    )


def read_logit_scale(read: Reader, family: Family) -> float:
    """The factor of logits."""
    scale = read.factor("logit_scale")
    return 1.0 / scale if family.logit_scale == "divides" else scale


def read_buckets(read: Reader) -> int:
    """Buckets of distances, half of them for keys behind the query."""
    key = "attention.relative_buckets_count"
    n = read.size(key)
    if n % 4 or not 8 <= n <= MAX_BUCKETS:
        raise LoadError(f"{read.prefix}.{key}: expected a multiple of 4 from 8 to {MAX_BUCKETS}, got {n}")
    return n


def read_pooling(read: Reader) -> str:
    number = read.size("pooling_type", 0, least=0)
    if number not in POOLINGS:
        raise LoadError(
            f"{read.prefix}.pooling_type: expected one of {', '.join(map(str, POOLINGS))}, got {number}"
        )
    return POOLINGS[number] if number else ""


def read_labels(read: Reader) -> tuple[str, ...]:
    """Names of a classifier's labels, in the order of its rows."""
    labels: list[str] = read.get("classifier.output_labels", list[str], [])
    if len(labels) > MAX_LABELS:
        key = f"{read.prefix}.classifier.output_labels"
        raise LoadError(f"{key}: expected at most {MAX_LABELS} labels, got {len(labels)}")
    return tuple(labels)


def check_heads(spec: Spec, read: Reader) -> Spec:
    """Returns ``spec``. Raises LoadError where query heads are not a multiple of key heads."""
    for layer in spec.layers:
        heads, shared = layer.n_heads, layer.n_kv_heads
        if shared and (heads % shared or not heads):
            raise LoadError(
                f"{read.prefix}.attention.head_count: expected a multiple of {shared} key heads, got {heads}"
            )
    return spec


def vocabulary_size(family: Family, file: ModelFile) -> int:
    """Rows of the embedding table, which may be more than the tokenizer has tokens."""
    name = embedding_table(family, file)
    if name not in file.tensors or len(file.tensors[name].shape) != 2:
        raise LoadError(f"{name}: expected a matrix, got no tensor of this name")
    return file.tensors[name].shape[1]


def embedding_table(family: Family, file: ModelFile) -> str:
    """The tensor of the token embeddings."""
    own, output = "token_embd.weight", "output.weight"
    return output if family.output == "both" and own not in file.tensors and output in file.tensors else own
