"""Record what llama.cpp makes of some tiny random models, for tests/test_parity.py.

Needs the packages llama-cpp-python (0.3.36 was used) and gguf, and oxillama built in place:

    python tools/record_parity.py

writes tests/data/parity_*.gguf (F32 weights, no vocabulary) with an .npz each:
``tokens`` int32 (28,), ``n_prompt``, and ``logits`` float32 (28, vocab), the first ``n_prompt`` rows from one
batch, the rest decoded one at a time; F32 keys and values, no flash attention, one thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.tinymodels import Tiny, tokens_of

N_TOKENS, N_PROMPT = 28, 24
SHAPE = Tiny(n_embd=32, n_ff=24, n_vocab=48, n_heads=2, n_kv_heads=1, key_dim=16, value_dim=16, n_rot=16)
MODELS = {
    "parity_llama": SHAPE.but(seed=1, rope_base=100.0, rope_freqs=True),
    "parity_llama4": SHAPE.but(architecture="llama4", seed=3, rope_base=100.0, n_layers=4, n_experts=3),
    "parity_qwen2": SHAPE.but(architecture="qwen2", seed=2, rope_base=100.0, biases=True, tied=True),
}


def model_file(tiny: Tiny) -> bytes:
    """The file, with what llama.cpp wants to know besides. Biases stay where its Qwen2 has them."""
    extra = {
        "tokenizer.ggml.model": ("str", "no_vocab"),
        f"{tiny.architecture}.vocab_size": ("u32", tiny.n_vocab),
    }
    dropped = {
        name: None
        for name in tiny.tensors
        if name.endswith(".bias") and not name.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias"))
    }
    return tiny.but(metadata=extra).file(**dropped)


def llama_cpp_logits(path: Path, tokens: list[int], n_prompt: int) -> np.ndarray:
    """float32 (tokens, vocab)."""
    import llama_cpp as api

    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = api.GGML_TYPE_F32
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = api.llama_init_from_model(model, params)
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(len(tokens), 0, 1)
    rows = []
    steps = [range(n_prompt), *(range(i, i + 1) for i in range(n_prompt, len(tokens)))]
    for step in steps:
        batch.n_tokens = len(step)
        for row, position in enumerate(step):
            batch.token[row], batch.pos[row] = tokens[position], position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
        if api.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        for row in range(len(step)):
            rows.append(np.ctypeslib.as_array(api.llama_get_logits_ith(context, row), (n_vocab,)).copy())
    api.llama_batch_free(batch)
    api.llama_free(context)
    api.llama_model_free(model)
    return np.stack(rows)


def main() -> None:
    for name, tiny in MODELS.items():
        path = ROOT / "tests" / "data" / f"{name}.gguf"
        path.write_bytes(model_file(tiny))
        tokens = tokens_of(N_TOKENS, tiny.n_vocab, seed=tiny.seed)
        logits = llama_cpp_logits(path, tokens, N_PROMPT)
        np.savez(
            path.with_suffix(".npz"), tokens=np.array(tokens, np.int32), n_prompt=N_PROMPT, logits=logits
        )
        print(f"{path.name}: {path.stat().st_size} bytes, logits of deviation {logits.std():.3f}")


if __name__ == "__main__":
    main()
