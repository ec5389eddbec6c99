"""Checks of a kernel's arguments: NumPy arrays come in, raw pointers go on.

A kernel takes plain arrays and checks each once; all code below works on pointers without the GIL. Every wrong
argument must raise an exception and never reach foreign memory: None, a wrong type or number of dimensions, strides,
foreign byte order, too few elements, read-only memory.
"""

cimport numpy as cnp

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MAX_THREADS = 1024  # OpenMP ends the process when the system refuses to start a thread


cdef inline int refuse_data(cnp.ndarray a, int type_num, Py_ssize_t n, str name) except -1:
    """Raises what `checked` says. A function of its own, like each that raises here: a check is inlined, and short."""
    if a is None:
        raise TypeError(f"{name}: expected an array, got None")
    if cnp.PyArray_TYPE(a) != type_num or not cnp.PyArray_ISCARRAY_RO(a):
        raise TypeError(f"{name}: expected a C-contiguous, aligned array of "
                        f"{cnp.PyArray_DescrFromType(type_num)}, got {a.dtype} of strides {(<object>a).strides}")
    if cnp.PyArray_SIZE(a) < n:
        raise ValueError(f"{name}: expected at least {n} elements, got {cnp.PyArray_SIZE(a)}")
    raise ValueError(f"{name}: expected an array that can be written, got one that is read-only")


cdef inline void* checked(cnp.ndarray a, int type_num, Py_ssize_t n, str name, bint written=False) except? NULL:
    """The data of ``a``, checked: dtype, C-contiguous, aligned, at least ``n`` elements, writeable if ``written``."""
    if (a is None or cnp.PyArray_TYPE(a) != type_num or not cnp.PyArray_ISCARRAY_RO(a) or cnp.PyArray_SIZE(a) < n
            or written and not cnp.PyArray_ISWRITEABLE(a)):
        refuse_data(a, type_num, n, name)
    return cnp.PyArray_DATA(a)


cdef inline float* f32_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <float*>checked(a, cnp.NPY_FLOAT32, n, name)


cdef inline float* f32_out(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <float*>checked(a, cnp.NPY_FLOAT32, n, name, True)


cdef inline double* f64_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <double*>checked(a, cnp.NPY_FLOAT64, n, name)


cdef inline unsigned char* u8_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <unsigned char*>checked(a, cnp.NPY_UINT8, n, name)


cdef inline unsigned char* u8_out(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <unsigned char*>checked(a, cnp.NPY_UINT8, n, name, True)


cdef inline int* i32_data(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <int*>checked(a, cnp.NPY_INT32, n, name)


cdef inline int* i32_out(cnp.ndarray a, Py_ssize_t n, str name) except? NULL:
    return <int*>checked(a, cnp.NPY_INT32, n, name, True)


cdef inline int refuse_dimensions(cnp.ndarray a, int n, str name) except -1:
    if a is None:
        raise TypeError(f"{name}: expected an array, got None")
    raise ValueError(f"{name}: expected {n} dimensions, got {a.ndim}")


cdef inline int check_dimensions(cnp.ndarray a, int n, str name) except -1:
    """Raises unless ``a`` has n dimensions: to be called before ``a.shape`` is read."""
    if a is None or a.ndim != n:
        refuse_dimensions(a, n, name)
    return 0


cdef inline Py_ssize_t rows_of(cnp.ndarray a, str name) except -1:
    """Rows of a matrix, or 0 if rows are empty: a matrix can have 2^60 empty rows, and loops over them must end."""
    check_dimensions(a, 2, name)
    return a.shape[0] if a.shape[1] else 0


cdef inline int refuse_shape(cnp.ndarray a, Py_ssize_t rows, Py_ssize_t cols, str name) except -1:
    raise ValueError(f"{name}: expected at least {rows} rows of {cols}, got {a.shape[0]} of {a.shape[1]}")


cdef inline int check_shape(cnp.ndarray a, Py_ssize_t rows, Py_ssize_t cols, str name) except -1:
    """Raises unless the matrix has at least ``rows`` rows of exactly ``cols`` columns."""
    check_dimensions(a, 2, name)
    if a.shape[0] < rows or a.shape[1] != cols:
        refuse_shape(a, rows, cols, name)
    return 0


cdef inline float* f32_rows(cnp.ndarray a, Py_ssize_t rows, Py_ssize_t cols, str name) except? NULL:
    check_shape(a, rows, cols, name)
    return f32_data(a, 0, name)


cdef inline float* f32_rows_out(cnp.ndarray a, Py_ssize_t rows, Py_ssize_t cols, str name) except? NULL:
    check_shape(a, rows, cols, name)
    return f32_out(a, 0, name)


cdef inline int refuse_overlap(str names) except -1:
    raise ValueError(f"{names}: expected arrays apart in memory, got arrays that overlap")


cdef inline int check_apart(cnp.ndarray a, cnp.ndarray b, str names) except -1:
    """Raises ValueError if two contiguous arrays share memory."""
    cdef const char* p = <const char*>cnp.PyArray_DATA(a)
    cdef const char* q = <const char*>cnp.PyArray_DATA(b)
    if p < q + cnp.PyArray_NBYTES(b) and q < p + cnp.PyArray_NBYTES(a):
        refuse_overlap(names)
    return 0


cdef inline int check_same_or_apart(cnp.ndarray a, cnp.ndarray b, str names) except -1:
    """Raises ValueError if two contiguous arrays share memory, unless both begin at the same address."""
    if cnp.PyArray_DATA(a) != cnp.PyArray_DATA(b):
        check_apart(a, b, names)
    return 0


cdef inline int refuse_threads(int n_threads) except -1:
    raise ValueError(f"n_threads: expected an integer from 1 to {MAX_THREADS}, got {n_threads}")


cdef inline int check_threads(int n_threads) except -1:
    if not 1 <= n_threads <= MAX_THREADS:
        refuse_threads(n_threads)
    return 0


cdef inline bint fits(Py_ssize_t count, Py_ssize_t size, Py_ssize_t room) noexcept nogil:
    """Whether count * size <= room, for numbers >= 0 and without overflow."""
    return count >= 0 and size >= 0 and room >= 0 and (size == 0 or count <= room // size)
