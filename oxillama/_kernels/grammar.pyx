"""Which tokens a grammar allows, as bitmasks; and their application to logits."""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from oxillama._kernels.configurations cimport DEAD, Configurations
from oxillama._kernels.trie cimport Nodes, Trie
from arrays cimport f32_data

cnp.import_array()

cdef enum:
    FILL = 1024  # floats in the block that is copied over logits

cdef float[FILL] MINUS


cdef void prepare() noexcept:
    cdef int i
    for i in range(FILL):
        MINUS[i] = -INFINITY


prepare()


cdef class Matcher:
    """The tokens of a vocabulary that can follow in each configuration."""

    cdef readonly Trie trie
    cdef readonly Configurations configs
    cdef int32_t* path

    def __cinit__(self, Trie trie, Configurations configs):
        self.trie = trie
        self.configs = configs
        self.path = <int32_t*>malloc(4 * (trie.max_depth + 1))
        if not self.path:
            raise MemoryError()

    def __dealloc__(self):
        free(self.path)

    def advance(self, int32_t config, int32_t token):
        """The configuration after a token's bytes; 0 where they cannot follow."""
        cdef int32_t first
        if not 0 <= token < self.trie.n_vocab:
            raise IndexError(f"token {token}: the vocabulary has {self.trie.n_vocab}")
        self.configs.checked_config(config)
        if not self.trie.inside[token]:
            return DEAD
        first = self.trie.first[token]
        return self.configs.run(config, self.trie.data + first, self.trie.first[token + 1] - first)

    def fill(self, int32_t config, cnp.ndarray mask):
        """Set the bits of all tokens of the trie that can follow.

        Parameters
        ----------
        config : a configuration
        mask : uint32 (words,); bit t % 32 of word t / 32 is token t. Other bits are left alone.
        """
        self.configs.checked_config(config)
        self.walk(config, 0, <int32_t>self.trie.nodes.n, 0, mask_data(mask, self.trie.n_vocab))

    cdef int walk(self, int32_t config, int32_t i, int32_t end, int32_t depth, uint32_t* bits) except -1:
        """Set the tokens of the nodes i ... end - 1, which lie below ``depth`` bytes that led to ``config``."""
        cdef Configurations configs = self.configs
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t* path = self.path
        cdef int32_t to, token, d
        path[depth] = config
        while i < end:
            d = nodes.depth[i]
            to = configs.rows[<Py_ssize_t>path[d - 1] * configs.n_classes + configs.class_of[nodes.byte[i]]]
            if to < 0:
                to = configs.step(path[d - 1], configs.class_of[nodes.byte[i]])
            if to == DEAD:
                i = nodes.skip[i]
                continue
            path[d] = to
            token = nodes.token[i]
            while token >= 0:
                bits[token >> 5] |= <uint32_t>1 << (token & 31)
                token = self.trie.same[token]
            i += 1
        return 0


cdef uint32_t* mask_data(cnp.ndarray mask, Py_ssize_t n_vocab) except NULL:
    if cnp.PyArray_TYPE(mask) != cnp.NPY_UINT32 or not cnp.PyArray_IS_C_CONTIGUOUS(mask):
        raise TypeError(f"mask: needs a C-contiguous array of uint32, got {mask.dtype}")
    if 32 * cnp.PyArray_SIZE(mask) < n_vocab:
        raise ValueError(f"mask: needs {n_vocab} bits, has {32 * cnp.PyArray_SIZE(mask)}")
    return <uint32_t*>cnp.PyArray_DATA(mask)


def apply_mask(cnp.ndarray logits, cnp.ndarray mask):
    """Set the logits of all tokens whose bit is not set to -inf.

    Parameters
    ----------
    logits : float32 (vocab,)
    mask : uint32 (at least vocab / 32,)
    """
    cdef Py_ssize_t n = cnp.PyArray_SIZE(logits), words = n >> 5, i = 0, start, count
    cdef float* x = f32_data(logits, n, "logits")
    cdef const uint32_t* bits = mask_data(mask, n)
    cdef uint32_t word
    cdef int b
    with nogil:
        while i < words:
            word = bits[i]
            if word == 0:
                start = i
                while i < words and bits[i] == 0:
                    i += 1
                start *= 32
                while start < 32 * i:
                    count = min(32 * i - start, <Py_ssize_t>FILL)
                    memcpy(x + start, MINUS, 4 * count)
                    start += count
                continue
            if word != <uint32_t>0xFFFFFFFF:
                for b in range(32):
                    if not (word >> b) & 1:
                        x[32 * i + b] = -INFINITY
            i += 1
        for b in range(<int>(n & 31)):
            if not (bits[words] >> b) & 1:
                x[32 * words + b] = -INFINITY
