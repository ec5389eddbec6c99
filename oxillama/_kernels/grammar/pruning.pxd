"""Which states texts can pass through, as other kernels see it."""

from oxillama._kernels.grammar.automata cimport Automata

cdef dict pruned(Automata automata, list starts, list gates, bint accepts_empty)
