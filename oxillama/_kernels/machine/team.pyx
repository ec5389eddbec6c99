"""The processors of the kernels' threads, and how to keep two threads from sharing one.

In virtual machines Linux may wake a thread on the processor of the thread that wakes it, though another processor is
idle, and leave it there. Both threads then take turns, and a kernel on two threads takes ten times as long as on one.
"""

from libc.stdlib cimport free, malloc

from oxillama._kernels.arrays cimport check_threads


cdef extern from "team.h":
    void ox_team(int n, int* cpus) nogil
    int ox_spread(int n, int* cpus) nogil


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
