"""Constrained output: grammars, and the tokens they allow."""
