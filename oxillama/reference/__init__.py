"""A second implementation of the contract, in NumPy only and without kernels.

It is slow and plain: each function implements one operation of docs/specification.md, bit for bit. It never
imports `oxillama._kernels`, so that the kernels and this package check each other.
"""

from oxillama.base.contract import CONTRACT as CONTRACT
