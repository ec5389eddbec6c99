"""Automata to programs, as other kernels see it."""

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.network cimport Program

cdef Program program_of(Automata automata, list starts)
