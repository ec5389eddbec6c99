"""What this machine can run: CPU features, and whether the kernels were built with OpenMP."""


cdef extern from "cpu.h":
    int ox_cpu_has(const char* name)
    int ox_openmp_threads()


def has(str feature not None):
    """Whether the CPU and the system offer ``feature``, spelled as in targets.py."""
    return bool(ox_cpu_has(feature.encode()))


def openmp_threads():
    """Processors OpenMP sees, or 0 for a serial build."""
    return ox_openmp_threads()
