"""Records llama.cpp's masks along the documents of the grammar benchmark, for test_grammar_large.py.

    python tools/record_grammar_masks.py VOCAB.gguf tests/data/grammar_masks.json

Needs llama-cpp-python 0.3.36. Of the mask at a position, the CRC-32 over the tokens that are whole characters
or ends of generation is kept. llama.cpp treats other tokens differently: it allows a control token whose name
fits as text, does not check the bytes of pieces of characters, and ends a string at the character 0.
"""

from __future__ import annotations

import ctypes
import json
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import llama_cpp
import numpy as np

from benchmarks.grammar_texts import CASES
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Vocabulary

STEP = 3  # every third position is recorded


def comparable(vocabulary: Vocabulary) -> np.ndarray:
    """bool (n_vocab,): whether a token is whole characters of text, or an end of generation."""
    found = np.zeros(vocabulary.n_vocab, bool)
    for id in range(vocabulary.n_vocab):
        if vocabulary.is_text(id):
            data = vocabulary.trie.token_bytes(id)
            found[id] = data.decode(errors="ignore").encode() == data and 0 not in data
    found[list(vocabulary.end_ids)] = True
    return found


def main() -> None:
    vocab_path, out_path = sys.argv[1:]
    tokenizer = TokenizerBridge.from_gguf(vocab_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    n = tokenizer.n_vocab
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(vocab_path.encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    candidates = (llama_cpp.llama_token_data * n)()
    view = np.frombuffer(candidates, np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")]))
    known = comparable(vocabulary)
    recorded = {}
    for case in CASES:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, case.gbnf.encode(), b"root")
        assert sampler, case.name
        found = []
        for i, token in enumerate(tokenizer.encode(case.document, add_special=False)):
            if i % STEP == 0:
                view["id"], view["logit"], view["p"] = np.arange(n), 0, 0
                array = llama_cpp.llama_token_data_array(candidates, n, -1, False)
                llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
                bits = np.zeros(32 * vocabulary.n_words, bool)
                bits[view["id"]] = (view["logit"] == 0) & known[view["id"]]
                found.append(zlib.crc32(np.packbits(bits, bitorder="little").tobytes()))
            llama_cpp.llama_sampler_accept(sampler, token)
        recorded[case.name] = found
    content = {"vocabulary": Path(vocab_path).name, "step": STEP, "masks": recorded}
    Path(out_path).write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
