"""Addresses of the pages, for the kernels of every target."""

cimport numpy as cnp


cdef class PageTable:
    cdef readonly Py_ssize_t page_bytes
    cdef cnp.ndarray addresses  # uintp by page number, 0: no memory; replaced when the table changes
    cdef dict owners            # the memory arrays by their first page number; replaced as well
