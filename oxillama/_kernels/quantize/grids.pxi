# IQ1, IQ2 and IQ3: groups of 4 or 8 values are entries of a grid, small blocks have scales of 3 or 4 bits.
#
# A scale s determines the entry of every group: rounding each x / s to its nearest level gives a point, and of the
# entries around this point (neighbours.py) the one with the least weighted error is taken; each lane tries one entry.
# The entries determine the best scale by least squares. So each small block tries a range of scales; the superblock's
# half float is set so that the largest scale fits its field; then each integer scale moves to the best of its
# neighbours, and the half float is computed by least squares.
# Least squares shrinks values that are approximated badly, and thereby the output of the matrix. So the half float that
# is written is a little larger: the one for which sum w x (approximation) = sum w x^2.
# Grid entries, and an eighth sign that follows from seven, are as in llama.cpp's IQ quants
# (ggml-quants.c, https://github.com/ggml-org/ggml); the search is our own.

cdef enum:
    KEPT = 16  # entries around a point, see neighbours.py
    GRID_TRIES = 9
    GRID_ROUNDS = 2
    GRID_TURNS = 2

cdef extern from *:
    """
    #define OX_GRID_FIRST 0.65f
    #define OX_GRID_STEP 0.075f
    static const short OX_LEVEL_BOUNDS[5][7] = {
        {66, 136}, {32, 64, 96, 128, 160, 196, 228}, {8, 16, 24, 32, 40, 48, 56}, {-12, 20}, {-20, 12}};
    """
    const float GRID_FIRST "OX_GRID_FIRST"  # the first scale tried; 1 maps the largest value to the top
    const float GRID_STEP "OX_GRID_STEP"
    const int16_t BOUNDS "OX_LEVEL_BOUNDS"[5][7]  # 4 * the midpoints between neighbouring levels

# Tables of neighbours.py for a format.
cdef struct Grid:
    const int8_t* values
    const uint16_t* entries
    const uint8_t* exact
    uint16_t places[256]  # mask of values above a bound -> sum of their powers of 3 or 8; a point sums over bounds

# A superblock: magnitudes (for IQ1 signed values), weights, and the results of the groups.
cdef struct Super:
    float x[256]
    float w[256]
    uint8_t signs[32]
    int8_t v[256]
    uint16_t entry[64]
    uint8_t shift[64]
    int scale[16]


cdef inline bint is_iq1(const int format_id) noexcept nogil:
    return format_id == IQ1_S or format_id == IQ1_M


cdef inline bint is_iq3(const int format_id) noexcept nogil:
    return format_id == IQ3_S or format_id == IQ3_XXS


cdef inline bint is_grid(const int format_id) noexcept nogil:
    return (is_iq1(format_id) or is_iq3(format_id) or format_id == IQ2_S or format_id == IQ2_XS
            or format_id == IQ2_XXS)


cdef inline int group_len(const int format_id) noexcept nogil:
    return 4 if is_iq3(format_id) else 8


cdef inline int grid_sub_len(const int format_id) noexcept nogil:
    return 16 if format_id == IQ1_M or format_id == IQ2_S or format_id == IQ2_XS else 32


cdef inline bint has_even_signs(const int format_id) noexcept nogil:
    return format_id == IQ2_XXS or format_id == IQ2_XS or format_id == IQ3_XXS


cdef inline int top_level(const int format_id) noexcept nogil:
    if is_iq1(format_id):
        return 8
    return 15 if format_id == IQ3_S else 62 if format_id == IQ3_XXS else 43


cdef inline float grid_unit(const int format_id) noexcept nogil:
    return 1 if format_id == IQ3_S else 0.25 if format_id == IQ3_XXS else 0.125


cdef inline int top_integer(const int format_id) noexcept nogil:
    """The largest integer i of a scale field, which means the scale 2 i + 1."""
    return 7 if is_iq1(format_id) else 15


cdef inline int bounds_of(const int format_id, int shift) noexcept nogil:
    if is_iq1(format_id):
        return 3 + shift
    return 2 if format_id == IQ3_S else 1 if format_id == IQ3_XXS else 0


cdef inline float closest(const int format_id, const Grid* g, const float* a, const float* w, int shift, int point,
                          int* lane) noexcept nogil:
    """Finds the entry around a point with the least weighted error, and writes its index to ``lane``. Returns the sum
    of v (w v - a) with a = 2 w x / s: the error, but for a factor and a term that all entries share."""
    cdef const int8_t* values = g.values + ((shift * (4096 if is_iq3(format_id) else 6561) + point)
                                            * group_len(format_id) * KEPT)
    cdef f32x16 sums = f32_zero(), v
    cdef float least
    cdef int i
    for i in range(group_len(format_id)):
        v = f32_load_i8(values + KEPT * i)
        sums = f32_add(sums, f32_mul(v, f32_sub(f32_mul(f32_set1(w[i]), v), f32_set1(a[i]))))
    least = -f32_hmax(f32_sub(f32_zero(), sums))
    lane[0] = lowest_bit((~f32_mask_lt(f32_set1(least), sums) & 0xFFFF) | 0x10000) & 15
    return least


cdef inline void choose_entries(const int format_id, const Grid* g, const float* x, const float* w, float s,
                                int8_t* v, uint16_t* entry, uint8_t* shifts) noexcept nogil:
    """Chooses the entries of a small block for a scale s, and their values v in the order of the columns."""
    cdef int n = grid_sub_len(format_id), len = group_len(format_id), n_bounds = 7 if is_iq3(format_id) else 2
    cdef int n_shifts = 2 if is_iq1(format_id) else 1, shift, i, k, at, point, place, lane, taken
    cdef float a[32]
    cdef float errors[2][4]
    cdef int points[2][8]
    cdef int lanes[2][8]
    cdef int above[2][7]
    cdef float inv = <float>1.0 / s if s > <float>1e-30 else 0
    cdef f32x16 t, twice = f32_set1(2.0 * inv), four = f32_set1(4.0 * inv)
    for shift in range(n_shifts):
        for at in range(n // 16):
            t = f32_mul(f32_load(x + 16 * at), four)
            if shift == 0:
                f32_store(a + 16 * at, f32_mul(f32_mul(f32_load(w + 16 * at), f32_load(x + 16 * at)), twice))
            for k in range(n_bounds):
                above[at][k] = f32_mask_lt(f32_set1(<float>BOUNDS[bounds_of(format_id, shift)][k]), t)
        for i in range(n // len):
            at, place, point = i * len // 16, i * len % 16, 0
            for k in range(n_bounds):
                point += g.places[(above[at][k] >> place) & ((1 << len) - 1)]
            points[shift][i] = point
            if is_iq1(format_id):
                errors[shift][i] = closest(format_id, g, a + len * i, w + len * i, shift, point, &lane)
            elif g.exact[point]:
                lane = 0
            else:
                closest(format_id, g, a + len * i, w + len * i, 0, point, &lane)
            lanes[shift][i] = lane
    taken = 0
    if format_id == IQ1_S and errors[1][0] + errors[1][1] + errors[1][2] + errors[1][3] < (
            errors[0][0] + errors[0][1] + errors[0][2] + errors[0][3]):
        taken = 1
    for i in range(n // len):
        if format_id == IQ1_M:
            taken = 1 if errors[1][i] < errors[0][i] else 0
        shifts[i] = <uint8_t>taken
        point, lane = points[taken][i], lanes[taken][i]
        entry[i] = g.entries[KEPT * point + lane]
        at = ((taken * (4096 if is_iq3(format_id) else 6561) + point) * len) * KEPT + lane
        for k in range(len):
            v[len * i + k] = g.values[at + KEPT * k]


cdef inline void sums_over(const float* x, const float* w, const int8_t* v, int n, float* xq, float* qq) noexcept nogil:
    """xq = sum of w x v, qq = sum of w v^2."""
    cdef f32x16 a = f32_zero(), b = f32_zero(), u, wu
    cdef int at
    for at in range(0, n, 16):
        u = f32_load_i8(v + at)
        wu = f32_mul(f32_load(w + at), u)
        a = f32_add(a, f32_mul(wu, f32_load(x + at)))
        b = f32_add(b, f32_mul(wu, u))
    xq[0], qq[0] = f32_sum(a), f32_sum(b)


cdef inline float fit_grid(const int format_id, const Grid* g, const float* x, const float* w) noexcept nogil:
    """The best of the scales tried for a small block; 0 for a block of zeros."""
    cdef int n = grid_sub_len(format_id), t, at
    cdef f32x16 largest = f32_zero()
    cdef int8_t v[32]
    cdef uint16_t entry[8]
    cdef uint8_t shifts[8]
    cdef float top, s, xq, qq, gain = 0, found = 0
    for at in range(0, n, 16):
        largest = f32_max(largest, f32_abs(f32_load(x + at)))
    top = f32_hmax(largest) / <float>top_level(format_id)
    for t in range(GRID_TRIES + GRID_ROUNDS):
        s = top * (GRID_FIRST + GRID_STEP * <float>t) if t < GRID_TRIES else found
        choose_entries(format_id, g, x, w, s, v, entry, shifts)
        sums_over(x, w, v, n, &xq, &qq)
        if xq > 0 and xq * (xq / qq) > gain:
            gain, found = xq * (xq / qq), xq / qq
    return found


cdef inline double place_super(const int format_id, const Grid* g, Super* a, const float* scales, float d,
                               double* solved, double* unbiased) noexcept nogil:
    """Chooses the integers and entries of a superblock for a half float d; returns their error but for a constant. For
    these integers and entries ``solved`` is the d of the least error, and ``unbiased`` is the d for which
    sum w x (approximation) = sum w x^2."""
    cdef int n = grid_sub_len(format_id), per = n // group_len(format_id)
    cdef int sub, i, best, near, top = top_integer(format_id)
    cdef int8_t v[32]
    cdef uint16_t entry[8]
    cdef uint8_t shifts[8]
    cdef float unit = d * grid_unit(format_id), inv = <float>1.0 / unit if unit > <float>1e-30 else 0, s, xq, qq
    cdef float least
    cdef double error = 0, up = 0, down = 0, squares = 0
    for sub in range(256 // n):
        near = <int>(scales[sub] * inv * <float>0.5) if scales[sub] * inv < <float>(2 * top) else top
        best, least = -1, 0
        for i in range(near - 1, near + 2):
            if i < 0 or i > top:
                continue
            s = unit * <float>(2 * i + 1)
            choose_entries(format_id, g, a.x + n * sub, a.w + n * sub, s, v, entry, shifts)
            sums_over(a.x + n * sub, a.w + n * sub, v, n, &xq, &qq)
            if best < 0 or s * (s * qq - 2 * xq) < least:
                best, least = i, s * (s * qq - 2 * xq)
                memcpy(a.v + n * sub, v, n)
                memcpy(a.entry + per * sub, entry, 2 * per)
                memcpy(a.shift + per * sub, shifts, per)
                a.scale[sub] = i
        sums_over(a.x + n * sub, a.w + n * sub, a.v + n * sub, n, &xq, &qq)
        error += least
        up += <double>(2 * best + 1) * xq
        down += <double>((2 * best + 1) * (2 * best + 1)) * qq
    solved[0] = up / (down * grid_unit(format_id)) if down > 0 else 0
    for i in range(256):
        squares += <double>a.w[i] * a.x[i] * a.x[i]
    unbiased[0] = squares / (up * grid_unit(format_id)) if up > 0 else 0
    return error


cdef inline void take_super(const int format_id, const float* x, const float* importance, Super* a) noexcept nogil:
    """Sets magnitudes, weights and signs. The weight of a value grows with its size, as in llama.cpp's search, but less
    in IQ1_S and IQ2_XXS (docs/decisions/0009). Where the number of negatives among 8 values must be even, the value
    with the cheapest sign is flipped: its magnitude counts as negative, so that the lowest level is the nearest."""
    cdef int i, k, least
    cdef float cost, spread = 0
    memcpy(a.x, x, sizeof(a.x))
    for i in range(256):
        spread += x[i] * x[i]
    spread = spread / <float>128.0 * (5 if format_id == IQ1_S or format_id == IQ2_XXS else 1)
    for i in range(256):
        a.w[i] = (importance[i] if importance != NULL else 1) * sqrtf(spread + x[i] * x[i])
    if is_iq1(format_id):
        return
    for k in range(32):
        a.signs[k], least, cost = 0, 8 * k, FLT_MAX
        for i in range(8 * k, 8 * k + 8):
            if a.x[i] < 0:
                a.x[i] = -a.x[i]
                a.signs[k] ^= <uint8_t>(1 << (i & 7))
            if a.w[i] * a.x[i] < cost:
                least, cost = i, a.w[i] * a.x[i]
        if has_even_signs(format_id) and is_odd(a.signs[k]):
            a.x[least] = -a.x[least]
            a.signs[k] ^= <uint8_t>(1 << (least & 7))


cdef inline bint grid_row(const int format_id, const Grid* g, const float* x, const float* importance, Py_ssize_t cols,
                          uint8_t* out) noexcept nogil:
    """Quantizes a row to IQ1, IQ2 or IQ3; returns whether all errors are finite."""
    cdef Super a, best
    cdef int n = grid_sub_len(format_id), sub, turn
    cdef float scales[16]
    cdef float largest, d, kept
    cdef double error, least, solved, unbiased
    cdef bint good = True
    cdef Py_ssize_t b
    memset(&best, 0, sizeof(best))  # remains if errors are not finite
    for b in range(cols // 256):
        take_super(format_id, x + 256 * b, importance + 256 * b if importance != NULL else NULL, &a)
        largest = 0
        for sub in range(256 // n):
            scales[sub] = fit_grid(format_id, g, a.x + n * sub, a.w + n * sub)
            largest = scales[sub] if scales[sub] > largest else largest
        d = half(largest / (grid_unit(format_id) * <float>(2 * top_integer(format_id) + 1)))
        kept, least = 0, 3e38
        for turn in range(GRID_TURNS):
            error = place_super(format_id, g, &a, scales, d, &solved, &unbiased)
            if error < least:
                kept, least, best = half(<float>unbiased) if d > 0 else 0, error, a
            d = half(<float>solved) if solved > 0 else 0
        good = good and least < 3e38
        put_grid_block(format_id, best.scale, best.entry, best.signs, best.shift, kept,
                       out + b * format_block_bytes(format_id))
    return good
