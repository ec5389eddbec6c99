"""JSON texts by their values."""

cdef bytes canonical(bytes text)
