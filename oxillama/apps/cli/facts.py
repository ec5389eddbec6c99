"""Facts about a model file, as `info` prints them, ready for JSON; None for facts that the file lacks."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, get_args

from oxillama.base.formats import KV_TYPES, LAYOUTS
from oxillama.engine.features.packed_files import packed_files
from oxillama.errors import ChatTemplateError, OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Spec
from oxillama.models.family import RecurrentMixer
from oxillama.models.media.beside import MODALITIES, found_beside, takes
from oxillama.models.media.facts import AudioFacts, VisionFacts, projector_name
from oxillama.models.preflight import Preflight, preflight

SIZES = {
    "context length": "context_length",
    "layers": "block_count",
    "embedding": "embedding_length",
    "feed forward": "feed_forward_length",
    "heads": "attention.head_count",
    "key/value heads": "attention.head_count_kv",
    "experts": "expert_count",
}
"""Labels of metadata keys (without the architecture's name) that most architectures have."""


def describe(file: ModelFile, budget: int | None = None, pinned: tuple[str, ...] = ()) -> dict[str, Any]:
    """All facts. ``missing`` lists the errors that loading the file would raise.

    ``budget`` and ``pinned`` as for `preflight`.
    """
    architecture = file.metadata.get("general.architecture")
    found = preflight(file, budget, pinned)
    spec = found.spec
    return {
        **describe_file(file),
        **{key: plain(file.metadata.get(f"{architecture}.{key}")) for key in SIZES.values()},
        "attention": describe_attention(spec) if spec else None,
        "rotation": describe_rotation(spec, file) if spec else None,
        "recurrent": describe_recurrent(spec, found.state_bytes) if spec else None,
        "experts": describe_experts(spec) if spec else None,
        "pooling": (spec.pooling or None) if spec else None,
        "formats": describe_formats(file),
        "tokenizer": describe_tokenizer(file, found),
        "memory": describe_memory(spec, found) if spec and found.weight_bytes else None,
        "packed": describe_packed(file),
        "projector": describe_beside(file),
        "surplus": list(found.surplus),
        "ignored": list(spec.ignored) if spec else [],
        "supported": not found.reasons,
        "missing": list(found.reasons),
    }


def describe_file(file: ModelFile) -> dict[str, Any]:
    """What a file of any kind has."""
    n_elements = sum(tensor.n_elements for tensor in file.tensors.values())
    n_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
    return {
        "files": [str(path) for path in file.paths],
        "file_bytes": file.file_size,
        "gguf_version": file.version,
        "architecture": plain(file.metadata.get("general.architecture")),
        "name": plain(file.metadata.get("general.name")),
        "parameters": n_elements,
        "bits_per_weight": round(8 * n_bytes / n_elements, 3) if n_elements else None,
    }


def describe_beside(file: ModelFile) -> dict[str, Any] | None:
    """The projector file in a model's folder, and its kinds of media; None without such a file."""
    path = found_beside(file.paths[0]) if file.paths else None
    return None if path is None else {"file": str(path), "takes": list(takes(path))}


def describe_projector(file: ModelFile) -> dict[str, Any]:
    """Facts of a projector file. ``missing`` lists reasons in the header why it cannot be loaded."""
    encoders: list[dict[str, Any]] = []
    missing = []
    for kind, facts_of in (("vision", VisionFacts), ("audio", AudioFacts)):
        try:
            name = projector_name(file, kind)
            if name is not None:
                encoders.append(describe_encoder(kind, name, facts_of(file, name)))
        except OxiLlamaError as error:
            missing.append(str(error))
    if not encoders and not missing:
        missing.append("clip.has_vision_encoder: expected an encoder of pictures or of sounds, got none")
    return {
        **describe_file(file),
        "takes": [MODALITIES[encoder["kind"]] for encoder in encoders],
        "encoders": encoders,
        "formats": describe_formats(file),
        "supported": not missing,
        "missing": missing,
    }


def describe_encoder(kind: str, name: str, facts: VisionFacts | AudioFacts) -> dict[str, Any]:
    """The sizes of an encoder; an encoder of sounds has no sizes of pictures (None)."""
    return {
        "kind": kind,
        "projector": name,
        "layers": facts.n_blocks,
        "width": facts.width,
        "heads": facts.n_heads,
        "image_size": getattr(facts, "image_size", None),
        "patch_size": getattr(facts, "patch_size", None),
        "embedding": facts.out_width,
    }


def describe_packed(file: ModelFile) -> list[dict[str, Any]]:
    """The packed files in a model's folder; ``misfit`` says why an engine would refuse the file."""
    return [
        {
            "file": str(path),
            "bytes": path.stat().st_size,
            "quantize": facts.quantize if facts else None,
            "compute": facts.compute if facts else None,
            "misfit": misfit or None,
        }
        for path, facts, misfit in packed_files(file)
    ]


def describe_adapter(path: str) -> dict[str, Any]:
    """Facts of a LoRA adapter's file. Raises LoadError for another file."""
    from oxillama.models.adapters.lora import LoadedLora

    lora = LoadedLora.load(path)
    pairs = lora.pairs.values()
    return {
        "file": path,
        "adapter": "LoRA" if not lora.invocation_tokens else "activated LoRA",
        "architecture": lora.architecture,
        "name": lora.name,
        "parameters": sum(info.n_elements for pair in pairs for info in (pair.a, pair.b)),
        "ranks": sorted({pair.rank for pair in pairs}),
        "alpha": lora.alpha,
        "invocation_tokens": lora.invocation_tokens or None,
        "matrices": len(lora.pairs),
        "fingerprint": lora.fingerprint.hex(),
    }


def describe_attention(spec: Spec) -> dict[str, Any] | None:
    """The kind of attention and its parameters; None for a model without attention."""
    layers = [spec.layers[i] for i in spec.attending]
    if not layers:
        return None
    shared = {layer.n_heads // layer.n_kv_heads for layer in layers}
    kind = "multi-head" if shared == {1} else "grouped queries"
    if spec.latent is not None:
        kind = "multi-head latent"
    elif shared != {1} and all(layer.n_kv_heads == 1 for layer in layers):
        kind = "multi-query"
    windows = sorted({layer.window for layer in layers} - {0})
    windowed = sum(layer.window > 0 for layer in layers)
    return {
        "kind": kind,
        "layers": len(layers),
        "key_width": spec.key_dim if spec.latent is None else spec.latent.kv_rank + spec.latent.rotated,
        "value_width": spec.value_dim if spec.latent is None else spec.latent.kv_rank,
        "windows": windows or None,
        "windowed_layers": windowed if windows else None,
        "chunk": max(layer.chunk for layer in layers) or None,
        "chosen_positions": spec.selector.n_chosen if spec.selector else None,
        "sinks": spec.family.sinks != "no",
        "soft_cap": spec.soft_cap or None,
        "linear_bias": spec.alibi_bias or None,
        "both_ways": not spec.causal,
    }


def describe_rotation(spec: Spec, file: ModelFile) -> str | None:
    """The rotary embedding: pairing, base and scaling; None for a model without one."""
    used = sorted({layer.rope for layer in spec.layers if layer.rope is not None})
    kinds = []
    for rope in (spec.ropes[i] for i in used):
        unscaled = rope.kind == "none" or (rope.kind == "linear" and rope.factor == 1)
        scaling = "unscaled" if unscaled else f"{rope.kind} by {rope.factor:g}"
        pairs = "halves" if rope.neox else "neighbours"
        kinds.append(f"{rope.n_rot} dimensions, {pairs}, base {rope.base:g}, {scaling}")
    factors = ", with factors" if any("rope_f" in name for name in file.tensors) else ""
    return "; ".join(dict.fromkeys(kinds)) + factors if kinds else None


def describe_recurrent(spec: Spec, state_bytes: int) -> dict[str, Any] | None:
    """The recurrent layers and the size of their states; None for a model without them."""
    mixers = Counter(layer.mixer for layer in spec.layers if layer.mixer in get_args(RecurrentMixer))
    if not mixers:
        return None
    return {"kind": " and ".join(mixers), "layers": mixers.total(), "state_bytes": state_bytes}


def describe_experts(spec: Spec) -> dict[str, Any] | None:
    """The number of experts, the number used for each token, and their gating; None without experts."""
    experts, layers = spec.experts, [layer for layer in spec.layers if layer.experts]
    if experts is None:
        return None
    used, widths = ({getattr(layer, name) for layer in layers} for name in ("experts", "expert_width"))
    return {
        "kind": {"softmax_after_topk": "softmax of the chosen"}.get(experts.gating, experts.gating),
        "layers": len(layers),
        "experts": experts.n_experts,
        "used": span(used),
        "width": span(widths),
        "shared_width": experts.shared_width or None,
        "groups": experts.groups if experts.groups > 1 else None,
    }


def span(values: set[int]) -> int | str:
    """The value that all layers share, or the smallest and the largest."""
    return min(values) if len(values) == 1 else f"{min(values)} to {max(values)}"


def describe_formats(file: ModelFile) -> list[dict[str, Any]]:
    """Tensors and bytes of each format, the largest first; the layout and the activations of its kernel."""
    found: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        fmt = tensor.format
        row = found.setdefault(
            fmt.name,
            {
                "format": fmt.name,
                "tensors": 0,
                "bytes": 0,
                "bits_per_weight": fmt.bits_per_weight,
                "supported": fmt.layout is not None,
                "layout": fmt.layout,
                "activation": None if fmt.layout is None else LAYOUTS[fmt.layout].activation,
            },
        )
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return sorted(found.values(), key=lambda row: (-row["bytes"], row["format"]))


def describe_tokenizer(file: ModelFile, found: Preflight) -> dict[str, Any]:
    """The vocabulary's model and pre-tokenizer; its kind, size and chat templates if it can be used."""
    tokenizer = found.tokenizer
    names = list(tokenizer.templates) if tokenizer else []
    broken = None
    try:
        for name in names:
            assert tokenizer is not None
            tokenizer.chat_template(name)
    except ChatTemplateError as error:
        broken = str(error)
    return {
        "model": plain(file.metadata.get("tokenizer.ggml.model")),
        "pre": plain(file.metadata.get("tokenizer.ggml.pre")),
        "kind": tokenizer.vocab.kind if tokenizer else None,
        "tokens": tokenizer.n_vocab if tokenizer else None,
        "chat_template": bool(names) if tokenizer else None,
        "chat_templates": names,
        "chat_template_error": broken,
        "supported": tokenizer is not None,
    }


def describe_memory(spec: Spec, found: Preflight) -> dict[str, Any]:
    """Bytes of weights, embedding tables, keys and values, and recurrent states, without activations."""
    return {
        "weights": found.weight_bytes,
        "resident": found.resident_bytes,
        "least_budget": found.least_budget,
        "tables": found.table_bytes,
        "kv_per_token": {name: found.kv_bytes[name] for name in KV_TYPES},
        "context": spec.context_length,
        "kv_at_context": {name: found.kv_context_bytes[name] for name in KV_TYPES},
        "state": found.state_bytes,
    }


def plain(value: Any) -> Any:
    """A metadata value that JSON can hold; an array of equal numbers becomes the number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if not hasattr(value, "dtype"):
        return f"array of {len(value)}"
    values = [plain(v) for v in value.tolist()]
    return values[0] if values and values.count(values[0]) == len(values) else values
