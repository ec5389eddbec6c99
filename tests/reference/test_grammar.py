"""The reference's grammars: the masks of the kernels, and receipts of texts that a grammar rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import Grammar, GrammarState, InferenceEngine, demo
from oxillama.apps import cli
from oxillama.errors import ConfigError, GrammarError, ReceiptError
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.gbnf import Reader, utf8_ranges
from oxillama.reference.grammar import Recogniser
from oxillama.reference.source import Unsupported
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Vocabulary
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from tests.reference.test_verification import checked, receipt_of
from tests.text.grammar.test_grammar_masks import allowed, check

MORE = {
    "JSON": Grammar.json().to_gbnf(),
    "groups over lines": 'root ::= ( "a" |\n  "b" # or\n  [c]\n) {1, 3}\n\n# the end\n',
    "bounds": 'root ::= "a"{2} [b]{1,} "c"{,2}'.replace("{,2}", "{0,2}"),
    "characters of every length": r"root ::= [\x61\u00e9-\u65e5\U0001F600-\U0001F700] [^\x00-\u0100] .",
    "a class that ends with a dash": 'root ::= [a-] "\\"" | [^]',
    "a dot and a name": "root ::= . a-1\na-1 ::= .?",
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


RULES_OF_SCHEMA = Grammar.from_json_schema(SCHEMA, compiler=JsonSchemaCompiler(plain_integers=True)).to_gbnf()
"""As requests compile it."""


@pytest.mark.parametrize("name", MORE)
def test_masks_are_those_of_the_kernels(name: str) -> None:
    for seed in range(2):
        check(Grammar.parse(MORE[name]), np.random.default_rng(seed).integers(0, 100, 6).tolist())


@pytest.mark.parametrize("name", ["schema", "JSON", "regex"])
def test_masks_of_a_model_s_vocabulary(name: str) -> None:
    """The rules of schemas and patterns are taken as the GBNF that they are printed as."""
    grammar, text = {
        "schema": (Grammar.from_json_schema(SCHEMA), '{"name": "Tom", "n": -12}'),
        "JSON": (Grammar.json(), '[{"a": [1.5e3, true, "\\u00e9 x"]}, null]'),
        "regex": (Grammar.from_regex("(once|twice) upon [a-z ]{3,9}[.!]"), "twice upon a time."),
    }[name]
    tokenizer = TokenizerBridge.from_metadata(ModelFile.open(demo.STORY).metadata)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    strings = [s if vocabulary.is_text(i) else b"" for i, s in enumerate(tokenizer.vocab_bytes())]
    ours = Recogniser(Reader(grammar.to_gbnf(), lambda text: []).productions, strings, tokenizer.eog_ids)
    kernels = GrammarState(grammar, vocabulary)
    for token in tokenizer.encode(text, add_special=False):
        assert np.flatnonzero(ours.allowed()).tolist() == allowed(kernels.mask())
        ours.advance(token)
        kernels.advance(token)
    assert np.flatnonzero(ours.allowed()).tolist() == allowed(kernels.mask())
    assert tokenizer.eog_ids <= set(allowed(kernels.mask()))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, 0x10FFFF), (0x61, 0x61), (0x7F, 0x80), (0x7FE, 0x801), (0xD7F0, 0xE010), (0xFFFF, 0x10001),
        (0xD800, 0xDFFF),
    ],
)  # fmt: skip
def test_bytes_of_characters(first: int, last: int) -> None:
    """Each character's bytes have one way, and there is none for anything else."""
    ways = list(utf8_ranges(first, last))
    n = sum(int(np.prod([s.last - s.first + 1 for s in way])) for way in ways)
    assert n == sum(1 for point in range(first, last + 1) if not 0xD800 <= point <= 0xDFFF)
    for point in {*range(first, min(last, first + 300)), last} - set(range(0xD800, 0xE000)):
        data = chr(point).encode()
        fits = [
            len(way) == len(data) and all(s.first <= byte <= s.last for s, byte in zip(way, data))
            for way in ways
        ]
        assert sum(fits) == 1


@pytest.mark.parametrize(
    ("gbnf", "named"),
    [
        ('start ::= "a"', "expected a rule root"),
        ("root ::= b", "expected a rule b"),
        ('root ::= "a" )', "line 1, column 14"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ("root ::= *", "before a repetition"),
        ('root ::= "a"{3,2}', "bounds"),
        ("root ::= [b-a]", "ascending"),
        (r'root ::= "\ud800"', "surrogate"),
        ("root ::= []", "no text matches"),
        ("root ::= <[99]>", "names token 99"),
        ("root ::= " + "(" * 70, "groups"),
    ],
)
def test_what_is_no_grammar_is_named(gbnf: str, named: str) -> None:
    with pytest.raises(GrammarError, match=named):
        Recogniser(Reader(gbnf, lambda text: []).productions, [b"a"] * 30, set())


# --- receipts ---------------------------------------------------------------------------------------------

RULES = 'root ::= [A-Z] [a-z]+ (" " [a-z]+){1,30} "."'


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": RULES},
        {"grammar": RULES, "temperature": 0.0},
        {"grammar": RULES, "logit_bias": {300: -1.0}, "mirostat": 2},
        {"choices": ["once more", "once again", "never"]},
    ],
)
def test_a_receipt_is_verified(engine: InferenceEngine, options: dict[str, Any]) -> None:
    found = checked(receipt_of(engine, **options))
    assert found.verified, found.message


def test_a_schema_is_verified_with_its_rules(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, json_schema=SCHEMA)
    rules = RULES_OF_SCHEMA
    found = checked(receipt, rules=rules)
    assert found.verified, found.message
    assert found.message.endswith("with the rules that were given for the constraint")
    with pytest.raises(Unsupported, match="json_schema"):
        checked(receipt)
    assert checked(receipt, rules=RULES).cause == "token"
    with pytest.raises(GrammarError, match="expected a rule root"):
        checked(receipt, rules='a ::= "b"')


def test_a_token_outside_the_grammar_is_found(engine: InferenceEngine) -> None:
    """The text was sampled without a grammar; its logits are true."""
    receipt, free = receipt_of(engine, grammar=RULES), receipt_of(engine)
    assert receipt.tokens != free.tokens
    forged = replace(free, sampler=receipt.sampler, grammar=receipt.grammar)
    at = next(i for i, (a, b) in enumerate(zip(receipt.tokens, free.tokens)) if a != b)
    found = checked(forged)
    assert (found.cause, found.at) == ("token", at)
    assert checked(replace(receipt, sampler=free.sampler, grammar=None)).cause == "token"


def test_a_grammar_that_was_changed_is_found(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, grammar=RULES)
    for changed in (
        replace(receipt, sampler={**receipt.sampler, "grammar": 'root ::= "a"'}),
        replace(receipt, grammar="0" * 64),
        replace(receipt, grammar=None),
        replace(receipt, sampler={**receipt.sampler, "grammar": None}),
    ):
        with pytest.raises(ReceiptError, match="grammar"):
            checked(changed)
    for stated in (receipt, receipt_of(engine)):
        with pytest.raises(ConfigError, match="rules"):
            checked(stated, rules=RULES)


def test_the_command_line(
    engine: InferenceEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rules = tmp_path / "receipt.json", tmp_path / "rules.gbnf"
    receipt_of(engine, json_schema=SCHEMA).save(path)
    rules.write_text(RULES_OF_SCHEMA)
    arguments = ["verify", str(path), "--model", str(demo.STORY)]
    assert cli.main([*arguments, "--reference", "--rules", str(rules)]) == 0
    assert "with the rules" in capsys.readouterr().out
    assert cli.main([*arguments, "--rules", str(rules)]) == 2
    assert "rules" in capsys.readouterr().err
