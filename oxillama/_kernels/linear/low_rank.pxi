# What adapters add to the products of a `Linear`. Included by linear.pyx.

from libc.string cimport memcpy

from oxillama._kernels.arrays cimport f64_data


cdef class LowRank:
    """The product that an adapter adds to one `Linear`'s: y[rows of part i] += B_i (f (A x)[columns of part i]).

    Args:
        a: the matrices A of all parts, stacked by rows: (ranks, cols).
        parts: sequence of (B, column, row): a `Linear` (rows of the part, its rank), where its columns begin among
            the ranks, and where its rows begin in y.
        factors: float64 (ranks,), f without the scale that the call adds.

    Raises:
        ValueError: A part reaches beyond the ranks, its columns are no multiple of its block, or a `Linear` was made
            without panels.
    """

    cdef readonly Py_ssize_t cols, ranks, rows
    cdef Linear a
    cdef tuple parts
    cdef Py_ssize_t columns[MAX_PARTS]
    cdef Py_ssize_t first_rows[MAX_PARTS]
    cdef Py_ssize_t n_parts
    cdef const double* factors
    cdef object owner

    def __cinit__(self, Linear a not None, parts: Sequence[tuple[Linear, int, int]], cnp.ndarray factors):
        cdef Py_ssize_t column, row
        cdef Linear b
        held = []
        check_kept(a, "a")
        for b, column, row in parts:
            if b is None:
                raise TypeError("parts: expected objects of Linear, got None")
            if self.n_parts == MAX_PARTS:
                raise ValueError(f"parts: expected 1 to {MAX_PARTS}, got more")
            if column < 0 or column > a.rows - b.cols:
                raise ValueError(f"parts: expected columns 0 to {a.rows - b.cols}, got {column}")
            if row < 0 or row > PY_SSIZE_T_MAX // 8 - b.rows:
                raise ValueError(f"parts: expected a row >= 0, got {row}")
            check_kept(b, "parts")
            self.columns[self.n_parts], self.first_rows[self.n_parts] = column, row
            self.rows = max(self.rows, row + b.rows)
            self.n_parts += 1
            held.append(b)
        if not held:
            raise ValueError(f"parts: expected 1 to {MAX_PARTS}, got 0")
        self.parts, self.a = tuple(held), a
        self.cols, self.ranks = a.cols, a.rows
        self.factors = f64_data(factors, a.rows, "factors")
        self.owner = factors

    def scratch_bytes(self, Py_ssize_t n) -> int:
        """Bytes of scratch that ``n`` tokens need, in one group or in many."""
        if not fits(n, self.token_bytes(), PY_SSIZE_T_MAX - 192):
            raise ValueError(f"n: expected an integer >= 0 whose scratch fits the memory, got {n}")
        return n * self.token_bytes() + 192

    cdef Py_ssize_t token_bytes(self):
        """Bytes of scratch for a token: A x, then the scratch of A, later used by the B of the parts."""
        cdef Py_ssize_t needed = 0
        cdef Linear b
        for b in self.parts:
            needed += b.token_bytes
        return 4 * self.ranks + max(needed, self.a.token_bytes)


cdef class LowRankPlan:
    """Assigns adapters to rows of a product, at most one adapter to each row.

    Args:
        factors: a `LowRank` for each group of neighbouring rows, all of the same ``cols``.
        scales: float64 (groups,), the scale s of each group's adapter.
        starts: int32 (groups,), the first row of each group; ascending, groups do not overlap.
        counts: int32 (groups,), rows of each group, at least 1.

    Raises:
        ValueError: Groups out of order, or factors of different ``cols``.
    """

    cdef readonly Py_ssize_t cols, rows, n_groups, end  # end: 1 after the last group's last row
    cdef readonly Py_ssize_t scratch_bytes
    cdef tuple factors
    cdef const double* scales
    cdef const int* starts
    cdef const int* counts
    cdef tuple owners

    def __cinit__(self, list factors not None: list[LowRank], cnp.ndarray scales, cnp.ndarray starts,
                  cnp.ndarray counts):
        cdef Py_ssize_t i
        cdef LowRank factor
        self.factors, self.n_groups = tuple(factors), len(factors)
        f64_data(scales, self.n_groups, "scales")
        i32_data(starts, self.n_groups, "starts")
        i32_data(counts, self.n_groups, "counts")
        if not cnp.PyArray_SIZE(scales) == cnp.PyArray_SIZE(starts) == cnp.PyArray_SIZE(counts) == self.n_groups:
            raise ValueError(f"scales, starts, counts: expected {self.n_groups} of each, as there are factors")
        self.owners = scales, starts, counts = scales.copy(), starts.copy(), counts.copy()
        self.scales = f64_data(scales, 0, "scales")
        self.starts = i32_data(starts, 0, "starts")
        self.counts = i32_data(counts, 0, "counts")
        if not self.factors:
            raise ValueError("factors: expected at least 1 group, got 0")
        for i in range(self.n_groups):
            if not isinstance(self.factors[i], LowRank):
                raise TypeError(f"factors: expected objects of LowRank, got {type(self.factors[i])}")
            factor = self.factors[i]
            if i == 0:
                self.cols = factor.cols
            if factor.cols != self.cols:
                raise ValueError(f"factors: expected {self.cols} columns, got {factor.cols}")
            if self.starts[i] < self.end or self.counts[i] < 1:
                raise ValueError(f"starts: expected groups in order, got {self.counts[i]} rows from {self.starts[i]}")
            self.end = <Py_ssize_t>self.starts[i] + self.counts[i]
            self.rows = max(self.rows, factor.rows)
            self.scratch_bytes += factor.scratch_bytes(self.counts[i])


cdef Py_ssize_t plan_bytes(tuple plans) except -1:
    """Bytes of scratch of all plans."""
    cdef Py_ssize_t needed = 0
    if plans is None:
        raise TypeError("plans: expected a tuple, got None")
    for plan in plans:
        if not isinstance(plan, LowRankPlan):
            raise TypeError(f"plans: expected objects of LowRankPlan, got {type(plan)}")
        needed += (<LowRankPlan>plan).scratch_bytes
    return needed


cdef int multiply_adapted(Call* call, const Group* products, Py_ssize_t n_products, tuple plans, const float* x,
                          const int* rows, Py_ssize_t n, float* out, char* free, int n_threads) except -1:
    """Computes the products, then out[i] += B (s f A x[rows[i]]) for each group of each plan.

    All A x are computed in the same call as the products. A row has the same bits in every batch: sums run in the
    order of the columns, and plans are added in their order.
    """
    cdef Py_ssize_t width = products[0].stack.rows, cols = products[0].stack.cols
    cdef Py_ssize_t n_groups = 0, n_second = 0, i, j, k, g
    cdef LowRankPlan plan
    cdef LowRank factor
    cdef Linear b
    cdef Group* first
    cdef Group* second
    cdef float* h = <float*>((<uintptr_t>free + 63) & ~<uintptr_t>63)
    for plan in plans:
        if plan.cols != cols or plan.rows > width or plan.end > n:
            raise ValueError(f"plans: expected at most {n} rows, {cols} columns to {width}, "
                             f"got {plan.end} rows, {plan.cols} columns to {plan.rows}")
        n_groups += plan.n_groups
        n_second = max(n_second, plan.n_groups * MAX_PARTS)
    first = <Group*>malloc((n_groups + n_products + n_second) * sizeof(Group))
    if first == NULL:
        raise MemoryError()
    second = first + n_groups + n_products
    try:
        g = 0
        for plan in plans:
            for i in range(plan.n_groups):
                factor = plan.factors[i]
                first[g].stack, first[g].count = &factor.a.stack, plan.counts[i]
                first[g].rows = NULL if rows == NULL else rows + plan.starts[i]
                first[g].x, first[g].x_ld = x if rows != NULL else x + plan.starts[i] * cols, cols
                first[g].out, first[g].out_ld, first[g].accumulate = h, factor.ranks, False
                h += plan.counts[i] * factor.ranks
                g += 1
        memcpy(first + g, products, n_products * sizeof(Group))
        free = <char*>h
        with nogil:
            multiply(call, first, n_groups + n_products, free, n_threads)
        g = 0
        for plan in plans:
            n_second = 0
            for i in range(plan.n_groups):
                factor, h = plan.factors[i], first[g].out
                for j in range(plan.counts[i]):
                    for k in range(factor.ranks):
                        h[j * factor.ranks + k] *= <float>(plan.scales[i] * factor.factors[k])
                for j in range(factor.n_parts):
                    b = factor.parts[j]
                    second[n_second].stack, second[n_second].count = &b.stack, plan.counts[i]
                    second[n_second].x, second[n_second].x_ld = h + factor.columns[j], factor.ranks
                    second[n_second].rows, second[n_second].accumulate = NULL, True
                    second[n_second].out = out + plan.starts[i] * width + factor.first_rows[j]
                    second[n_second].out_ld = width
                    n_second += 1
                g += 1
            with nogil:
                multiply(call, second, n_second, free, n_threads, 100000)
    finally:
        free_memory(first)
    return 0
