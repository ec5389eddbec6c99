"""Work: the contract a second time, in NumPy alone and without a kernel.

Slow and plain: each function states one operation of docs/specification.md and gives its bits. Nothing here
imports `oxillama._kernels`, so that the kernels and this room check each other.
"""

from oxillama.contract import CONTRACT as CONTRACT
