"""Matrices packed for the kernels, and the formats that a quantized file gives each tensor."""
