"""Where pages lie, as the kernels of a target see it."""

cimport numpy as cnp


cdef class PageTable:
    cdef readonly Py_ssize_t page_bytes
    cdef cnp.ndarray addresses  # uintp, by page number, 0 for none; replaced when it changes
    cdef dict owners            # of the memory, by the number of its first page; replaced, too
