"""Writes the trained models as GGUF files, and reads them back.

    python export.py --from DIR --to ../../oxillama/apps/demo [--f32]

Matrices become Q8_0 and norms stay F32; the adapter is F16. Names and keys follow the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); the `llama` architecture takes the token
embeddings as its output matrix if the file has no output matrix. The vocabulary is byte-level BPE, "gpt2"
with the pre-tokenizer "gpt-2": all 256 bytes are tokens, no text is out of vocabulary, and no scores are
needed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from chat_template import TEMPLATE
from gguf import GGMLQuantizationType as Type, quants
from model import Linear, Llama, Shape
from train import BOS, EOS, LORA_ALPHA, LORA_RANK, SPECIAL, load

MANTISSA_BITS = 5  # bits of the adapter's mantissas, of 10 in float16: the file compresses to 70%

DESCRIPTIONS = {
    "story": "Tells little stories for children. Trained on a text drawn from a grammar (tools/train_demo).",
    "draft": "A small draft for the story model, distilled from it, for speculative decoding.",
    "pirate": "A LoRA adapter for the story model: the same stories, told by a pirate.",
}


def begin(path: Path, name: str, kind: str) -> gguf.GGUFWriter:
    """A writer with the keys that all files have."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_name(f"oxillama demo {name}")
    writer.add_description(DESCRIPTIONS[name])
    writer.add_license("MIT")
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes header, keys and tensors."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Adds the hyper-parameters."""
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_vocab_size(shape.n_vocab)


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer_file: Path) -> None:
    """Adds tokens and merges of a byte-level BPE."""
    bpe = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    kinds = [gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def write_model(model: Llama, name: str, path: Path, tokenizer_file: Path, matrix_type: Type) -> None:
    """Writes a model whose matrices have the format ``matrix_type``."""
    writer = begin(path, name, "model")
    is_q8 = matrix_type == Type.Q8_0
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if is_q8 else gguf.LlamaFileType.ALL_F32)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_shape(writer, model.shape)
    add_vocabulary(writer, tokenizer_file)
    for tensor_name, tensor in model.state_dict().items():
        data = tensor.float().numpy()
        if data.ndim == 1:
            writer.add_tensor(tensor_name, data)
        else:
            writer.add_tensor(tensor_name, quants.quantize(data, matrix_type), raw_dtype=matrix_type)
    finish(writer)


def write_adapter(model: Llama, name: str, path: Path) -> None:
    """Writes a model's adapter: for each changed weight two matrices, (rank, n_in) and (n_out, rank)."""
    writer = begin(path, name, "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", LORA_ALPHA)
    for module_name, module in model.named_modules():
        if isinstance(module, Linear):
            for side in ("lora_a", "lora_b"):
                data = getattr(module, side).detach().half().numpy()
                writer.add_tensor(f"{module_name}.weight.{side}", shortened(data))
    finish(writer)


def shortened(data: np.ndarray) -> np.ndarray:
    """Float16 numbers with mantissas rounded to `MANTISSA_BITS` bits, which makes the package smaller."""
    dropped = 10 - MANTISSA_BITS
    bits = data.view(np.uint16).astype(np.uint32)
    rounded = bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1)  # ties to even
    return (rounded >> dropped << dropped).astype(np.uint16).view(np.float16)


def read_model(path: Path, adapter: Path | None = None) -> Llama:
    """The model of an exported GGUF file, dequantized to float32, with an adapter if a path is given."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> float:
        return reader.get_field(f"llama.{key}").contents()  # type: ignore[union-attr, no-any-return]

    model = Llama(
        Shape(
            n_vocab=int(value("vocab_size")),
            n_ctx=int(value("context_length")),
            n_embd=int(value("embedding_length")),
            n_layer=int(value("block_count")),
            n_head=int(value("attention.head_count")),
            n_head_kv=int(value("attention.head_count_kv")),
            n_ff=int(value("feed_forward_length")),
            rope_base=value("rope.freq_base"),
            rms_eps=value("attention.layer_norm_rms_epsilon"),
        )
    )
    tensors = [*reader.tensors]
    if adapter is not None:
        model.add_lora(LORA_RANK, LORA_ALPHA)
        tensors += gguf.GGUFReader(adapter).tensors
    state = {t.name.replace("weight.lora", "lora"): quants.dequantize(t.data, t.tensor_type) for t in tensors}
    model.load_state_dict({name: torch.tensor(data).float() for name, data in state.items()})
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--f32", action="store_true", help="full precision, to compare engines")
    args = parser.parse_args()
    matrix_type = Type.F32 if args.f32 else Type.Q8_0
    for name in ("story", "draft"):
        model = load(args.source / f"{name}.pt")
        write_model(model, name, args.to / f"{name}.gguf", args.source / "tokenizer.json", matrix_type)
        print(f"{name}: {model.n_params():,} parameters, {model.n_params(embeddings=False):,} in the blocks")
    adapted = load(args.source / "pirate.pt", lora=True)
    write_adapter(adapted, "pirate", args.to / "pirate.gguf")
    n_lora = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    print(f"pirate: {n_lora:,} parameters")


if __name__ == "__main__":
    main()
