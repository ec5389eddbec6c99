"""Declarations of pruning.pyx: from automata to programs."""

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.network cimport Program

cdef Program program_of(Automata automata, list starts)
