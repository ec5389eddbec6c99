"""The logical machine of 16 lanes that kernels are written for, and functions of its vectors."""
