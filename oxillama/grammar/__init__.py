"""State: grammars, and the tokens they allow."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import best
from oxillama.grammar.gbnf import parse_gbnf
from oxillama.grammar.gbnf_printer import print_gbnf
from oxillama.grammar.grammar import Grammar
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.lark import parse_lark
from oxillama.grammar.state import GrammarState
from oxillama.grammar.structural_tags import structural_tag_rules
from oxillama.grammar.vocabulary import Vocabulary

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
    """Set the logits of the tokens that a mask does not allow to -inf, in place.

    Parameters
    ----------
    logits : float32 (n,)
    mask : uint32 (at least n / 32,)
        As `GrammarState.mask` gives it: bit t % 32 of word t // 32 is token t.
    """
    best().vector.apply_mask(logits, mask)
