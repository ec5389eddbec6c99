"""Grammars, and bitmasks of the tokens that a grammar allows."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import best
from oxillama.text.grammar.gbnf import parse_gbnf
from oxillama.text.grammar.gbnf_printer import print_gbnf
from oxillama.text.grammar.grammar import Grammar
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.lark import parse_lark
from oxillama.text.grammar.state import GrammarState
from oxillama.text.grammar.structural_tags import structural_tag_rules
from oxillama.text.grammar.vocabulary import Vocabulary

__all__ = [
    "Grammar",
    "GrammarState",
    "JsonSchemaCompiler",
    "Vocabulary",
    "apply_grammar_mask",
    "parse_gbnf",
    "parse_lark",
    "print_gbnf",
    "structural_tag_rules",
]


def apply_grammar_mask(logits: np.ndarray, mask: np.ndarray) -> None:
    """Set the logits of the tokens that a mask excludes to -inf, in place.

    Args:
        logits: float32 (n,)
        mask: uint32 (at least n / 32,): a bitmask as `GrammarState.mask` returns: bit t % 32 of word t // 32
            is set if token t is allowed.
    """
    best().vector.apply_mask(logits, mask)
