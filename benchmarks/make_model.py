"""Writes a GGUF file of random weights in the shape of a real model (`benchmarks.shapes`).

    python -m benchmarks make-model 1.1B Q4_K_M out.gguf
    python -m benchmarks make-model gemma3-4b-vision F16 mmproj.gguf

Speed depends on shapes and formats, not on the values of the weights. The weights are drawn so that
activations and logits keep the size they have in a trained model, and the formats of the tensors follow
the mixes that llama.cpp's quantizer writes. Data is made and written in slices of a few megabytes.
"""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_blocks import random_rows
from benchmarks.shape import Shape
from benchmarks.shapes import BASE_FORMATS, SHAPES, Tensor, metadata, tensors
from benchmarks.vision_shapes import VISION_SHAPES, VisionShape, vision_metadata, vision_tensors
from oxillama.base.formats import FORMATS
from oxillama.errors import ConfigError

SLICE_ELEMENTS = 1 << 22
"""Elements made and written at a time."""

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def tensor_data(tensor: Tensor, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The bytes of a tensor, in slices of whole rows."""
    if tensor.name.endswith("ssm_a"):  # decays: a memory that grew would leave the numbers' range
        yield rng.uniform(-16.0, -1.0, tensor.n_out * tensor.n_in).astype("<f4").view(np.uint8)
        return
    if tensor.is_vector:
        yield (tensor.mean * rng.normal(1.0, 0.05, tensor.n_in)).astype("<f4").view(np.uint8)
        return
    std = tensor.n_in**-0.5  # a product with activations of size 1 is again of size 1
    step = max(1, SLICE_ELEMENTS // tensor.n_in)
    for row in range(0, tensor.n_out, step):
        yield random_rows(tensor.format, min(step, tensor.n_out - row), tensor.n_in, std, rng)


def vocabulary(n_vocab: int, controls: Sequence[str] = ()) -> tuple[list[str], list[float], list[int]]:
    """Pieces, scores and types of a SentencePiece vocabulary: control, bytes, then made-up words.

    ``controls`` are more control tokens, which end the vocabulary.

    Types are llama.cpp's: 1 normal, 2 unknown, 3 control, 6 byte.
    """
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces += [*itertools.islice(_words(), n_vocab - len(pieces) - len(controls)), *controls]
    types += [*[1] * (n_vocab - len(types) - len(controls)), *[3] * len(controls)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(n_vocab - 259)]
    return pieces, scores, types


def _words() -> Iterator[str]:
    """Distinct pieces: printable characters, then every longer lower-case word with and without a space."""
    yield "\u2581"
    yield from string.digits + string.ascii_letters + string.punctuation
    yield from ("\u2581" + letter for letter in string.ascii_letters)
    for length in itertools.count(2):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            word = "".join(letters)
            yield word
            yield "\u2581" + word


def byte_pairs(n_vocab: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges of a byte-level BPE vocabulary: control, bytes, then made-up words."""
    letters = string.ascii_lowercase
    hidden = [byte for byte in range(256) if not (33 <= byte <= 126 or (byte >= 161 and byte != 173))]
    chars = [chr(256 + hidden.index(byte) if byte in hidden else byte) for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *chars]
    pairs = itertools.islice(_grown(letters), n_vocab - len(tokens))
    merges = [f"{begin} {end}" for begin, end in pairs]
    tokens += [merge.replace(" ", "") for merge in merges]
    return tokens, [3, 3, 3, *[1] * (n_vocab - 3)], merges


def _grown(letters: str) -> Iterator[tuple[str, str]]:
    """Every word of two letters, then of three, and so on: its beginning and its last letter."""
    words = list(letters)
    while True:
        yield from itertools.product(words, letters)
        words = [word + letter for word in words for letter in letters]


def write_model(
    path: str | Path, shape: Shape, mix: str, *, seed: int = 0, pure: bool = False, pairs: bool = False
) -> int:
    """Write the model to ``path`` (replaced if it exists) and return the size of the file in bytes.

    Its vocabulary is one of pieces (SentencePiece), or of byte ``pairs``.
    Raises ConfigError where a dimension does not fit: rows must be whole blocks of their format.
    """
    if shape.n_layer < 1 or shape.n_vocab < 1000:
        raise ConfigError(f"shape: expected at least 1 layer and 1000 tokens, got {shape}")
    gguf = gguf_package()
    plan = list(tensors(shape, mix, pure=pure))
    for tensor in plan:
        if tensor.n_in % FORMATS[tensor.format].block_len:
            block_len = FORMATS[tensor.format].block_len
            raise ConfigError(
                f"{tensor.name}: expected rows of a multiple of {block_len} values for {tensor.format}, "
                f"got {tensor.n_in}"
            )
    writer = gguf.GGUFWriter(path, shape.family)
    _add_metadata(writer, shape, mix, seed, pairs)
    return _write(path, writer, plan, seed)


def write_projector(path: str | Path, shape: VisionShape, format: str, *, seed: int = 0) -> int:
    """Write a projector file to ``path`` (replaced if it exists) and return its size in bytes."""
    writer = gguf_package().GGUFWriter(path, "clip")
    writer.add_name(f"random {format} weights, seed {seed}")
    for key, value in vision_metadata(shape).items():
        ADDING[type(value)](writer, f"clip.{key}", value)
    return _write(path, writer, list(vision_tensors(shape, format)), seed)


def _write(path: str | Path, writer: Any, plan: list[Tensor], seed: int) -> int:
    """Write what a writer was told, and random tensors; the size of the file in bytes."""
    gguf = gguf_package()
    for tensor in plan:
        kind = FORMATS[tensor.format].file_id
        # A float16 stands for "not bytes": the shape is given in elements, whatever the format.
        writer.add_tensor_info(tensor.name, tensor.dims, np.dtype(np.float16), tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    # The writer takes whole tensors only; appended here, they pass through memory in slices.
    rng = np.random.Generator(np.random.SFC64(seed))
    with open(path, "ab") as file:
        for tensor in plan:
            file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
            for data in tensor_data(tensor, rng):
                file.write(data.data)
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
        return file.tell()


def gguf_package() -> Any:
    """The package that writes GGUF files. Raises ConfigError if it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("make-model: expected the package gguf, got none: pip install gguf") from error
    return gguf


ADDING: dict[type, Callable[[Any, str, Any], None]] = {
    bool: lambda writer, key, value: writer.add_bool(key, value),
    int: lambda writer, key, value: writer.add_uint32(key, value),
    float: lambda writer, key, value: writer.add_float32(key, value),
    str: lambda writer, key, value: writer.add_string(key, value),
    list: lambda writer, key, value: _add_list(writer, key, value),
}


def _add_list(writer: Any, key: str, value: list[Any]) -> None:
    """A list of int32, of other values, or of uint64 by its key."""
    types = gguf_package().GGUFValueType
    if key.endswith(LONG):
        writer.add_key_value(key, value, types.ARRAY, types.UINT64)
    else:
        writer.add_array(key, value)


LONG = ("ple.layer_multipliers", "ple.head_vocab_sizes", "ple.head_offsets")
"""Ends of the keys whose lists are uint64."""


def _add_metadata(writer: Any, shape: Shape, mix: str, seed: int, pairs: bool) -> None:
    writer.add_name(f"random {mix} weights, seed {seed}")
    file_type = getattr(gguf_package().LlamaFileType, "ALL_F32" if mix == "F32" else f"MOSTLY_{mix}", None)
    if file_type is not None:
        writer.add_file_type(file_type)
    for key, value in metadata(shape).items():
        ADDING[type(value)](writer, f"{shape.family}.{key}", value)
    if pairs:
        tokens, types, merges = byte_pairs(shape.n_vocab)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_merges(merges)
    else:
        tokens, scores, types = vocabulary(shape.n_vocab, shape.controls)
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(scores)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shape", choices=[*SHAPES, *VISION_SHAPES], help="*-vision: a projector file")
    parser.add_argument("format", choices=BASE_FORMATS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="another number of layers than the shape's")
    parser.add_argument("--pure", action="store_true", help="one format for all matrices, no mix")
    parser.add_argument("--pairs", action="store_true", help="a vocabulary of byte pairs, not of pieces")


def run(args: argparse.Namespace) -> int:
    """Write the model that the arguments describe."""
    shape = SHAPES.get(args.shape) or VISION_SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, n_layer=args.layers)
    if isinstance(shape, Shape):
        size = write_model(args.out, shape, args.format, seed=args.seed, pure=args.pure, pairs=args.pairs)
    elif BASE_FORMATS[args.format] != args.format or args.pairs:
        raise ConfigError("shape: projector files have one format and no vocabulary")
    else:
        size = write_projector(args.out, shape, args.format, seed=args.seed)
    print(f"{args.out}: {size / 1e6:.1f} MB")
    return 0
