"""GGUF containers, whole models, importance matrices.

A container is described by its parts, each of which may be wrong: metadata, tensor entries, counts,
alignment, then bytes changed in the file that comes of it. A model is one of the zoo's and a list of changes
to it.
"""

from __future__ import annotations

import functools
import reprlib
import struct
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from oxillama.apps.cli.facts import describe
from oxillama.apps.quantize.imatrix import ImportanceMatrix
from oxillama.apps.quantize.model import quantize_model
from oxillama.base.config import EngineConfig
from oxillama.base.formats import FORMATS
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import GGUFError, OxiLlamaError
from oxillama.gguf.model_file import ModelFile, StringArray
from oxillama.models.preflight import preflight
from tests.fuzz.harness import Target
from tests.fuzz.mutate import (
    INTEGERS,
    STRINGS,
    SkipInput,
    built,
    edited,
    edits,
    hostile,
    mutated,
    skipping,
    words,
)
from tests.support import gguf_writer as ggufwriter
from tests.support.zoo import MODELS, VARIANTS, VOCAB, Model

KINDS = sorted(set(ggufwriter.CODES) - {"array"})
KINDS += [f"[{kind}]" for kind in KINDS] + ["[[i16]]", "[[str]]"]
BYTES_PER_BYTE, BYTES_ANYWAY = 20, 1 << 17
TYPE_IDS = [*(fmt.id for fmt in FORMATS.values()), 4, 5, 40, 99, 2**31, 2**32 - 1]


def fitting(kind: str, value: Any) -> Any:
    """A value that the writer can write as ``kind``."""
    if kind.startswith("["):
        inner = kind[1:-1]
        if isinstance(value, np.ndarray):
            value = value.tolist()
        return [fitting(inner, item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    if kind == "str":
        return value if isinstance(value, (str, bytes)) else reprlib.repr(value)
    number = value if isinstance(value, (int, float)) else 0
    if kind == "bool":
        return bool(number)
    if kind in ("f32", "f64"):
        with np.errstate(all="ignore"):
            number = min(max(number, -(10**300)), 10**300) if number == number else number
            return float(np.float32(number)) if kind == "f32" else float(number)
    number = 0 if number != number or number in (float("inf"), float("-inf")) else int(number)
    bits = int(kind[1:])
    number %= 2**bits
    return number - 2**bits if kind[0] == "i" and number >= 2 ** (bits - 1) else number


def encoded(text: Any) -> Any:
    """A string for the writer: bytes where it holds what UTF-8 cannot."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""


def metadata_pair(item: Any) -> bytes:
    key, kind, value = item
    if kind not in KINDS:
        raise SkipInput(kind)
    value = fitting(kind, value)
    return ggufwriter.pair(encoded(key), kind, deep_encoded(value))


def deep_encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [deep_encoded(item) for item in value]
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def container(parts: Any) -> bytes:
    """The file that a description comes to."""
    parts = built(parts)
    with skipping():
        align = int(parts.get("alignment", 32))
        step = align if 0 < align <= 4096 else 32
        pairs = [metadata_pair(item) for item in parts.get("metadata", [])]
        if "alignment" in parts:
            pairs.append(ggufwriter.pair("general.alignment", "u32", align % 2**32))
        entries, data = [], bytearray()
        for tensor in parts.get("tensors", []):
            name, shape, type_id, n_bytes, *more = tensor
            data += bytes(-len(data) % step)
            offset = more[0] if more and more[0] is not None else len(data)
            dims = [int(dim) % 2**64 for dim in shape]
            entries.append(ggufwriter.entry(encoded(name), dims, int(type_id) % 2**32, int(offset) % 2**64))
            data += bytes([7]) * min(int(n_bytes), 10**6)
        counts = {
            key: int(parts[key]) % 2**64 for key in ("n_pairs", "n_entries") if parts.get(key) is not None
        }
        version = int(parts.get("version", 3)) % 2**32
        found = bytearray(
            ggufwriter.assemble(pairs, entries, bytes(data), version=version, alignment=step, **counts)
        )
        for change in parts.get("bytes", []):
            at, new = change
            at = int(at) % (len(found) + 1)
            if isinstance(new, int):  # cut or repeat
                found[at:at] = found[at : at + new] if new > 0 else b""
                del found[at : at - min(new, 0)]
            else:
                found[at : at + len(new)] = new
        return bytes(found)


def byte_change(rng: Random) -> list[Any]:
    at = rng.choice([rng.randrange(64), rng.randrange(600), rng.randrange(2**31)])
    if rng.random() < 0.2:
        return [at, rng.choice([-1, -8, 1, 8, -100, 40])]
    new = rng.choice(
        [bytes([rng.randrange(256)]), struct.pack("<Q", rng.choice(INTEGERS) % 2**64), rng.randbytes(3)]
    )
    return [at, {"@bytes": new[: rng.choice([1, 4, 8])].hex()}]


def use(model: ModelFile) -> None:
    """Touches all that an open file offers."""
    for value in model.metadata.values():
        for text in value if isinstance(value, StringArray) else [value]:
            if isinstance(text, str):
                text.encode("utf-8", "surrogateescape")
    for key in model.metadata:
        for kind in (int, float, bool, str, list[int], list[float], list[bool], list[str], np.ndarray):
            with suppress(GGUFError):
                model.get(key, kind)
    for name, info in model.tensors.items():
        data = model.data(name)
        assert data.size == info.nbytes > 0
        assert info.offset % model.alignment == 0 or len(model.paths) > 1  # each shard has its own
        data.sum()


def survive(source: bytes | Path, size: int) -> ModelFile:
    """Opens and uses a file of ``size`` bytes; opening takes memory in proportion."""
    tracemalloc.start()
    try:
        with ModelFile.open(source) as model:
            use(model)
            return model
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= BYTES_PER_BYTE * size + BYTES_ANYWAY, f"{peak} bytes for a file of {size}"


SMALL: dict[str, Any] = {
    "metadata": [
        ["general.architecture", "str", "llama"], ["n", "u32", 7], ["x", "f32", 0.5], ["on", "bool", True],
        ["tokens", "[str]", ["a", "bc", "", "\udcff"]], ["scores", "[f32]", [0.5, 1.5]],
        ["flags", "[bool]", [True, False]], ["nest", "[[i16]]", [[1], [2, 3]]],
    ],
    "tensors": [
        ["w", [8], 0, 32, None],
        ["q", [32, 2], FORMATS["Q4_0"].id, 36, None],
        ["v", [8, 1], 0, 32, None],
    ],
    "alignment": 32,
    "version": 3,
}  # fmt: skip
SPLIT = ["split.no", "split.count", "split.tensors.count", "general.alignment", "general.architecture"]


def shard(index: int) -> dict[str, Any]:
    split = [["split.no", "u16", index], ["split.count", "u16", 3], ["split.tensors.count", "i32", 3]]
    return {"metadata": split, "tensors": [["abc"[index], [8, 1], 0, 32, None]]}


class ContainerTarget(Target):
    name = "gguf"
    per_run = 250

    def seeds(self) -> list[Any]:
        plain = {"metadata": [], "tensors": SMALL["tensors"][:1]}
        return [
            {"files": [SMALL]},
            {"files": [plain | {"version": 2}]},
            {"files": [shard(i) for i in range(3)]},
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        for _ in range(20):
            new = mutated(
                value, rng, keys=("n_pairs", "n_entries", "alignment", "version"),
                values=[*INTEGERS, *KINDS, *SPLIT, *TYPE_IDS], fixed=(), donors=self.seeds(), times=3,
            )  # fmt: skip
            if (
                rng.random() < 0.4
                and isinstance(new, dict)
                and isinstance(new.get("files"), list)
                and new["files"]
            ):
                file = rng.choice(new["files"])
                if isinstance(file, dict):
                    file["bytes"] = [byte_change(rng) for _ in range(rng.randint(1, 3))]
            try:
                for file in new["files"]:
                    container(file)
                return new
            except (SkipInput, KeyError, TypeError, AttributeError):
                continue
        return value

    def run(self, value: Any) -> None:
        try:
            files = [container(file) for file in value["files"]]
        except (KeyError, TypeError):
            raise SkipInput from None
        size = sum(map(len, files))
        if len(files) == 1:
            survive(files[0], size)
            return
        with tempfile.TemporaryDirectory() as folder:
            for index, data in enumerate(files):
                Path(folder, f"m-{index + 1:05d}-of-{len(files):05d}.gguf").write_bytes(data)
            model = survive(Path(folder, f"m-00001-of-{len(files):05d}.gguf"), size)
            if len(model.paths) == len(files) > 1:
                assert len(model.tensors) == model.get("split.tensors.count", int)


# --- models -----------------------------------------------------------------------------------------

LETTERS = words("\u2581 e t a o i n s h r d l u c m w f g y p b v k x")
TOKENS = ["<unk>", "<s>", "</s>", *LETTERS, "\u2581t", "he", "\u2581the", "<|im_end|>", "."]
TOKENS += [f"w{i}" for i in range(VOCAB - len(TOKENS))]
TYPES = [2, 3, 3, *[1] * (VOCAB - 3)]
VOCABULARY: list[list[Any]] = [
    ["tokenizer.ggml.model", "str", "llama"],
    ["tokenizer.ggml.tokens", "[str]", TOKENS],
    ["tokenizer.ggml.scores", "[f32]", [-float(i) for i in range(VOCAB)]],
    ["tokenizer.ggml.token_type", "[i32]", TYPES],
    ["tokenizer.ggml.bos_token_id", "u32", 1],
    ["tokenizer.ggml.eos_token_id", "u32", 2],
    ["tokenizer.chat_template", "str", "{% for m in messages %}{{ m.content }}{% endfor %}"],
]
BASES: dict[str, Model] = MODELS | VARIANTS
BASES = {name: model for name, model in BASES.items() if model.n_layers <= 8}  # others are the same, but slow
SIZES = {"n_layers": 1, "n_embd": 256, "key_dim": 64, "value_dim": 64, "n_rot": 64, "n_ff": 256}
WIDE = {"wide": Model("llama", **SIZES), "wide-experts": Model("qwen3moe", expert_ff=256, **SIZES)}
"""Their rows are whole blocks of every format."""
BASES |= WIDE
KEY_NAMES = words(
    "block_count context_length embedding_length feed_forward_length attention.head_count "
    "attention.head_count_kv attention.key_length attention.value_length attention.layer_norm_rms_epsilon "
    "attention.layer_norm_epsilon attention.sliding_window attention.sliding_window_pattern attention.scale "
    "attention.clamp_kqv attention.causal attention.max_alibi_bias attention.q_lora_rank "
    "attention.kv_lora_rank attention.key_length_mla attention.value_length_mla attention.temperature_length "
    "attention.temperature_scale attention.output_scale attn_logit_softcapping final_logit_softcapping "
    "rope.dimension_count rope.freq_base rope.freq_base_swa rope.scaling.type rope.scaling.factor "
    "rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned "
    "rope.scaling.yarn_log_multiplier rope.dimension_sections rope.scale_linear expert_count "
    "expert_used_count expert_shared_count expert_feed_forward_length expert_shared_feed_forward_length "
    "expert_weights_scale expert_weights_norm expert_gating_func expert_group_count expert_group_used_count "
    "leading_dense_block_count interleave_moe_layer_step moe_every_n_layers logit_scale residual_scale "
    "embedding_scale vocab_size use_parallel_residual pooling_type ssm.conv_kernel ssm.inner_size "
    "ssm.state_size ssm.time_step_rank ssm.group_count ssm.dt_b_c_rms wkv.head_size time_mix_extra_dim "
    "time_decay_extra_dim rescale_every_n_layers token_shift_count shortconv.l_cache "
    "attention.decay_lora_rank attention.iclr_lora_rank attention.value_residual_mix_lora_rank "
    "attention.gate_lora_rank tensor_data_layout swin_norm decoder_start_token_id "
    "attention.group_norm_groups attention.group_norm_epsilon classifier.output_labels nextn_predict_layers"
)
TOKENIZER_NAMES = words(
    "model pre tokens scores token_type merges bos_token_id eos_token_id eot_token_id unknown_token_id "
    "padding_token_id seperator_token_id mask_token_id add_bos_token add_eos_token add_space_prefix "
    "token_type_count suppress_tokens fim_pre_token_id remove_extra_whitespaces precompiled_charsmap"
)
FILLS = ("nan", "inf", "-inf", "zeros", "huge", "tiny", "negative", "random")
WORDS = [
    "llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "no_vocab", "none", "linear", "yarn", "longrope",
    "dynamic", "su",
]  # fmt: skip


@functools.cache
def base_of(name: str) -> tuple[list[list[Any]], dict[str, np.ndarray]]:
    model = BASES[name]
    pairs: list[list[Any]] = [["general.architecture", "str", model.architecture], *VOCABULARY]
    pairs += [[model.full_key(key), kind, value] for key, (kind, value) in model.metadata().items()]
    return pairs, model.tensors()


def model_file(value: Any) -> bytes:
    """The file of a zoo's model after the changes of an input."""
    value = built(value)
    with skipping():
        pairs, arrays = base_of(value["base"])
        metadata = {key: (kind, item) for key, kind, item in pairs}
        tensors: dict[str, list[Any]] = {}
        for name, values in arrays.items():
            tensors[name] = [name, values.shape[::-1], 0, values]
        for change in value["changes"]:
            change_model(metadata, tensors, *change)
        written = [metadata_pair([key, kind, item]) for key, (kind, item) in metadata.items()]
        entries, data = [], bytearray()
        for name, shape, type_id, values in tensors.values():
            data += bytes(-len(data) % 32)
            dims = [int(dim) % 2**64 for dim in shape]
            entries.append(ggufwriter.entry(encoded(name), dims, int(type_id) % 2**32, len(data)))
            data += values if isinstance(values, bytes) else np.ascontiguousarray(values, "<f4").tobytes()
        return ggufwriter.assemble(written, entries, bytes(data))


def change_model(
    metadata: dict[str, Any], tensors: dict[str, list[Any]], how: str, name: str, *what: Any
) -> None:
    if how == "set":
        metadata[name] = (what[0], what[1])
    elif how == "drop":
        metadata.pop(name, None)
        tensors.pop(name, None)
    elif how == "add":  # name, shape, type
        n = int(np.prod([int(dim) for dim in what[0]]))
        if 0 <= n <= 10**5:
            tensors[name] = [name, what[0], what[1], bytes(4 * n)]
    elif how == "copy":
        tensors[what[0]] = [what[0], *tensors[name][1:]]
    elif how == "rename":
        tensors[name] = [what[0], *tensors[name][1:]]
    elif how == "shape":  # data of the right length, where it is short
        n = 1
        for dim in what[0]:
            n *= int(dim)
        data = (
            np.resize(np.asarray(tensors[name][3], np.float32), n).tobytes() if 0 < n <= 10**5 else bytes(64)
        )
        tensors[name][1:] = [what[0], 0, data]
    elif how == "type":  # random blocks of the right length
        type_id = int(what[0])
        fmt = next((fmt for fmt in FORMATS.values() if fmt.id == type_id), None)
        shape = tensors[name][1]
        n = 64 if fmt is None else int(np.prod(shape)) // fmt.block_len * fmt.block_bytes
        if not 0 <= n <= 10**6:
            raise SkipInput(f"{n} bytes")
        data = np.random.default_rng(int(what[1])).bytes(n) if what[1] else bytes(n)
        tensors[name][2:] = [type_id, data]
    elif how == "fill":
        values = np.array(tensors[name][3], np.float32)
        flat, rng = values.reshape(-1), np.random.default_rng(int(what[1]))
        where = rng.random(flat.size) < what[2]
        new = {
            "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "zeros": 0.0, "huge": 3e38, "tiny": 1e-42,
            "negative": -flat[where], "random": rng.standard_normal(int(where.sum())) * 100,
        }[what[0]]  # fmt: skip
        flat[where] = new
        tensors[name][3] = values
    elif how == "cut":
        data = tensors[name][3]
        data = data if isinstance(data, bytes) else np.ascontiguousarray(data, "<f4").tobytes()
        tensors[name][3] = data[: int(what[0])]


def check_quantized(data: bytes) -> None:
    """Quantizes a model that loads; what is written loads as well."""
    Path("whole.gguf").write_bytes(data)
    type = ("Q8_0", "Q4_0", "Q4_K_M", "F16", "IQ4_NL", "Q2_K")[len(data) % 6]
    with suppress(OxiLlamaError):
        quantize_model("whole.gguf", "small.gguf", type, num_threads=1, allow_requantize=True)
        with ModelFile.open("small.gguf") as file:
            reasons = preflight(file).reasons
        assert not reasons, f"quantized, it does not load: {reasons}"


class ModelTarget(Target):
    name = "model"
    per_run = 60

    def seeds(self) -> list[Any]:
        return [{"base": name, "changes": []} for name in BASES]

    def mutate(self, value: Any, rng: Random) -> Any:
        if not value["changes"] and rng.random() < 0.06:
            value = {"base": rng.choice(list(WIDE)), "changes": []}
            if rng.random() < 0.7:
                name, type_id = rng.choice(list(base_of(value["base"])[1])), rng.choice(TYPE_IDS)
                value["changes"].append(["type", name, type_id, rng.randrange(99)])
        pairs, tensors = base_of(value["base"])
        changes = [self._change(rng, pairs, tensors) for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5]))]
        return {"base": value["base"], "changes": [*value["changes"], *changes]}

    def _change(self, rng: Random, pairs: list[list[Any]], tensors: dict[str, Any]) -> list[Any]:
        if rng.random() < 0.6:
            return self._change_metadata(rng, pairs)
        name = rng.choice(list(tensors))
        shape = list(tensors[name].shape[::-1])
        how = rng.choice(
            ["drop", "rename", "copy", "shape", "shape", "type", "type", "fill", "fill", "fill", "cut", "add"]
        )
        other = rng.choice(
            [*tensors, "blk.9.attn_q.weight", "output.weight", "rope_freqs.weight", "cls.weight", ""]
        )
        if how in ("rename", "copy"):
            return [how, name, other]
        if how == "add":
            return [how, other, rng.choice([shape, [32], [1], [4, 4], [0]]), rng.choice([0, 0, 1, 8])]
        if how == "shape":
            new = list(shape)
            at = rng.randrange(len(new))
            new[at] = rng.choice([new[at] * 2, new[at] // 2, new[at] + 1, new[at] - 1, 1, 0, *INTEGERS])
            return [
                how,
                name,
                rng.choice([new, new, shape[::-1], [1, *shape], [*shape, 1], [int(np.prod(shape))]]),
            ]
        if how == "type":
            return [how, name, rng.choice(TYPE_IDS), rng.choice([0, rng.randrange(1, 99)])]
        if how == "fill":
            return [how, name, rng.choice(FILLS), rng.randrange(99), rng.choice([0.01, 0.3, 1.0])]
        return [how, name, *([rng.choice([0, 1, 4, 100])] if how == "cut" else [])]

    def _change_metadata(self, rng: Random, pairs: list[list[Any]]) -> list[Any]:
        key, kind, value = rng.choice(pairs)
        if rng.random() < 0.35:
            if rng.random() < 0.3:
                key = "tokenizer.ggml." + rng.choice(TOKENIZER_NAMES)
            else:
                key = pairs[0][2] + "." + rng.choice(KEY_NAMES)
            value = next((v for k, _, v in pairs if k == key), rng.choice([0, 1, 2, 8, 1.0, True, "yarn"]))
            kind = "f32" if isinstance(value, float) else "str" if isinstance(value, str) else "u32"
        if rng.random() < 0.1:
            return ["drop", key]
        if rng.random() < 0.15:
            kind = rng.choice(KINDS)
        if isinstance(value, list) and value and rng.random() < 0.8:
            new = list(value)
            at, cut = rng.randrange(len(new)), rng.random()
            if cut < 0.6:
                new[at] = hostile(rng, new[at])
            elif cut < 0.8:
                del new[at:]
            else:
                new += new[: rng.choice([1, 3, 60])]
            return ["set", key, kind, new]
        if kind == "u32" and rng.random() < 0.6:
            small = int(value) if isinstance(value, (int, float)) else 8
            around = [small * 2, small // 2, small + 1, small - 1, small * 3, 1, 2, 4, 8, 16, 0, small]
            if rng.random() < 0.15:
                return ["set", key, "[u32]", [rng.choice(around) for _ in range(rng.choice([1, 2, 2, 3]))]]
            return ["set", key, kind if rng.random() < 0.8 else "i32", rng.choice(around)]
        if isinstance(value, str) and rng.random() < 0.6:
            return ["set", key, kind, rng.choice([*WORDS, *MODELS])]
        return ["set", key, kind, hostile(rng, value) if rng.random() < 0.9 else rng.choice(STRINGS)]

    def run(self, value: Any) -> None:
        data = model_file(value)
        reasons: list[str] = []
        with ModelFile.open(data) as file:
            facts = describe(file)
            reasons = facts["missing"]
        engine = InferenceEngine(EngineConfig(num_threads=1, context_size=None))
        try:
            engine.load_model_from_bytes(data)
        except OxiLlamaError as error:
            assert reasons, f"info says that it loads, but: {error}"
            raise
        assert not reasons, f"loads, but info says {reasons}"
        if Random(repr(value)).random() < 0.1:  # it writes files, which takes long
            check_quantized(data)
        with engine:
            n = engine.model.spec.n_vocab
            tokens = [token % n for token in (1, 5, 9, 12)]
            refused: list[tuple[type[OxiLlamaError], str]] = []
            for job in (
                lambda: engine.generate(tokens, max_tokens=3, seed=1),
                lambda: engine.generate("the tea", max_tokens=2, temperature=0, min_p=0, top_k=0, top_p=1),
                lambda: engine.embed(tokens),
                lambda: engine.logits(tokens),
                lambda: engine.rerank("the", ["tea"]),
                lambda: engine.chat([{"role": "user", "content": "tea"}], max_tokens=1),
            ):
                try:
                    job()
                except OxiLlamaError as error:
                    refused.append((type(error), str(error)))  # itself it would hold the engine
            engine.model.check_integrity()
            if len(refused) == 6:
                raise OxiLlamaError(refused[0][1])


# --- importance matrices ----------------------------------------------------------------------------


class ImatrixTarget(Target):
    name = "imatrix"
    per_run = 60

    def seeds(self) -> list[Any]:
        old = [["blk.0.attn_q.weight", 2, [1.0, 2.0, 3.0, 4.0]], ["x", 1, [0.5]]]
        new = {
            "metadata": [
                ["general.type", "str", "imatrix"],
                ["imatrix.datasets", "[str]", ["a.txt"]],
                ["imatrix.chunk_count", "u32", 3],
                ["imatrix.chunk_size", "u32", 512],
            ],
            "tensors": [
                ["blk.0.attn_q.weight.in_sum2", [8, 1], 0, 32, None],
                ["blk.0.attn_q.weight.counts", [1, 1], 0, 4, None],
                ["e.in_sum2", [4, 2], 0, 32, None],
                ["e.counts", [1, 2], 0, 8, None],
            ],
        }
        return [{"entries": old}, {"entries": old, "calls": 4, "dataset": "a.txt"}, {"gguf": new}]

    def mutate(self, value: Any, rng: Random) -> Any:
        for _ in range(20):
            new = mutated(
                value, rng, values=[*INTEGERS, *KINDS, "x.in_sum2", "x.counts"], donors=self.seeds()
            )
            where = new.get("gguf", new)
            if rng.random() < 0.4 and isinstance(where, dict):
                where["bytes"] = [byte_change(rng)]
            if rng.random() < 0.2 and isinstance(new, dict):
                new["edits"] = edits(rng)
            with suppress(SkipInput):
                self._data(new)
                return new
        return value

    def _data(self, value: Any) -> bytes:
        data = container(value["gguf"]) if "gguf" in value else self._old(built(value))
        return edited(data, value.get("edits", []))

    def run(self, value: Any) -> None:
        path = Path("imatrix.dat")
        path.write_bytes(self._data(value))
        found = ImportanceMatrix.read(path)
        for entry in found.entries.values():
            matrices, cols = entry.sums.shape
            for shape in ((cols, matrices), (1, cols), (cols + 1, 1), (max(1, cols // 2), 2)):
                weights = entry.weights(*shape)
                assert weights is None or (np.isfinite(weights).all() and (weights > 0).all())
        copy = Path("copy.gguf")
        found.write(copy)
        again = ImportanceMatrix.read(copy)
        assert again.entries.keys() == found.entries.keys()
        for name, entry in found.entries.items():
            assert (again.entries[name].sums == entry.sums).all()

    def _old(self, value: Any) -> bytes:
        with skipping():
            data = struct.pack("<i", int(value.get("n", len(value["entries"]))) % 2**31)
            for name, calls, values in value["entries"]:
                raw = encoded(name)
                data += struct.pack("<i", len(raw)) + raw + struct.pack("<2i", int(calls), len(values))
                data += np.array(values, "<f4").tobytes()
            if "calls" in value:
                raw = encoded(value.get("dataset", ""))
                data += struct.pack("<2i", int(value["calls"]), len(raw)) + raw
            found = bytearray(data)
            for at, new in value.get("bytes", []):
                if isinstance(new, bytes):
                    at = int(at) % (len(found) + 1)
                    found[at : at + len(new)] = new
            return bytes(found)
