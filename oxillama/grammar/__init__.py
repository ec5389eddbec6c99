"""Constrained output: grammars, and the tokens they allow."""

from __future__ import annotations

from oxillama._kernels.grammar import apply_mask as apply_grammar_mask
from oxillama.grammar.gbnf import parse_gbnf, print_gbnf
from oxillama.grammar.grammar import Grammar
from oxillama.grammar.state import GrammarState
from oxillama.grammar.vocabulary import Vocabulary

__all__ = ["Grammar", "GrammarState", "Vocabulary", "apply_grammar_mask", "parse_gbnf", "print_gbnf"]
