"""Write a Llama or Mamba-2 GGUF of random weights in a real model's shape: speed without a download.

    python -m benchmarks.make_model 1.1B Q4_K_M out.gguf

Speed depends on shapes and formats, not on what the weights say. The weights are drawn so that
activations and logits keep the size they have in a trained model, and the formats of the tensors follow
the mixes that llama.cpp's quantizer writes. Data is made and written in slices of a few megabytes.
"""

from __future__ import annotations

import argparse
import itertools
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_blocks import RANDOM_FORMATS, random_rows
from oxillama.errors import ConfigError
from oxillama.formats import FORMATS

SLICE_ELEMENTS = 1 << 22
"""Elements made and written at a time."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama or Mamba-2 model; ``tied`` shares the embedding with the output."""

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    tied: bool = False
    rope_theta: float = 10000.0
    context: int = 4096
    n_state: int = 0  # of a Mamba-2 model, whose heads are n_head and whose width within is 2 n_embd; else 0

    @property
    def architecture(self) -> str:
        """`general.architecture` of the file."""
        return "mamba2" if self.n_state else "llama"

    @property
    def n_kv(self) -> int:
        """Rows of a key or value projection."""
        return self.n_embd // self.n_head * self.n_head_kv


SHAPES = {
    "15M": Shape(256, 1024, 6, 4, 4, 32000, tied=True, context=2048),  # the size of stories15M
    "1.1B": Shape(2048, 5632, 22, 32, 4, 32000),  # TinyLlama
    "llama3.2-1B": Shape(2048, 8192, 16, 32, 8, 128256, tied=True, rope_theta=500000.0, context=8192),
    "mamba2-1.3B": Shape(2048, 0, 48, 64, 1, 50288, tied=True, n_state=128),
    "8B": Shape(4096, 14336, 32, 32, 8, 128256, rope_theta=500000.0, context=8192),  # Llama 3
}

BASE_FORMATS = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"} | {name: name for name in RANDOM_FORMATS}
"""What can be asked for, and the format that most of its tensors have."""


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: (n_out, n_in), or (n_in,) for a norm when ``n_out`` is None."""

    name: str
    n_out: int | None
    n_in: int
    format: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file, padding excluded."""
        return FORMATS[self.format].nbytes((self.n_out or 1) * self.n_in)


def tensor_format(mix: str, kind: str, layer: int, shape: Shape, *, pure: bool = False) -> str:
    """Format of the ``kind`` ("attn_v", "output", ...) of tensor in a file of the mix ``mix``.

    After `llama_tensor_get_type_impl` in llama.cpp's src/llama-quant.cpp, for the Llama architecture
    without an importance matrix. Formats under four bits get their mix's output tensor only. ``pure``
    gives every matrix the one format, as `llama-quantize --pure` does.
    """
    base = BASE_FORMATS[mix]
    if pure or base in ("F32", "F16", "BF16", "Q8_0"):
        return base
    if kind == "output" or (kind == "token_embd" and shape.tied):
        return "Q6_K"
    n = shape.n_layer
    if mix in ("Q4_K_M", "Q5_K_M") and kind in ("attn_v", "ffn_down"):
        more_bits = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
        return "Q6_K" if more_bits else base
    if mix in ("IQ4_NL", "IQ4_XS"):
        grouped = shape.n_head // shape.n_head_kv >= 4
        if (kind == "attn_v" and grouped) or (kind == "ffn_down" and layer < n // 8):
            return "Q5_K"
    return base


def tensors(shape: Shape, mix: str, *, pure: bool = False) -> Iterator[Tensor]:
    """All tensors of a model, in the order they are written."""

    def matrix(kind: str, n_out: int, n_in: int, layer: int = -1) -> Tensor:
        prefix = f"blk.{layer}." if layer >= 0 else ""
        return Tensor(
            f"{prefix}{kind}.weight", n_out, n_in, tensor_format(mix, kind, layer, shape, pure=pure)
        )

    n_embd, n_ff = shape.n_embd, shape.n_ff
    yield matrix("token_embd", shape.n_vocab, n_embd)
    for layer in range(shape.n_layer):
        yield Tensor(f"blk.{layer}.attn_norm.weight", None, n_embd, "F32")
        if shape.n_state:
            inner, heads, block = 2 * n_embd, shape.n_head, f"blk.{layer}"
            channels = inner + 2 * shape.n_state
            yield matrix("ssm_in", inner + channels + heads, n_embd, layer)
            yield Tensor(f"{block}.ssm_conv1d.weight", channels, 4, "F32")
            yield Tensor(f"{block}.ssm_conv1d.bias", None, channels, "F32")
            yield Tensor(f"{block}.ssm_dt.bias", None, heads, "F32")
            yield Tensor(f"{block}.ssm_a", heads, 1, "F32")
            yield Tensor(f"{block}.ssm_d", heads, 1, "F32")
            yield Tensor(f"{block}.ssm_norm.weight", 1, inner, "F32")
            yield matrix("ssm_out", n_embd, inner, layer)
            continue
        yield matrix("attn_q", n_embd, n_embd, layer)
        yield matrix("attn_k", shape.n_kv, n_embd, layer)
        yield matrix("attn_v", shape.n_kv, n_embd, layer)
        yield matrix("attn_output", n_embd, n_embd, layer)
        yield Tensor(f"blk.{layer}.ffn_norm.weight", None, n_embd, "F32")
        yield matrix("ffn_gate", n_ff, n_embd, layer)
        yield matrix("ffn_up", n_ff, n_embd, layer)
        yield matrix("ffn_down", n_embd, n_ff, layer)
    yield Tensor("output_norm.weight", None, n_embd, "F32")
    if not shape.tied:
        yield matrix("output", shape.n_vocab, n_embd)


def tensor_data(tensor: Tensor, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The bytes of a tensor, in slices of whole rows."""
    if tensor.name.endswith("ssm_a"):  # decays: a memory that grew would leave the numbers' range
        yield rng.uniform(-16.0, -1.0, tensor.n_out).astype("<f4").view(np.uint8)
        return
    if tensor.n_out is None:
        yield rng.normal(1.0, 0.05, tensor.n_in).astype("<f4").view(np.uint8)
        return
    std = tensor.n_in**-0.5  # a product with activations of size 1 is again of size 1
    step = max(1, SLICE_ELEMENTS // tensor.n_in)
    for row in range(0, tensor.n_out, step):
        yield random_rows(tensor.format, min(step, tensor.n_out - row), tensor.n_in, std, rng)


def vocabulary(n_vocab: int) -> tuple[list[str], list[float], list[int]]:
    """Pieces, scores and types of a SentencePiece vocabulary: control, bytes, then made-up words.

    Types are llama.cpp's: 1 normal, 2 unknown, 3 control, 6 byte.
    """
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces += itertools.islice(_words(), n_vocab - len(pieces))
    types += [1] * (n_vocab - len(types))
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


def write_model(path: str | Path, shape: Shape, mix: str, *, seed: int = 0, pure: bool = False) -> int:
    """Write the model to ``path`` (replaced if it exists) and return the size of the file in bytes.

    Raises ConfigError where a dimension does not fit: rows must be whole blocks of their format.
    """
    if shape.n_layer < 1 or shape.n_vocab < 1000:
        raise ConfigError(f"shape: expected at least 1 layer and 1000 tokens, got {shape}")
    gguf = _gguf()
    plan = list(tensors(shape, mix, pure=pure))
    for tensor in plan:
        if tensor.n_in % FORMATS[tensor.format].block_len:
            block_len = FORMATS[tensor.format].block_len
            raise ConfigError(
                f"{tensor.name}: {tensor.format} needs rows of a multiple of {block_len}, not {tensor.n_in}"
            )
    writer = gguf.GGUFWriter(path, shape.architecture)
    _add_metadata(writer, shape, mix, seed)
    for tensor in plan:
        dims = [tensor.n_in] if tensor.n_out is None else [tensor.n_out, tensor.n_in]
        kind = gguf.GGMLQuantizationType[tensor.format]
        # A float16 stands for "not bytes": the shape is given in elements, whatever the format.
        writer.add_tensor_info(tensor.name, dims, np.dtype(np.float16), tensor.nbytes, raw_dtype=kind)
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


def _gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("make_model: needs the package gguf, which is not installed") from error
    return gguf


def _add_metadata(writer: Any, shape: Shape, mix: str, seed: int) -> None:
    writer.add_name(f"random {mix} weights, seed {seed}")
    file_type = getattr(_gguf().LlamaFileType, "ALL_F32" if mix == "F32" else f"MOSTLY_{mix}", None)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    if shape.n_state:
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * shape.n_embd)
        writer.add_ssm_state_size(shape.n_state)
        writer.add_ssm_time_step_rank(shape.n_head)
        writer.add_ssm_group_count(1)
    else:
        writer.add_head_count(shape.n_head)
        writer.add_head_count_kv(shape.n_head_kv)
        writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
        writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.n_vocab)
    pieces, scores, types = vocabulary(shape.n_vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("format", choices=BASE_FORMATS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="another number of layers than the shape's")
    parser.add_argument("--pure", action="store_true", help="one format for all matrices, no mix")


def run(args: argparse.Namespace) -> int:
    """Write the model that the arguments describe."""
    shape = SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, n_layer=args.layers)
    size = write_model(args.out, shape, args.format, seed=args.seed, pure=args.pure)
    print(f"{args.out}: {size / 1e6:.1f} MB")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line of this module; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_model", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (OSError, ConfigError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
