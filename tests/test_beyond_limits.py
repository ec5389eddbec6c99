"""docs/limits.md: what is beyond a limit, where no test of a room goes there."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, GenerationOptions, InferenceEngine, OxiLlamaError, demo
from oxillama.apps.batch import api
from oxillama.apps.batch.plain import Settings
from oxillama.apps.convert import bases
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.ollama.asking import idle_seconds
from oxillama.errors import GrammarError, LoadError, MediaError, ReceiptError
from oxillama.models.media import decode
from oxillama.sessions import signing
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary, gbnf_printer, lark_lazy, parse_lark
from oxillama.text.toolcalls.definitions import definitions
from tests.support.kernels import refuses

MANY_SCHEMAS = {"anyOf": [{"const": i} for i in range(20_000)]}
APART = {"type": "array", "uniqueItems": True, "maxItems": 2**22}
WORDS = {"substring_words": "a " * 1001}
LONG: dict[str, Any] = {"name": "f" * 128, "parameters": {}}
TOOLS = [{"name": f"f{i}", "parameters": {}} for i in range(1025)]

BEYOND: list[tuple[Callable[[], object], type[OxiLlamaError], str]] = [
    (lambda: Grammar.parse("root ::= a" + " " * 4_000_000), GrammarError, "at most 4000000 characters"),
    (lambda: Grammar.from_json_schema(MANY_SCHEMAS), GrammarError, "at most 20000 subschemas, 200 within"),
    (lambda: parse_lark(f"start: %regex {json.dumps(WORDS)}"), GrammarError, "at most 2000 parts, got 2002"),
    (lambda: definitions(TOOLS), ConfigError, "tools: expected at most 1024, got 1025"),
    (lambda: definitions([LONG | {"name": "f" * 129}]), ConfigError, "1 to 128 printable characters"),
    (lambda: GenerationOptions(request_id="x" * 201), ConfigError, "request_id: expected .*200 characters"),
    (lambda: idle_seconds(1e9 + 1), ApiError, "keep_alive: expected"),
    (
        lambda: Grammar.from_json_schema(APART).matches("[1]"),
        GrammarError,
        "at most 4194303 members apart, got 4194304",
    ),
]


@pytest.mark.parametrize(("ask", "kind", "message"), BEYOND, ids=range(len(BEYOND)))
def test_one_more_is_an_error(ask: Callable[[], object], kind: type[OxiLlamaError], message: str) -> None:
    refuses(message, ask, error=kind)


def test_one_less_is_none() -> None:
    assert len(definitions(TOOLS[:-1])) == 1024
    assert definitions([LONG])
    assert GenerationOptions(request_id="x" * 200).request_id == "x" * 200
    assert idle_seconds(1e9) == 1e9


def test_counts_and_places_of_automata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gbnf_printer, "MAX_UNROLLED", 20)
    counted = Grammar.from_json_schema({"type": "string", "pattern": "^(ab|c)*$", "minLength": 30})
    refuses("expected at most 20 states that count, got more", counted.to_gbnf, error=GrammarError)
    monkeypatch.setattr(lark_lazy, "MAX_PAIRS", 1)
    text = 'start: "a" z | /[a]/ T\nz[lazy]: /[abc]*c/\nT: /[abc]*/'
    refuses("expected at most 1 pairs of places, got more", parse_lark, text, error=GrammarError)


def test_layers_of_a_base_of_which_only_the_config_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 100_001}
    config |= {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = "num_hidden_layers: 100001 are more than the 100000"
    refuses(text, bases.folder_base, tmp_path, error=LoadError)


def test_a_body_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MOST_BYTES", 50)
    row: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        rows = api.Api(engine, Settings(model_name="draft"))
        for prompt, status in (("a", 200), ("a" * 50, 413)):
            body = {"prompt": prompt, "max_tokens": 1}
            assert asyncio.run(rows.answer(0, {**row, "body": body}))["status_code"] == status


def test_bytes_and_pixels_of_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MOST_PIXELS", 12)
    assert decode.read_picture(np.zeros((3, 4, 3), np.uint8)).pixels.shape == (3, 4, 3)
    text, large = "picture: expected at most 12 pixels .*, got 5 x 3", np.zeros((3, 5, 3), np.uint8)
    refuses(text, decode.read_picture, large, error=MediaError)
    monkeypatch.setattr(decode, "MOST_BYTES", 9)
    for source in (bytes(10), bytearray(10), f"data:image/png;base64,{base64.b64encode(bytes(10)).decode()}"):
        text = "picture: expected at most 9 bytes, got more"
        refuses(text, decode.read_picture, source, error=MediaError)


def test_vocabularies_of_a_grammar() -> None:
    grammar = Grammar.parse('root ::= "a"*')
    for n in range(9):
        GrammarState(grammar, Vocabulary([b"a", b"b", *([b"c"] * n)], end_ids=[1]))
    assert len(grammar._constraints) == 4


def test_lines_and_bytes_of_signed_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "MOST_TEXTS", 2)
    path = tmp_path / "chain"
    path.write_text("{}\n" * 3)
    refuses("expected at most [0-9]+ bytes and 2 lines", signing.load_chain, path, error=ReceiptError)
    monkeypatch.setattr(signing, "MOST_BYTES", 5)
    path.write_text("{    }")
    refuses("expected at most 5 bytes", signing.load_chain, path, error=ReceiptError)
