"""The logical machine of 16 lanes for which kernels are written, and functions of its vectors."""
