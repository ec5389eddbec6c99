"""Checks at the kernels' door: NumPy arrays in, raw pointers below.

A kernel takes plain arrays and checks each once (type, C order, size); everything under it works
on pointers without the GIL.
"""

cimport numpy as cnp


cdef inline void* checked(cnp.ndarray a, int type_num, Py_ssize_t n, str name) except? NULL:
    """The data of ``a``, which must be C-contiguous, of that dtype, and hold at least ``n`` elements."""
    if cnp.PyArray_TYPE(a) != type_num or not cnp.PyArray_IS_C_CONTIGUOUS(a):
        raise TypeError(f"{name}: expected a C-contiguous array of dtype number {type_num}, got {a.dtype}")
    if cnp.PyArray_SIZE(a) < n:
        raise ValueError(f"{name}: expected at least {n} elements, got {cnp.PyArray_SIZE(a)}")
    return cnp.PyArray_DATA(a)


cdef inline float* f32_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <float*>checked(a, cnp.NPY_FLOAT32, n, name)


cdef inline unsigned char* u8_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <unsigned char*>checked(a, cnp.NPY_UINT8, n, name)


cdef inline int* i32_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <int*>checked(a, cnp.NPY_INT32, n, name)
