"""The processors of the kernels' threads, how to keep two threads from sharing one, and the NUMA nodes of memory.

In virtual machines Linux may wake a thread on the processor of the thread that wakes it, though another processor is
idle, and leave it there. Both threads then take turns, and a kernel on two threads takes ten times as long as on one.
"""

cimport numpy as cnp
from libc.stdlib cimport free, malloc

from oxillama._kernels.arrays cimport check_threads, i32_data, u8_out

cnp.import_array()


cdef extern from "team.h":
    void ox_team(int n, int* cpus) nogil
    int ox_spread(int n, int* cpus) nogil
    enum:
        OX_NODE_BITS
    int ox_place(char* memory, size_t n_bytes, const int* nodes, int n_nodes) nogil


def processors(int n_threads) -> list[int]:
    """The processor of each of ``n_threads`` threads, the caller's first; -1 where the system does not tell."""
    check_threads(n_threads)
    cdef int* cpus = <int*>malloc(n_threads * sizeof(int))
    if cpus == NULL:
        raise MemoryError
    try:
        with nogil:
            ox_team(n_threads, cpus)
        return [cpus[i] for i in range(n_threads)]
    finally:
        free(cpus)


def spread(int n_threads) -> int:
    """Moves threads that share a processor to free ones of the process; returns how many were moved.

    The threads are not bound: their affinity masks are restored. Returns 0 on other systems than Linux and in
    serial builds.
    """
    check_threads(n_threads)
    cdef int moved
    cdef int* cpus = <int*>malloc(2 * n_threads * sizeof(int))
    if cpus == NULL:
        raise MemoryError
    with nogil:
        moved = ox_spread(n_threads, cpus)
    free(cpus)
    return moved


def place(cnp.ndarray memory, cnp.ndarray nodes) -> int:
    """Asks the system for the whole memory pages inside an array to lie in a NUMA node, as far as it has room, or in
    several nodes in turn. Pages that were touched before are moved.

    Args:
        memory: uint8, of any size.
        nodes: int32 (nodes,), the system's numbers of the nodes, at least one.

    Returns:
        0, or the number of the system's error: EPERM in many containers, ENOSYS on other systems than Linux.

    Raises:
        ValueError: a number below 0 or above 1023, or no number.
    """
    cdef char* data = <char*>u8_out(memory, 0, "memory")
    cdef const int* numbers = i32_data(nodes, 1, "nodes")
    cdef Py_ssize_t n_bytes = cnp.PyArray_SIZE(memory), n = cnp.PyArray_SIZE(nodes), i
    cdef int error
    if n > OX_NODE_BITS:
        raise ValueError(f"nodes: expected at most {OX_NODE_BITS}, got {n}")
    for i in range(n):
        if not 0 <= numbers[i] < OX_NODE_BITS:
            raise ValueError(f"nodes: expected numbers from 0 to {OX_NODE_BITS - 1}, got {numbers[i]}")
    with nogil:
        error = ox_place(data, n_bytes, numbers, n)
    return error
