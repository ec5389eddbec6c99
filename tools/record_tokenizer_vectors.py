"""Records llama.cpp's tokens of test texts in the test vocabularies, for tests/text/tokenizer.

Needs the package llama-cpp-python (0.3.36 was used):

    python tools/record_tokenizer_vectors.py

writes tests/data/tokenizer_vectors.json. `llama_cpp_tokens(metadata, texts)` is also of use by itself,
to compare other vocabularies and texts.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from oxillama.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support import vocabularies
from tests.support.gguf_writer import write_metadata

TARGET = ROOT / "tests" / "data" / "tokenizer_vectors.json"

# What is asked of llama_tokenize: (add_special, parse_special).
MODES = ((False, False), (True, True))


# What llama.cpp wants to read of any model of this architecture.
MODEL = {
    **dict.fromkeys(("context_length", "embedding_length", "feed_forward_length", "block_count"), 8),
    "attention.head_count": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(level: int, text: bytes, data: None) -> None:
    pass


class LlamaVocab:
    """llama.cpp's vocabulary of a file."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        llama_cpp.llama_log_set(_silent, None)
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp refuses {path}")
        self.handle = llama_cpp.llama_model_get_vocab(self._model)

    def close(self) -> None:
        self.api.llama_model_free(self._model)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode()
        room = 2 * len(data) + 16
        ids = (self.api.llama_token * room)()
        count = self.api.llama_tokenize(self.handle, data, len(data), ids, room, add_special, parse_special)
        return list(ids[:count])

    def decode(self, ids: list[int], remove_special: bool, unparse_special: bool) -> bytes:
        room = 256 * len(ids) + 16
        buffer = ctypes.create_string_buffer(room)
        array = (self.api.llama_token * len(ids))(*ids)
        count = self.api.llama_detokenize(
            self.handle, array, len(ids), buffer, room, remove_special, unparse_special
        )
        return bytes(buffer.raw[:count])

    def facts(self) -> dict[str, Any]:
        """End-of-generation ids, control ids, and the text of every token."""
        everything = range(self.api.llama_vocab_n_tokens(self.handle))
        return {
            "eog": [id for id in everything if self.api.llama_vocab_is_eog(self.handle, id)],
            "control": [id for id in everything if self.api.llama_vocab_is_control(self.handle, id)],
            "pieces": [self.decode([id], False, True) for id in everything],
        }


def llama_cpp_tokens(metadata: Mapping[str, Any], texts: Iterable[str]) -> list[list[list[int]]]:
    """llama.cpp's ids of each text in each of `MODES`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_metadata(path, {**metadata, **{f"llama.{key}": value for key, value in MODEL.items()}})
        vocab = LlamaVocab(path)
        try:
            return [[vocab.encode(text, add, parse) for add, parse in MODES] for text in texts]
        finally:
            vocab.close()


def random_text(choose: random.Random, length: int, characters: str = vocabularies.CHARACTERS) -> str:
    """Characters of all classes, in runs and alone, with contractions and numbers among them."""
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        kind = choose.random()
        if kind < 0.5:
            parts.append(choose.choice(characters))
        elif kind < 0.7:
            parts.append(choose.choice(characters) * choose.randrange(2, 6))
        elif kind < 0.8:
            parts.append(
                choose.choice(("'s", "'T", "'re", "'VE", "'ll", "'d", "'mA", "test", " test", "0159"))
            )
        elif kind < 0.9:
            parts.append("".join(choose.choices("0159", k=choose.randrange(1, 9))))
        else:
            parts.append("".join(choose.choices("astrevldSTAZ é", k=choose.randrange(1, 9))))
    return "".join(parts)


KINDS = {
    "sentence_piece": [
        "hello the",
        "  hello  the\n\n[USER] hello",
        "aaaaaaa abababab",
        "中文é🦙",
        "<s>hello</s> the<|im_end|>",
        "o t othe",
    ],
    "plain_byte_pair": [
        "hello the",
        "hello\n\nthe\n\n\n\n aaaaa",
        "<|turn>hello<turn|>\n",
        "  abababab 中文é🦙",
    ],
    "unigram": [
        "hello  the",
        " \thello\n",
        "aaaaaaa",
        "½ ﬁ Ａ e\u0301 \u200bthe",
        "XYhello<mask> zz 中文🦙🦙",
        "q",
    ],
    "word_piece": [
        "Hello, World!",
        "cafés running",
        "中文 ÍÍ Í $1 €",
        "[MASK] hello [SEP]",
        "\u0130 ß\x00 \u200bxx",
        "hellox 123",
    ],
    "rwkv": ["hello the", "\n\n中文🦙", "aaaaaaa\\'", "helthe\x00\x7f"],
    "plamo2": ["hello hello", "aaaaaaa", "中文é🦙\n", "\ufeffhello"],
    "dna": ["test <dna>acgtacgatt</dna> test", "<dna>NNNNNN", "<dna></dna>", "plain"],
    "whitespace": ["hello the\n\thello", "中文 é  aaaaa\u3000bab"],
}


def main() -> None:
    choose = random.Random(1)
    texts = [
        "",
        "'s 'S it's 1234567 \r\n  \n\n test",
        "\t \t \t \tt `a` t `=`  1 t \n s \n\n t",
        "<s>t</s> <tool>  <|end|>  \n",
        *(random_text(choose, 40) for _ in range(18)),
    ]
    results: list[list[list[list[int]]]] = []
    names: dict[str, int] = {}
    for pre in ("", *PRE_TOKENIZERS):
        if pre == "whitespace":
            continue
        make = vocabularies.plain_byte_pair if pre and not PRE_TOKENIZERS[pre].byte_level else None
        values = (
            make(pre=pre) | {"tokenizer.ggml.model": "gpt2"} if make else vocabularies.byte_pair(pre or None)
        )
        found = llama_cpp_tokens(values, texts)
        if found not in results:
            results.append(found)
        names[pre] = results.index(found)
    kinds = {}
    for kind, samples in KINDS.items():
        samples = ["", *samples, *(random_text(choose, 30, "aehlot中文é🦙  \n'<A") for _ in range(6))]
        kinds[kind] = {"texts": samples, "ids": llama_cpp_tokens(getattr(vocabularies, kind)(), samples)}
    document = {"texts": texts, "pre": names, "ids": results, "kinds": kinds}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    print(f"{len(results)} different results for {len(names)} names, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
