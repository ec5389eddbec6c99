"""LoRA adapters, from the folders that PEFT writes to GGUF.

An adapter adds s * B A to a matrix (Hu et al., 2021), where A is (rank, inputs), B is (outputs, rank) and s
is alpha / rank, or alpha / sqrt(rank) if the adapter is rank-stabilized (Kalajdzievski, 2023). A GGUF file
has one alpha, and readers compute s = alpha / rank. So the file of a rank-stabilized adapter has
alpha * sqrt(rank), and factors that differ between matrices are multiplied into B.

Where rows of the base are reordered, the rows of B are, too. Matrices of experts are stacked; experts without
an adapter get zeros. The format is llama.cpp's (convert_lora_to_gguf.py), the options are PEFT 0.21's
(LoraConfig).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.apps.convert.bases import EMBEDDING, OUTPUT, Base, Place, base_of
from oxillama.apps.convert.config import Config, usual_name
from oxillama.apps.convert.safetensors import Stored, exists, read_file, read_json
from oxillama.apps.convert.writing import Conversion, Piece, encoded, reordered, write
from oxillama.base.formats import FORMATS
from oxillama.errors import GrammarError, LoadError, ModelFileError
from oxillama.gguf.writer import Tensor
from oxillama.text.grammar.dfa import Language
from oxillama.text.grammar.regex import parse_regex

T = TypeVar("T")

ADAPTER_TYPES = ("F32", "F16", "BF16")

CHANGING: dict[str, tuple[tuple[Any, ...], str]] = {
    "peft_type": (("LORA",), "only LoRA has a form in GGUF"),
    "bias": (("none",), "GGUF adapters have no biases"),
    "lora_bias": ((False,), "GGUF adapters have no biases"),
    "use_dora": ((False,), "GGUF adapters have no magnitudes"),
    "modules_to_save": (([],), "GGUF adapters hold no whole modules; merge them into the base"),
    "trainable_token_indices": (([], {}), "GGUF adapters hold no rows of the embedding"),
    "target_parameters": (([],), "parameters of several experts are not split"),
    "layer_replication": (([],), "the base has each layer once"),
    "init_lora_weights": (
        (True, False, "gaussian", "orthogonal", "eva"),
        "it changes the base; save the adapter with path_initial_model_for_weight_conversion",
    ),
    "ensure_weight_tying": ((False,), "only the input of tied embeddings can be adapted"),
    "megatron_config": ((), "its layers are not supported"),
    "invocation_string": ((), "give its tokens as alora_invocation_tokens"),
    **dict.fromkeys(
        ("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "velora_config"),
        ((False,), "it is another method than LoRA"),
    ),
}
"""Options that change what an adapter computes: values without effect, and why others are refused."""

HARMLESS = {
    *("auto_mapping", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
    *("layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"),
    "task_type",
}
"""Options for training, and options that the names of the tensors tell, too. ``fan_in_fan_out`` concerns the
layout of the base's matrices and not A and B."""

PREFIX = "base_model.model."
HALF = re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<half>[AB])(?(table)|\.weight)")
COPY = re.compile(r"(?P<module>.+?)(?:\.base_layer)?\.weight")
CHUNK = 1 << 24
"""Bytes of a copy that are compared at once."""


@dataclass(frozen=True)
class Options:
    """The options of adapter_config.json.

    Attributes:
        alpha, rank: for modules that match no pattern.
        stabilized: the factor is alpha / sqrt(rank).
        alphas, ranks: patterns of names of modules with an alpha or a rank; the first match counts.
        invocation: tokens after which the adapter is active (aLoRA; Greenewald et al., 2025).
        base: name or path of the base.
    """

    alpha: float
    rank: int
    stabilized: bool
    alphas: list[tuple[Language, float]]
    ranks: list[tuple[Language, int]]
    invocation: tuple[int, ...]
    base: str


@dataclass(frozen=True)
class Pair:
    """The matrices of one module: A (rank, inputs) and B (outputs, rank).

    ``factor`` is the quotient of the module's s and the s that readers compute from the file's alpha.
    """

    place: Place
    a: Stored
    b: Stored
    rank: int
    factor: float


def convert_adapter(
    folder: Path, target: Path, kind: str, base: Path | None, overwrite: bool = True
) -> Conversion:
    """`oxillama.apps.convert.convert` for an adapter."""
    options = read_options(Config(read_json(folder / "adapter_config.json"), "adapter_config.json"))
    tensors = read_halves(folder)
    known = base_of(base or named_base(options.base))
    pairs, left_out = paired(options, known, tensors)
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.place.target, []).append(pair)
    pieces: list[Piece] = []
    folded: list[str] = []
    kernels = best()
    for name, group in groups.items():
        rank = max(pair.rank for pair in group)
        group = [replace(pair, factor=pair.factor * (rank / pair.rank)) for pair in group]
        kinds = {"lora_a": kind, "lora_b": kind}
        if any(pair.factor != 1 for pair in group):
            kinds["lora_b"] = "F32"
            folded.append(f"{name}.lora_b")
        for half, format_name in kinds.items():
            fmt = FORMATS[format_name]
            shape = shape_of(group[0].place, half, rank)
            piece = Tensor(f"{name}.{half}", fmt, shape[::-1])
            pieces.append((piece, chunks_of(kernels, piece, group, half, rank)))
    done = write(target, metadata_of(folder, options, known), pieces, left_out, overwrite=overwrite)
    return replace(done, is_adapter=True, folded=tuple(folded))


# --- adapter_config.json ----------------------------------------------------------------------------


def read_options(config: Config) -> Options:
    """The options of an adapter. Raises LoadError for options that an adapter in GGUF cannot express."""
    for key, (harmless, why) in CHANGING.items():
        value = config.get(key)
        if value is not None and not any(value == other and type(value) is type(other) for other in harmless):
            raise LoadError(f"{config.name}: {key}: {value!r:.60} is not supported: {why}")
    if not config.has("peft_type"):
        raise LoadError(f"{config.name}: peft_type: expected 'LORA', got none")
    config.ignore(*HARMLESS)
    tokens = config.get("alora_invocation_tokens", [])
    sound = isinstance(tokens, list) and all(type(id) is int and 0 <= id < 2**31 for id in tokens)
    config.refuse_if(not sound, "alora_invocation_tokens", "token ids", tokens)
    alphas, ranks = config.table("alpha_pattern"), config.table("rank_pattern")
    found = Options(
        config.number("lora_alpha", 8),
        config.size("r", 8),
        config.flag("use_rslora"),
        [(language(alphas.name, pattern), alphas.number(pattern)) for pattern in alphas.values],
        [(language(ranks.name, pattern), ranks.size(pattern)) for pattern in ranks.values],
        tuple(tokens),
        str(config.get("base_model_name_or_path", "")),
    )
    config.ignore(*(key for key in config.unread() if config.values[key] in (False, [], {})))
    config.warn_of_unread(stacklevel=5)
    return found


def of_module(patterns: list[tuple[Language, T]], module: str, usual: T) -> T:
    """The value of the first pattern that matches the name of a module, or its end after a dot."""
    return next((value for pattern, value in patterns if pattern.accepts(module)), usual)


def language(name: str, pattern: str) -> Language:
    """The language of a pattern of names, which is matched without backtracking.

    Raises LoadError if the pattern is malformed, or has lookarounds.
    """
    try:
        return Language(parse_regex(rf"(.*\.)?({pattern})", search=False))
    except GrammarError as error:
        raise LoadError(f"{name}: {pattern:.80}: expected a regular expression: {error}") from error


def named_base(name: str) -> Path:
    """The folder that adapter_config.json names. Raises LoadError if there is no such folder of a model."""
    try:
        if name and (Path(name) / "config.json").is_file():
            return Path(name)
    except (OSError, ValueError):
        pass  # not a possible path
    raise LoadError(
        f"base: expected a folder with the base's config.json, or its GGUF file, got none: "
        f"adapter_config.json names {name!r:.80}, which is not on this disk"
    )


def metadata_of(folder: Path, options: Options, base: Base) -> dict[str, Any]:
    """All pairs of the file, with llama.cpp's keys."""
    scale = math.sqrt(options.rank) if options.stabilized else 1.0
    found: dict[str, Any] = {
        "general.architecture": base.architecture,
        "general.type": "adapter",
        "general.name": folder.resolve().name,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(options.alpha * scale),
    }
    if options.invocation:
        found["adapter.alora.invocation_tokens"] = np.array(options.invocation, np.uint32)
    organization, _, name = options.base.replace("\\", "/").rstrip("/").rpartition("/")
    if name:
        found |= {"general.base_model.count": 1, "general.base_model.0.name": name}
    if re.fullmatch(r"[\w.-]*\w[\w.-]*", organization, re.ASCII) and not os.path.exists(options.base):
        found["general.base_model.0.organization"] = organization
        found["general.base_model.0.repo_url"] = f"https://huggingface.co/{organization}/{name}"
    return found


# --- tensors ----------------------------------------------------------------------------------------


def read_halves(folder: Path) -> dict[str, Stored]:
    """The tensors of an adapter by name. Raises LoadError or ModelFileError."""
    path = folder / "adapter_model.safetensors"
    if not exists(path) and exists(folder / "adapter_model.bin"):
        raise ModelFileError(
            f"{folder}: expected adapter_model.safetensors, got adapter_model.bin: a pickle, which "
            "can run any code when it is read; save the adapter with safe_serialization=True"
        )
    found = {tensor.name: tensor for tensor in read_file(path)}
    if not found:
        raise LoadError(f"{path}: expected the matrices of an adapter, got no tensors")
    return found


def paired(options: Options, base: Base, tensors: dict[str, Stored]) -> tuple[list[Pair], tuple[str, ...]]:
    """The pairs, in the base's order, and names of copies of the base's own tensors.

    Raises LoadError for a tensor without its pair, without a module in the base, or of another shape.
    """
    halves: dict[str, dict[str, Stored]] = {}
    copies, unknown = [], []
    for name, stored in tensors.items():
        half, copy = HALF.fullmatch(name), COPY.fullmatch(name)
        module = module_of(base, half or copy)
        if module is None:
            unknown.append(name)
        elif half is None:
            check_copy(base, module, stored, ".base_layer." in name)
            copies.append(name)
        elif bool(half["table"]) != base.places[module].is_table:
            raise LoadError(f"{name}: expected lora_embedding_A of tables, lora_A of matrices, got the other")
        elif half["half"] in halves.setdefault(module, {}):
            raise LoadError(f"{name}: expected each matrix once, got {module} under two names")
        else:
            halves[module][half["half"]] = stored
    if unknown:
        raise LoadError(
            f"tensors: expected LoRA matrices of {base.architecture} ({base.label}) only, "
            f"got {', '.join(sorted(unknown)):.400}"
        )
    modules = [module for module in base.places if module in halves]
    return [pair_of(options, base, module, halves[module]) for module in modules], tuple(copies)


def module_of(base: Base, found: re.Match[str] | None) -> str | None:
    """The module of a tensor's name; None if the base has no such module.

    Raises LoadError for an output that the base does not have.
    """
    if found is None:
        return None
    name = found["module"].removeprefix(PREFIX)
    name = usual_name(base.renamed, name)
    module = name if name in base.places else f"model.{name}"  # a model without a head (AutoModel)
    if module in base.places:
        return module
    if name == "lm_head":
        raise LoadError(
            f"{found.string}: expected an adapter of a matrix of the base, got one of the output: in "
            f"{base.label} that is the embedding, of which only the input can be adapted"
        )
    return None


def pair_of(options: Options, base: Base, module: str, halves: dict[str, Stored]) -> Pair:
    """The matrices of a module. Raises LoadError if A or B is missing, or has another shape."""
    place = base.places[module]
    if halves.keys() != {"A", "B"}:
        raise LoadError(f"{module}: expected A and B, got only {next(iter(halves.values())).name}")
    if place.is_table and place.target != EMBEDDING:
        raise LoadError(f"{halves['A'].name}: expected no adapter of {place.target}, which GGUF has none for")
    match = HALF.fullmatch(halves["A"].name)
    own_name = match["module"].removeprefix(PREFIX) if match else module
    rank = of_module(options.ranks, own_name, options.rank)
    alpha = of_module(options.alphas, own_name, options.alpha)
    rows, cols = place.shape[::-1] if place.is_table else place.shape
    for half, shape in (("A", (rank, cols)), ("B", (rows, rank))):
        stored = halves[half]
        if stored.shape != shape:
            raise LoadError(
                f"{stored.name}: expected shape {list(shape)} of rank {rank} and {base.label}, "
                f"got {list(stored.shape)}"
            )
    factor = alpha / options.alpha
    if options.stabilized:
        factor *= math.sqrt(rank / options.rank)
    return Pair(place, halves["A"], halves["B"], rank, factor)


def check_copy(base: Base, module: str, stored: Stored, frozen: bool) -> None:
    """Raises LoadError unless the tensor is a copy of the base's embedding or output, which PEFT may write.

    Without the base's weights, a tensor whose name says that it was ``frozen`` counts as a copy.
    """
    place = base.places[module]
    own = base.weights.get(f"{module}.weight")
    alike = place.target in (EMBEDDING, OUTPUT) and stored.shape == place.shape
    alike = alike and (frozen if own is None else own.shape == stored.shape and same_values(own, stored))
    if not alike:
        others = "others" if own is not None else f"weights that {base.label} does not have to compare with"
        raise LoadError(f"{stored.name}: expected LoRA matrices or a copy of the base's, got {others}")


def same_values(a: Stored, b: Stored) -> bool:
    """Whether two tensors of one shape hold the same numbers."""
    n = math.prod(a.shape)
    widths = a.data.nbytes // max(n, 1), b.data.nbytes // max(n, 1)
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        parts = [
            replace(stored, shape=(count,), data=stored.data.part(start * width, count * width)).values()
            for stored, width in zip((a, b), widths, strict=True)
        ]
        if not np.array_equal(parts[0], parts[1]):
            return False
    return True


def shape_of(place: Place, half: str, rank: int) -> tuple[int, ...]:
    """A tensor's shape in the file, in NumPy's order; lora_a of a table has a row for each token."""
    rows, cols = place.shape
    if place.is_table:
        return (rows, rank) if half == "lora_a" else (cols, rank)
    shape = (rank, cols) if half == "lora_a" else (rows, rank)
    return (place.n_experts, *shape) if place.n_experts else shape


def chunks_of(
    kernels: Kernels, piece: Tensor, group: list[Pair], half: str, rank: int
) -> Iterator[np.ndarray]:
    """The bytes of a tensor, for one expert at a time."""
    pairs = {pair.place.expert: pair for pair in group}
    place = group[0].place
    shape = shape_of(place, half, rank)[-2:]
    for expert in range(max(place.n_experts, 1)):
        pair = pairs.get(expert)
        values = np.zeros(shape, np.float32) if pair is None else values_of(pair, half, rank)
        yield encoded(kernels, piece.name, piece.format, values)


def values_of(pair: Pair, half: str, rank: int) -> np.ndarray:
    """float32 (rows, cols): one half in the file's layout, padded with zeros to the stack's largest rank."""
    if half == "lora_a":
        values = pair.a.values()
        return values.T if pair.place.is_table else np.pad(values, ((0, rank - pair.rank), (0, 0)))
    values = pair.b.values()
    values = reordered(values, pair.place.heads) if pair.place.heads else values
    if pair.factor != 1:
        values = (values * np.float64(pair.factor)).astype(np.float32)
    return np.pad(values, ((0, 0), (0, rank - pair.rank)))
