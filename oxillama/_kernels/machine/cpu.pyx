"""What this machine can run: CPU features, and whether the kernels were built with OpenMP."""


cdef extern from "cpu.h":
    int ox_cpu_has(const char* name)
    int ox_openmp_threads()
    int ox_ask_for_tiles()


def has(str feature not None) -> bool:
    """Whether the CPU and the system offer ``feature``, spelled as in targets.py."""
    return bool(ox_cpu_has(feature.encode()))


def openmp_threads() -> int:
    """Processors that OpenMP sees, or 0 in a serial build."""
    return ox_openmp_threads()


def ask_for_tiles() -> int:
    """Asks the system for the tile registers of AMX, which a process may use only then: 0, or the error's number."""
    return ox_ask_for_tiles()
