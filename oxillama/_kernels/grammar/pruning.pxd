"""Which states texts can pass through, as other kernels see it."""

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.network cimport Program

cdef Program pruned(Automata automata, list starts, list gates, bint accepts_empty)
