"""Writes models of random weights that are small enough to make in each test, and runnable.

A `llama` of two layers with a byte-level vocabulary (every byte, some words, four control tokens) and a
ChatML template. The same arguments give the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from oxillama.text.tokenizer.segmenters.byte_pair import BYTE_TO_CHAR

WORDS = ("the", "and", "once", "upon", "time", "fox", "little", "said", "there", "was", "hello", "world")
BOS, EOS, TURN, END_OF_TURN = "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"
N_CONTROL = 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"
"""Prompts open reasoning, which nothing switches off."""
FIM = {f"tokenizer.ggml.fim_{name}_token_id": i for i, name in enumerate(("pre", "suf", "mid"), 1)}
"""Metadata by which three tokens are said to be those of infill."""


def tiny_vocabulary(pieces: Sequence[str] = (), eos: str = EOS) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges of a byte-level vocabulary: 256 bytes, words, control tokens.

    ``pieces`` are further texts, which have a token and no merge: a model can write the token,
    and the tokens of a prompt do not have it. ``eos`` is the text of the token that ends a text.
    """
    tokens, merges = [BYTE_TO_CHAR[byte] for byte in range(256)], []
    for word in WORDS:
        for spelled in (word, BYTE_TO_CHAR[32] + word):
            for end in range(2, len(spelled) + 1):
                if spelled[:end] not in tokens:
                    tokens.append(spelled[:end])
                    merges.append(f"{spelled[: end - 1]} {spelled[end - 1]}")
    tokens += ["".join(BYTE_TO_CHAR[byte] for byte in piece.encode()) for piece in pieces]
    types = [int(gguf.TokenType.NORMAL)] * len(tokens) + [int(gguf.TokenType.CONTROL)] * N_CONTROL
    return [*tokens, BOS, eos, TURN, END_OF_TURN], types, merges


def write_tiny_model(
    path: Path,
    *,
    architecture: str = "llama",
    format: str = "F32",
    n_layers: int = 2,
    n_embd: int = 64,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    n_ff: int = 96,
    context_length: int = 4096,
    add_bos: bool = True,
    chat_template: str | None = CHATML,
    tied: bool = False,
    ends: bool = True,
    seed: int = 0,
    pieces: Sequence[str] = (),
    eos: str = EOS,
    metadata: Mapping[str, int | float | str | bool] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """Writes a model to ``path`` and returns it.

    ``format`` is that of the matrices, one that the `gguf` package can quantize to; the vectors are F32.
    ``ends`` False makes control tokens so unlikely that a generation goes on until it is stopped (an
    output table of its own is needed for that). ``metadata`` adds keys. ``tensors`` replaces tensors by
    name, in NumPy's order of dimensions, stored as they are; None leaves one out.
    """
    assert ends or not tied
    tokens, types, merges = tiny_vocabulary(pieces, eos)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(context_length)
    writer.add_block_count(n_layers)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(eos))
    writer.add_eot_token_id(tokens.index(END_OF_TURN))
    writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)

    rng = np.random.default_rng(seed)
    head = n_embd // n_heads
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), n_embd),
        "output_norm.weight": (n_embd,),
    }
    if not tied:
        shapes["output.weight"] = (len(tokens), n_embd)
    for i in range(n_layers):
        for name, dims in (
            ("attn_norm", (n_embd,)),
            ("attn_q", (n_heads * head, n_embd)),
            ("attn_k", (n_kv_heads * head, n_embd)),
            ("attn_v", (n_kv_heads * head, n_embd)),
            ("attn_output", (n_embd, n_heads * head)),
            ("ffn_norm", (n_embd,)),
            ("ffn_gate", (n_ff, n_embd)),
            ("ffn_up", (n_ff, n_embd)),
            ("ffn_down", (n_embd, n_ff)),
        ):
            shapes[f"blk.{i}.{name}.weight"] = dims
    kind = gguf.GGMLQuantizationType[format]
    weights: dict[str, Any] = {}
    for name, shape in shapes.items():
        spread = 1.0 if name == "token_embd.weight" else shape[-1] ** -0.5
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(spread)
        if name == "output.weight" and not ends:
            values[-N_CONTROL:] = 0  # the logit of a row of zeros is 0, near the median
        weights[name] = (values, kind) if len(shape) > 1 else (np.ones(shape, np.float32), None)
    for name, (values, quantization) in weights.items():
        if name not in (tensors or {}):
            data = values if quantization is None else gguf.quants.quantize(values, quantization)
            writer.add_tensor(name, data, raw_dtype=quantization)
    for name, array in (tensors or {}).items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_value(writer: gguf.GGUFWriter, key: str, value: int | float | str | bool) -> None:
    kinds: dict[type, Any] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    kinds[type(value)](key, value)
