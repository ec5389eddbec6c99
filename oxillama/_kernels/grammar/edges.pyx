"""Lists of edges, sorted by what they lead from, lead to or call."""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc

from oxillama._kernels.grammar.memory cimport grown


cdef int add_edge(List* edges, Edge edge) except -1:
    if edges.n == edges.room:
        edges.items = <Edge*>grown(edges.items, max(64, 2 * <Py_ssize_t>edges.room) * sizeof(Edge))
        edges.room = max(64, 2 * edges.room)
    edges.items[edges.n] = edge
    edges.n += 1
    return 0


cdef void free_edges(List* edges) noexcept:
    free(edges.items)
    free(edges.first)


cdef int sort_edges(List* edges, int32_t n) except -1:
    """Sort edges by their sources, of which there are ``n``; equal ones stay in order."""
    cdef Edge* sorted_items = <Edge*>malloc(sizeof(Edge) * (edges.n + 1))
    cdef int32_t i, k, count = 0, total = 0
    if not sorted_items:
        raise MemoryError()
    free(edges.first)
    edges.first = <int32_t*>calloc(n + 2, 4)
    if not edges.first:
        free(sorted_items)
        raise MemoryError()
    for i in range(edges.n):
        edges.first[edges.items[i].source] += 1
    for k in range(n + 1):
        count = edges.first[k]
        edges.first[k] = total
        total += count
    for i in range(edges.n):
        k = edges.items[i].source
        sorted_items[edges.first[k]] = edges.items[i]
        edges.first[k] += 1
    for k in range(n, 0, -1):
        edges.first[k] = edges.first[k - 1]
    edges.first[0] = 0
    free(edges.items)
    edges.items, edges.room = sorted_items, edges.n
    return 0
