"""Masks with the same tokens as one: most grammars over a vocabulary have many masks in common."""

cimport numpy as cnp
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from oxillama._kernels.arrays cimport checked
from oxillama._kernels.grammar.memory cimport mixed

from weakref import ref

cnp.import_array()

cdef enum:
    FEWEST = 256  # masks that are kept before those that nobody holds are looked for


cdef class MaskPool:
    """Masks of one length, each as long as somebody holds it.

    Parameters
    ----------
    n_words : length of a mask
    """

    cdef Py_ssize_t n_words, most
    cdef dict known  # weak references by hash

    def __cinit__(self, Py_ssize_t n_words):
        if n_words < 1:
            raise ValueError(f"n_words: expected an integer >= 1, got {n_words}")
        self.n_words, self.most, self.known = n_words, FEWEST, {}

    def shared(self, cnp.ndarray mask not None):
        """The mask of the same tokens that came first, of those that somebody holds; this one if there is none.

        Parameters
        ----------
        mask : uint32 (n_words,); it must not be changed any more
        """
        cdef const uint32_t* words = <const uint32_t*>checked(mask, cnp.NPY_UINT32, self.n_words, "mask", False)
        cdef object number = hash_of(words, self.n_words), reference = self.known.get(number)
        cdef object found = reference() if reference is not None else None
        if cnp.PyArray_SIZE(mask) != self.n_words:
            raise ValueError(f"mask: expected {self.n_words} words, got {cnp.PyArray_SIZE(mask)}")
        if found is not None and memcmp(cnp.PyArray_DATA(<cnp.ndarray>found), words, 4 * self.n_words) == 0:
            return found
        if len(self.known) >= self.most:
            self.known = {key: value for key, value in self.known.items() if value() is not None}
            self.most = max(FEWEST, 2 * len(self.known))
        self.known[number] = ref(mask)
        return mask


cdef uint64_t hash_of(const uint32_t* words, Py_ssize_t n) noexcept nogil:
    cdef uint64_t[8] lanes  # independent of each other, so that their multiplications overlap
    cdef uint64_t pair
    cdef Py_ssize_t i
    cdef int k
    for k in range(8):
        lanes[k] = k
    for i in range(0, n - n % 16, 16):
        for k in range(8):
            memcpy(&pair, words + i + 2 * k, 8)
            pair ^= lanes[k]
            lanes[k] = (pair << 29 | pair >> 35) * <uint64_t>0x9E3779B97F4A7C15
    for i in range(n - n % 16, n):
        lanes[0] = mixed(lanes[0] ^ words[i])
    for k in range(7):
        lanes[k + 1] = mixed(lanes[k + 1] ^ mixed(lanes[k]))
    return lanes[7]
