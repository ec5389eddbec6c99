"""Constants of llama.cpp's C interface, and the two vocabulary functions that other packages call.

The rest of the C interface works on pointers to llama.cpp's own memory, which does not exist here.
"""

from __future__ import annotations

from typing import Any

from oxillama.base.formats import FORMATS
from oxillama.text.chat.bridge import TokenizerBridge

LLAMA_DEFAULT_SEED = 0xFFFFFFFF
LLAMA_MAX_DEVICES = 16

LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_ROW = range(3)

LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED = -1
LLAMA_ROPE_SCALING_TYPE_NONE, LLAMA_ROPE_SCALING_TYPE_LINEAR, LLAMA_ROPE_SCALING_TYPE_YARN = range(3)

LLAMA_POOLING_TYPE_UNSPECIFIED = -1
LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN, LLAMA_POOLING_TYPE_CLS = range(3)
LLAMA_POOLING_TYPE_LAST, LLAMA_POOLING_TYPE_RANK = 3, 4

LLAMA_ATTENTION_TYPE_UNSPECIFIED = -1
LLAMA_ATTENTION_TYPE_CAUSAL, LLAMA_ATTENTION_TYPE_NON_CAUSAL = range(2)

GGML_NUMA_STRATEGY_DISABLED, GGML_NUMA_STRATEGY_DISTRIBUTE = range(2)

GGML_TYPES: dict[str, int] = {
    f"GGML_TYPE_{name}": format.id for name, format in FORMATS.items() if format.id == format.file_id
}
"""Type numbers of block formats by llama.cpp's names."""

globals().update(GGML_TYPES)


def llama_model_get_vocab(model: TokenizerBridge) -> TokenizerBridge:
    """The vocabulary of `Llama.model`, for `llama_token_to_piece`."""
    return model


def llama_token_to_piece(
    vocab: TokenizerBridge, token: int, buffer: Any, length: int, lstrip: int, special: bool
) -> int:
    """Write the bytes of a token to a ctypes character array.

    Args:
        length: size of the array in bytes.
        lstrip: maximum number of leading spaces to remove.
        special: whether to write the names of control tokens.

    Returns:
        The number of bytes; if they do not fit, the negated number, and nothing is written.
    """
    piece = vocab.stream_decoder(not special, continuing=True).piece(token)
    while lstrip > 0 and piece.startswith(b" "):
        piece, lstrip = piece[1:], lstrip - 1
    if len(piece) > length:
        return -len(piece)
    buffer[: len(piece)] = piece
    return len(piece)


def __getattr__(name: str) -> Any:
    if name.startswith(("llama_", "ggml_")):
        raise AttributeError(f"{name}: llama.cpp's C interface is not offered, only the classes over it")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
