"""Records llama.cpp's logits of the small random models of tests/support/zoo.py, for test_parity.py.

Needs the package llama-cpp-python (0.3.36 was used):

    python tools/record_parity.py            # models that are not recorded yet
    python tools/record_parity.py NAME ...   # these models, again

updates tests/data/parity.npz, and removes models that are not in the zoo any more. For each model NAME the
file holds

NAME.tokens : int32 (28,).
NAME        : float16 (28, vocab), the logits after each token: the first 24 tokens in one batch, the others
decoded
    one at a time. For an encoder float16 (28, n_embd), the states of the tokens.
NAME.top    : int32 (28,), the index of the highest number of each row.

llama.cpp runs with F32 keys and values, without flash attention, on one thread.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.zoo import ENCODERS, MODELS, VARIANTS, VOCAB, Model

N_TOKENS, N_PROMPT = 28, 24
PARTS = ("", ".tokens", ".top")  # endings of the names of a model's entries


def llama_cpp_rows(path: Path, tokens: list[int], encoder: bool) -> np.ndarray:
    """llama.cpp's logits, float32 (tokens, vocab), or an encoder's states, float32 (tokens, n_embd)."""
    import llama_cpp as api

    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = api.GGML_TYPE_F32
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if encoder:
        params.embeddings, params.pooling_type = True, api.LLAMA_POOLING_TYPE_NONE
    context = api.llama_init_from_model(model, params)
    width = api.llama_model_n_embd(model) if encoder else VOCAB
    steps = [range(N_PROMPT), *(range(i, i + 1) for i in range(N_PROMPT, len(tokens)))]
    run, get = (
        (api.llama_encode, api.llama_get_embeddings_ith)
        if encoder
        else (api.llama_decode, api.llama_get_logits_ith)
    )
    batch = api.llama_batch_init(len(tokens), 0, 1)
    rows = []
    for step in [range(len(tokens))] if encoder else steps:
        batch.n_tokens = len(step)
        for row, position in enumerate(step):
            batch.token[row], batch.pos[row] = tokens[position], position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
        if run(context, batch) != 0:
            raise RuntimeError("llama.cpp failed")
        for row in range(len(step)):
            rows.append(np.ctypeslib.as_array(get(context, row), (width,)).copy())
    return np.stack(rows)


def record(name: str, model: Model, folder: Path) -> dict[str, np.ndarray]:
    """A model's entries; {}, and a printed reason, if llama.cpp does not run the model.

    llama.cpp runs in a child process, because it ends the process if it does not support a model.
    """
    tokens = np.random.default_rng(model.seed).integers(0, VOCAB, N_TOKENS).astype(np.int32)
    path, out, log = folder / "model.gguf", folder / "rows.npy", folder / "log"
    path.write_bytes(model.file())
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        np.save(out, llama_cpp_rows(path, tokens.tolist(), model.architecture in ENCODERS))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        lines = log.read_text(errors="replace").splitlines()[-3:]
        print(f"{name}: llama.cpp does not run it:", *lines, sep="\n    ")
        return {}
    rows = np.load(out)
    return {
        f"{name}.tokens": tokens,
        name: rows.astype(np.float16),
        f"{name}.top": rows.argmax(axis=1).astype(np.int32),
    }


def main() -> None:
    compared = {name: model for name, model in (MODELS | VARIANTS).items() if model.compared}
    out = ROOT / "tests" / "data" / "parity.npz"
    with np.load(out) as recorded:
        kept = [name for name in compared if name in recorded and name not in sys.argv[1:]]
        found = {f"{name}{part}": recorded[f"{name}{part}"] for name in kept for part in PARTS}
    wrong = sorted(set(sys.argv[1:]) - compared.keys())
    if wrong:
        raise SystemExit(f"expected names of models in tests/support/zoo.py, got {wrong}")
    with tempfile.TemporaryDirectory() as folder:
        for name in compared.keys() - set(kept):
            found |= record(name, compared[name], Path(folder))
    np.savez_compressed(out, **found)
    print(f"{out.name}: {len(found) // 3} models, {out.stat().st_size} bytes")
    missing = [name for name in compared if name not in found]
    if missing:
        raise SystemExit(f"no numbers of {', '.join(missing)}")


if __name__ == "__main__":
    main()
