"""Reads the spec of a model from its file's metadata, and checks it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from oxillama.base.lazy_import import lazy
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.family import ADJUSTMENTS, Family
from oxillama.models.metadata import UNSUPPORTED, Reader
from oxillama.models.registry import DRAFT_FAMILIES, FAMILIES
from oxillama.models.rope import Rope, read_rope, refuse_base_1
from oxillama.models.spec import LayerSpec, Spec

MAX_LABELS = 1024
MAX_BUCKETS = 256
MAX_PASSES = 512
POOLINGS = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}  # pooling_type, by llama.cpp's numbers

read_used: Callable[..., Any] = lazy("oxillama.models.read_experts:read_used")
read_experts: Callable[..., Any] = lazy("oxillama.models.read_experts:read_experts")
head_blocks: Callable[..., int] = lazy("oxillama.models.read_decision:head_blocks")
read_decision: Callable[..., Any] = lazy("oxillama.models.read_decision:read_decision")


def family_of(file: ModelFile, drafts: bool = False) -> Family:
    """The family of a file, of a drafter's if it ``drafts``.

    Raises LoadError for an unknown architecture, or a file that is not a model.
    """
    kind = file.get("general.type", str, "model")
    if kind != "model":
        raise LoadError(f"general.type: expected 'model', got {kind!r}")
    name = file.get("general.architecture", str)
    if drafts:
        return DRAFT_FAMILIES[name]
    if name not in FAMILIES:
        if name in DRAFT_FAMILIES:
            raise LoadError(f"general.architecture: expected a model, got {name!r}, which drafts for a model")
        raise LoadError(f"general.architecture: expected one of {', '.join(sorted(FAMILIES))}, got {name!r}")
    return FAMILIES[name]


def read_spec(file: ModelFile, target: Spec | None = None) -> Spec:
    """Reads and checks the metadata: of a model, or of a drafter for the model ``target``, with which it may
    share the table of embeddings.

    Raises:
        LoadError: the architecture or an option is not supported, or a size is out of bounds.
        GGUFError: a key is missing or has the wrong type.
    """
    family = family_of(file, drafts=target is not None)
    n_layers = count_layers(Reader(file, family.name), drafts=target is not None)
    family = family.with_layers(n_layers)
    read = Reader(file, family.name, family.all_options, family.ignored_keys)
    check_support(read, family)
    if family.norm == "stated":
        has_rms = read.amount("attention.layer_norm_rms_epsilon") > 0
        family = replace(family, norm="rms" if has_rms else "layer")
    n_embd, context = read.size("embedding_length"), read.size("context_length")
    layers = read_layers(read, family, n_embd, n_layers)
    key_dim = max(layer.key_dim for layer in layers)
    widths = {"key_dim": key_dim, "embd/heads": n_embd // (layers[0].n_heads or 1), "1/key_dim": key_dim**2}
    epsilon = "layer_norm_epsilon" if family.norm == "layer" else "layer_norm_rms_epsilon"
    if family.any_epsilon and not read.has(f"attention.{epsilon}"):
        epsilon = "layer_norm_epsilon"
    spec = Spec(
        family=family,
        layers=layers,
        n_embd=n_embd,
        n_vocab=vocabulary_size(family, file, target),
        key_dim=key_dim,
        value_dim=max(layer.value_dim for layer in layers),
        ropes=read_ropes(read, family, layers, context) if family.rope != "none" else (),
        norm_eps=read.number(f"attention.{epsilon}"),
        context_length=context,
        score_scale=read.amount("attention.scale") or 1 / math.sqrt(widths.get(family.score_scale, 1)),
        soft_cap=read.amount("attn_logit_softcapping", family.soft_cap),
        final_soft_cap=read.amount("final_logit_softcapping", family.final_soft_cap),
        clamp=read.amount("attention.clamp_kqv"),
        alibi_bias=read.amount("attention.max_alibi_bias", family.alibi_bias),
        relative_buckets=read_buckets(read) if family.relative_bias else 0,
        layer_width=read.size("embedding_length_per_layer_input", least=0) if family.per_layer_input else 0,
        output_width=read.size("embedding_length_out", n_embd) if family.token_projection else 0,
        embedding_scale=read.factor("embedding_scale", family.embedding_scale or math.sqrt(n_embd)),
        residual_scale=read.factor("residual_scale"),
        value_scale=read.factor("attention.value_scale"),
        logit_scale=read_logit_scale(read, family),
        experts=read_experts(read, family, layers) if has_experts(read, family) else None,
        causal=family.causal and read.flag("attention.causal", True),
        pooling=read_pooling(read),
        labels=read_labels(read) if family.classifier else (),
        decision=read_decision(read, n_layers) if read.has("decision.type") else None,
        unread=read.unread(),
        ignored=ignored_tensors(file, family, n_layers + n_head_blocks(read)),
    )
    adjust = ADJUSTMENTS.get(family.name)
    if adjust is not None:
        spec = adjust(spec, read)
    return check_heads(spec, read)


def count_layers(read: Reader, drafts: bool = False) -> int:
    """Layers of the model, without draft blocks and blocks of a decision head; of a drafter all."""
    n, most = read.size("block_count"), len(read.file.tensors)
    n -= 0 if drafts else read.size("nextn_predict_layers", 0, least=0) + n_head_blocks(read)
    if read.has("hrm.h_cycles"):  # layers of several passes, which share their tensors
        most = MAX_PASSES
    read.expect(1 <= n <= most, "block_count", f"1 to {most} (the file's tensors)", n)
    return n


def n_head_blocks(read: Reader) -> int:
    """Blocks behind the layers that belong to a decision head."""
    return head_blocks(read) if read.has("decision.type") else 0


def check_support(read: Reader, family: Family) -> None:
    """Raises LoadError if a file needs something unsupported, or lacks a key that its family requires."""
    for key, harmless in UNSUPPORTED.items():
        if key not in family.all_options:
            read.refuse(key, harmless)
    for only in family.only:
        read.refuse(only.key, only.values)
    for key in (*family.states, *family.requires):
        found = read.file.metadata.get(f"{read.prefix}.{key}")
        is_off = key in family.requires and not isinstance(found, np.ndarray) and not found
        if found is None or is_off:
            finding = "no such key" if found is None else repr(found)
            raise LoadError(f"{read.prefix}.{key}: expected a value other than 0, got {finding}")


def ignored_tensors(file: ModelFile, family: Family, n_layers: int) -> tuple[str, ...]:
    """Tensors of the file that the model does not use on purpose: MTP layers, and those its family names.

    Raises LoadError for a tensor that the family refuses.
    """
    found = []
    for name in file.tensors:
        layer, rest = re.fullmatch(r"(?:blk\.(\d+)\.)?(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
        if any(fnmatchcase(rest, pattern) for pattern in family.refuses):
            raise LoadError(f"{name}: expected no such tensor in a model of {family.name}")
        beyond = layer is not None and len(layer) < 10 and int(layer) >= n_layers
        if beyond or any(fnmatchcase(rest, pattern) for pattern in family.ignores):
            found.append(name)
    return tuple(found)


def read_layers(read: Reader, family: Family, n_embd: int, n: int) -> tuple[LayerSpec, ...]:
    """Sizes of all ``n`` layers."""
    heads, kv_heads = read_heads(read, family, n)
    first = next(n for n in heads if n)
    has_width = not n_embd % first or read.has("attention.key_length")
    read.expect(has_width, "embedding_length", f"a multiple of {first} heads", n_embd)
    key_dim = read.size("attention.key_length", n_embd // first or 1)
    value_dim = read.size("attention.value_length", n_embd // first or 1)
    if not family.feed_forward:
        widths = [0] * n
    elif read.has("expert_feed_forward_length") and not read.has("feed_forward_length"):
        widths = [0] * n  # all layers have experts only
    else:
        only_experts = read.has("expert_feed_forward_length")  # then files may state 0
        least = 0 if only_experts or family.idle_layers else 1
        widths = read.per_layer("feed_forward_length", n, least=least)
    windows = read_windows(read, family, n)
    if family.centred_windows:
        windows = [window and window // 2 + 1 for window in windows]
    dims = [read_dims(read, family, bool(window), key_dim, value_dim) for window in windows]
    used, expert_widths = [0] * n, [0] * n
    if has_experts(read, family):
        used, expert_widths = read_used(read, family, widths)
    without = "linear" if family.idle_layers else family.recurrent_mixer
    mixers = [family.mixer if kv_heads[i] else without for i in range(n)]
    if family.idle_layers:
        mixers = [mixer if heads[i] and widths[i] else "" for i, mixer in enumerate(mixers)]
        kv_heads = [number if mixer else 0 for number, mixer in zip(kv_heads, mixers)]
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
                mixer=mixers[i],
            )
        )
    return tuple(layers)


def read_dims(read: Reader, family: Family, windowed: bool, key_dim: int, value_dim: int) -> tuple[int, int]:
    """Widths of a key and of a value of a layer, from the widths of layers without a window."""
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
    least = 0 if family.recurrent_mixer or family.idle_layers else 1
    heads = read.per_layer("attention.head_count", n_layers, least=least)
    read.expect(any(heads), "attention.head_count", "heads in some layer", "0 in all")
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
    """The rotations of layers without and with a window."""
    full = next((layer.key_dim for layer in layers if not layer.window), layers[0].key_dim)
    local = next((layer.key_dim for layer in layers if layer.window), full)
    n_rot = read.size("rope.dimension_count", full)
    n_local = read.size("rope.dimension_count_swa", n_rot)
    for key, n, dim in (("dimension_count", n_rot, full), ("dimension_count_swa", n_local, local)):
        is_part = not n % 2 and (n <= dim or family.mixer != "attention")
        read.expect(is_part, f"rope.{key}", f"an even number up to {dim}", n)
        is_whole = n == dim or not family.whole_rotation
        read.expect(is_whole, f"rope.{key}", f"{dim}, the width of a head", n)
    rope = read_rope(read, family.rope == "neox", n_rot, context)
    base = read.number("rope.freq_base_swa", family.local_base or rope.base)
    if family.local_rope == "plain":
        return rope, Rope(n_local, rope.neox, base)
    if family.local_rope == "unscaled":
        return rope, Rope(n_local, rope.neox, base, magnitude=read.number("rope.scaling.attn_factor", 1.0))
    if rope.mix:
        refuse_base_1(read, "rope.freq_base_swa", base)
    return rope, replace(rope, base=base, n_rot=n_local)


def has_experts(read: Reader, family: Family) -> bool:
    """Whether the file has experts. Raises LoadError for experts of a family without them."""
    if family.routing is None:
        read.refuse("expert_count", (0,))
    return family.routing is not None and read.size("expert_count", 0, least=0) > 0


def read_logit_scale(read: Reader, family: Family) -> float:
    """The factor of logits."""
    scale = read.factor("logit_scale")
    return 1.0 / scale if family.logit_scale == "divides" else scale


def read_buckets(read: Reader) -> int:
    """Buckets of distances, half of them for keys behind the query."""
    key = "attention.relative_buckets_count"
    n = read.size(key)
    read.expect(not n % 4 and 8 <= n <= MAX_BUCKETS, key, f"a multiple of 4 from 8 to {MAX_BUCKETS}", n)
    return n


def read_pooling(read: Reader) -> str:
    number = read.size("pooling_type", 0, least=0)
    read.expect(number in POOLINGS, "pooling_type", f"one of {', '.join(map(str, POOLINGS))}", number)
    return POOLINGS[number] if number else ""


def read_labels(read: Reader) -> tuple[str, ...]:
    """Names of a classifier's labels, in the order of its rows."""
    key = "classifier.output_labels"
    labels: list[str] = read.get(key, list[str], [])
    read.expect(len(labels) <= MAX_LABELS, key, f"at most {MAX_LABELS} labels", len(labels))
    return tuple(labels)


def check_heads(spec: Spec, read: Reader) -> Spec:
    """Returns ``spec``. Raises LoadError where query heads are not a multiple of key heads."""
    for layer in spec.layers:
        heads, shared = layer.n_heads, layer.n_kv_heads
        is_multiple = not shared or (heads and not heads % shared)
        read.expect(is_multiple, "attention.head_count", f"a multiple of {shared} key heads", heads)
    return spec


def vocabulary_size(family: Family, file: ModelFile, target: Spec | None = None) -> int:
    """Rows of the embedding table, which may be more than the tokenizer has tokens.

    A drafter without a table has its target's.
    """
    name = embedding_table(family, file)
    if target is not None and name not in file.tensors:
        return target.n_vocab
    if name not in file.tensors or len(file.tensors[name].shape) != 2:
        raise LoadError(f"{name}: expected a matrix, got no tensor of this name")
    return file.tensors[name].shape[1]


def embedding_table(family: Family, file: ModelFile) -> str:
    """The tensor of the token embeddings."""
    own, output = "token_embd.weight", "output.weight"
    return output if family.output == "both" and own not in file.tensors and output in file.tensors else own
