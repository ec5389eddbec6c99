"""Chooses a token by its logit: programs of stages over candidates, and the draw.

A `Program` is the list of stages of one configuration, a `Workspace` the memory of one choice at a time. A choice is
`start`, `apply` for each run of stages that are kernels, then `draw`; `sample_rows` does all of it for many
sequences at once, each on one thread, so a sequence gets the same token alone and in a batch.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport INT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

import numpy as np

from oxillama._kernels.arrays cimport MAX_THREADS, checked, f32_data, i32_data
from oxillama._kernels.sampling.candidates cimport *
from oxillama._kernels.simd.mathfun cimport exp64, log64
from oxillama._kernels.sampling.penalties cimport Dry, Penalties, dry_penalize, penalize
from oxillama._kernels.sampling.selection cimport *
from oxillama._kernels.sampling.stages cimport *

cnp.import_array()

KINDS: dict[str, int] = kinds()

cdef enum Status:
    GOOD = 0
    BAD_LOGIT = 1
    ALL_MASKED = 2
    BAD_HISTORY = 3

cdef struct Stage:
    Kind kind
    double a
    double b
    double c
    const int* ids
    const float* values
    Py_ssize_t n
    Penalties penalties
    Dry dry

cdef struct Row:
    const Stage* stages
    Py_ssize_t n_stages
    const float* logits
    Inputs inputs
    double u
    int token
    double logprob
    Status status


cdef Status run(const Stage* s, Py_ssize_t n, Candidates* c, const Inputs* inputs, int* z) noexcept nogil:
    """Applies n stages, up to an error or until no candidate is left."""
    cdef const Stage* end = s + n
    cdef Py_ssize_t i
    while s < end:
        if s.kind == ALLOW:
            keep_allowed(c, s.ids, s.n)
        elif s.kind == BAN or s.kind == BIAS:
            for i in range(s.n):
                c.x[s.ids[i]] = min(c.x[s.ids[i]] + s.values[i], FLT_MAX)
            changed(c)
        elif s.kind == MASK:
            if inputs.mask != NULL:
                keep_masked(c, inputs.mask)
        elif s.kind == PENALTIES:
            if not penalize(c, inputs.history, inputs.n_history, &s.penalties):
                return BAD_HISTORY
        elif s.kind == DRY:
            if not dry_penalize(c, inputs.history, inputs.n_history, &s.dry, z):
                return BAD_HISTORY
        else:
            find_top(c)
            if c.top == -INFINITY:
                return ALL_MASKED
            apply(s.kind, c, s.a, s.b, s.c, inputs)
        s += 1
    return GOOD


cdef Status choose(Candidates* c, double u, int* token, double* logprob) noexcept nogil:
    """Draws the first candidate whose cumulative weight exceeds u * total."""
    cdef Py_ssize_t at
    find_top(c)
    if c.top == -INFINITY:
        return ALL_MASKED
    rank_small(c)
    weigh(c)
    at = walk(c.e, c.n, 0.0, u * c.total)
    token[0] = c.ids[at] if c.listed else <int>at
    logprob[0] = (<double>c.x[at] - c.top) - log64(c.total)
    return GOOD


cdef void sample_row(Row* row, Candidates* c, int* z) noexcept nogil:
    if not start(c, row.logits):
        row.status = BAD_LOGIT
        return
    row.status = run(row.stages, row.n_stages, c, &row.inputs, z)
    if row.status == GOOD:
        row.status = choose(c, row.u, &row.token, &row.logprob)


NUMBERS = {
    "penalties": 4, "dry": 4, "xtc": 2, "temperature": 3, "allow": 0, "ban": 0, "bias": 0, "mask": 0, "mirostat": 0,
    "mirostat_v2": 0,
}
"""How many numbers a kind has; kinds that are not listed have 1."""

ARRAYS = {"allow": 1, "ban": 2, "bias": 2, "dry": 2}
"""How many arrays a kind has; kinds that are not listed have 0."""


cdef class Program:
    """The stages of a configuration in their order, checked, with copies of their arrays.

    Biases and bans come first, then allowed tokens, because these stages find a candidate by its id.

    Args:
        stages: (name in KINDS, numbers, arrays) each. The numbers and arrays by name: allow: int32 ids, ascending;
            ban, bias: int32 ids and float32 to add; mask, mirostat, mirostat_v2: nothing; penalties: repetition,
            frequency, presence, window; dry: multiplier, base, allowed length, range, and uint8 kinds and int32
            breakers; xtc: probability, threshold; temperature: temperature, range, exponent; all others: one number.
    """

    cdef Stage* stages
    cdef readonly Py_ssize_t n
    cdef Py_ssize_t n_ids  # above each id of the arrays
    cdef bint by_id  # whether stages find candidates by their ids
    cdef list owners

    def __cinit__(self, stages: Sequence[tuple[str, Sequence[float], Sequence[np.ndarray]]]):
        cdef tuple given = tuple(stages)
        self.stages = <Stage*>calloc(max(1, len(given)), sizeof(Stage))
        if self.stages == NULL:
            raise MemoryError
        self.owners = []
        last = ALLOW
        for name, numbers, arrays in given:
            if name not in KINDS:
                raise ValueError(f"stages: expected names of {', '.join(KINDS)}, got {name!r}")
            kind = KINDS[name]
            if kind in (BAN, BIAS) and self.n and last not in (BAN, BIAS) or kind == ALLOW and self.n and last not in (
                    BAN, BIAS):
                raise ValueError(f"stages: expected ids to be banned, biased and then allowed first, got {name} later")
            self.by_id = self.by_id or kind in (ALLOW, BAN, BIAS)
            last = kind
            self.add(name, kind, [float(x) for x in numbers], tuple(arrays))

    cdef int add(self, str name, int kind, list numbers, tuple arrays) except -1:
        """Appends a stage."""
        cdef Stage* s = self.stages + self.n
        cdef cnp.ndarray first, second
        if len(numbers) != NUMBERS.get(name, 1) or len(arrays) != ARRAYS.get(name, 0):
            raise ValueError(f"{name}: expected {NUMBERS.get(name, 1)} numbers and {ARRAYS.get(name, 0)} arrays, "
                             f"got {len(numbers)} and {len(arrays)}")
        for number in numbers:
            if not -FLT_MAX <= number <= FLT_MAX:
                raise ValueError(f"{name}: expected finite numbers of float32, got {number}")
        s.kind = <Kind>kind
        if arrays:
            first = owned(arrays[0])
            self.owners.append(first)
        if len(arrays) > 1:
            second = owned(arrays[1])
            self.owners.append(second)
        if kind == PENALTIES:
            if not numbers[0] > 0:
                raise ValueError(f"penalties: expected a repetition penalty above 0, got {numbers[0]}")
            s.penalties.repetition, s.penalties.frequency, s.penalties.presence = numbers[:3]
            s.penalties.window = whole(name, numbers[3], -1)
        elif kind == DRY:
            s.dry.multiplier, s.dry.base = numbers[:2]
            s.dry.allowed, s.dry.range = whole(name, numbers[2], 0), whole(name, numbers[3], -1)
            s.dry.kinds = <const uint8_t*>checked(first, cnp.NPY_UINT8, 0, "kinds")
            s.dry.n_kinds = cnp.PyArray_SIZE(first)
            s.dry.breakers = i32_data(second, 0, "breakers")
            s.dry.n_breakers = cnp.PyArray_SIZE(second)
            check_breakers(&s.dry)
        elif kind in (ALLOW, BAN, BIAS):
            s.ids = i32_data(first, 0, "ids")
            s.n = cnp.PyArray_SIZE(first)
            self.n_ids = max(self.n_ids, check_ids(s.ids, s.n, kind == ALLOW))
            if kind != ALLOW:
                s.values = f32_data(second, s.n, "values")
                if np.isnan(second).any():
                    raise ValueError(f"{name}: expected numbers to add, got NaN")
                np.minimum(second, <float>FLT_MAX, out=second)  # -inf + inf would be NaN
        elif kind == TOP_K:
            s.a = whole(name, numbers[0], 1)
        else:
            s.a, s.b, s.c = (*numbers, 0.0, 0.0, 0.0)[:3]
        self.n += 1
        return 0

    cdef int check(self, const Candidates* c) except -1:
        """Raises ValueError if the vocabulary lacks an id, or if stages need candidates by id after the first cut."""
        if self.n_ids > c.vocab:
            raise ValueError(f"ids: expected 0 to {c.vocab - 1}, got {self.n_ids - 1}")
        if self.by_id and c.listed:
            raise ValueError("stages: expected bans, biases and allowed tokens before all other stages")
        return 0

    def __dealloc__(self):
        free(self.stages)


cdef cnp.ndarray owned(array):
    """A copy that no other object can change."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"stages: expected arrays, got {type(array)}")
    return array.copy()


cdef Py_ssize_t whole(str name, double number, Py_ssize_t least) except? -2:
    if not least <= number <= INT32_MAX or number != <Py_ssize_t>number:
        raise ValueError(f"{name}: expected an integer from {least} to {INT32_MAX}, got {number}")
    return <Py_ssize_t>number


cdef Py_ssize_t check_ids(const int* ids, Py_ssize_t n, bint ascending) except -1:
    """The least size of a vocabulary that has these ids; ValueError if they are negative, or not ``ascending``."""
    cdef Py_ssize_t i, most = 0
    for i in range(n):
        if ids[i] < 0:
            raise ValueError(f"ids: expected numbers >= 0, got {ids[i]}")
        if ascending and i and ids[i] <= ids[i - 1]:
            raise ValueError(f"ids: expected ascending numbers, got {ids[i]} after {ids[i - 1]}")
        most = max(most, <Py_ssize_t>ids[i] + 1)
    return most


cdef int check_breakers(const Dry* dry) except -1:
    """Raises ValueError unless the array consists of sequences of at least one token, each after its length."""
    cdef Py_ssize_t at = 0
    while at < dry.n_breakers:
        if not 1 <= dry.breakers[at] < dry.n_breakers - at:
            raise ValueError(f"breakers: expected a length of 1 to {dry.n_breakers - at - 1}, got {dry.breakers[at]}")
        at = at + 1 + dry.breakers[at]
    return 0


cdef class Workspace:
    """The memory of one choice at a time among ``vocab`` tokens, about 50 bytes per token."""

    cdef Candidates c
    cdef void* memory
    cdef int* z
    cdef Py_ssize_t z_room

    def __cinit__(self, Py_ssize_t vocab):
        cdef Py_ssize_t n, sorted
        cdef char* p
        if not 0 < vocab < 2**31 - 2 * BLOCK:
            raise ValueError(f"vocab: expected 1 to 2^31, got {vocab}")
        n = padded(vocab) + BLOCK
        sorted = min(n, <Py_ssize_t>SORT_ROOM)
        self.memory = calloc(9 * n * 4 + 2 * sorted * 8 + 64, 1)
        if self.memory == NULL:
            raise MemoryError
        p = <char*>self.memory
        self.c.order = <uint64_t*>p
        self.c.order_spare = self.c.order + sorted
        p += 2 * sorted * 8
        self.c.x = <float*>p
        self.c.e = self.c.x + n
        self.c.key = self.c.e + n
        self.c.part_key = self.c.key + n
        self.c.part_weight = self.c.part_key + n
        self.c.blocks = self.c.part_weight + n
        self.c.ids = <int*>(self.c.blocks + n)
        self.c.spare_ids = self.c.ids + n
        self.c.marks = self.c.spare_ids + n
        self.c.vocab = vocab

    def __dealloc__(self):
        free(self.memory)
        free(self.z)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.c.vocab

    cdef int reserve(self, Py_ssize_t n_history) except -1:
        """Makes room for `match` on a history."""
        cdef int* z
        if n_history > self.z_room:
            z = <int*>realloc(self.z, 2 * n_history * sizeof(int))
            if z == NULL:
                raise MemoryError
            self.z = z
            self.z_room = 2 * n_history
        return 0

    def start(self, cnp.ndarray logits) -> int:
        """Copies logits, float32 (vocab,); returns the status."""
        if start(&self.c, f32_data(logits, self.c.vocab, "logits")):
            return GOOD
        shrink(&self.c, 0)  # no stage may read a NaN
        return BAD_LOGIT

    def apply(self, Program program not None, cnp.ndarray history, cnp.ndarray mask: np.ndarray | None, double chance,
              double mu) -> int:
        """Applies a program; returns the status.

        Raises ValueError if the program finds candidates by id, and other stages have run since `start`.

        Args:
            history: int32 (n,), the tokens so far
            mask: uint32 (vocab / 32, rounded up), a bit for each token, the lowest first, set if allowed; or None
            chance: random number in [0, 1), for XTC
            mu: the surprise that mirostat allows, in bits
        """
        cdef Inputs inputs
        program.check(&self.c)
        self.reserve(read_inputs(&inputs, self.c.vocab, history, mask, chance, mu))
        return run(program.stages, program.n, &self.c, &inputs, self.z)

    def draw(self, double u) -> tuple[int, int, float]:
        """(status, token, log-probability of the token among the candidates) for a random ``u`` in [0, 1)."""
        cdef int token = -1
        cdef double logprob = 0.0
        cdef Status status = choose(&self.c, u, &token, &logprob)
        return status, token, logprob

    def candidates(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the candidates: int32 ids and float32 logits, without -inf."""
        cdef Py_ssize_t i, m = 0
        cdef cnp.ndarray ids = np.empty(self.c.n, np.int32), logits = np.empty(self.c.n, np.float32)
        cdef int* ip = <int*>cnp.PyArray_DATA(ids)
        cdef float* xp = <float*>cnp.PyArray_DATA(logits)
        for i in range(self.c.n):
            if self.c.x[i] > -INFINITY:
                ip[m] = self.c.ids[i] if self.c.listed else <int>i
                xp[m] = self.c.x[i]
                m += 1
        return ids[:m], logits[:m]

    def replace(self, cnp.ndarray ids, cnp.ndarray logits) -> int:
        """Replaces the candidates by ids that `candidates` returned, with other logits; returns the status."""
        cdef const int* ip = i32_data(ids, 0, "ids")
        cdef Py_ssize_t n = cnp.PyArray_SIZE(ids), i
        cdef const float* xp = f32_data(logits, n, "logits")
        if n > self.c.vocab:
            raise ValueError(f"ids: expected at most {self.c.vocab}, got {n}")
        for i in range(n):
            if not 0 <= ip[i] < self.c.vocab:
                raise ValueError(f"ids: expected 0 to {self.c.vocab - 1}, got {ip[i]}")
            if not xp[i] < INFINITY:
                shrink(&self.c, 0)
                return BAD_LOGIT
        memcpy(self.c.ids, ip, n * sizeof(int))
        memcpy(self.c.x, xp, n * sizeof(float))
        changed(&self.c)
        shrink(&self.c, n)
        return GOOD

    def distribution(self) -> tuple[np.ndarray, np.ndarray] | None:
        """int32 ids and float64 probabilities of the candidates, or None if no candidate is left."""
        cdef Py_ssize_t i
        cdef double total = 0.0
        find_top(&self.c)
        if self.c.top == -INFINITY:
            return None
        rank_small(&self.c)
        weigh(&self.c)
        cdef cnp.ndarray ids = np.arange(self.c.n, dtype=np.int32), p = np.empty(self.c.n)
        cdef double* pp = <double*>cnp.PyArray_DATA(p)
        if self.c.listed:
            memcpy(cnp.PyArray_DATA(ids), self.c.ids, self.c.n * sizeof(int))
        for i in range(self.c.n):
            total += self.c.e[i]
        for i in range(self.c.n):
            pp[i] = self.c.e[i] / total
        return ids, p

    def top(self, Py_ssize_t k) -> tuple[np.ndarray, np.ndarray]:
        """int32 ids and float64 log-probabilities of the k likeliest candidates; removes the other candidates."""
        cdef double ln_total
        cdef float top
        if k < 0:
            raise ValueError(f"k: expected an integer >= 0, got {k}")
        weigh(&self.c)
        ln_total = log64(self.c.total)
        top = self.c.top
        keep_top_k(&self.c, k)
        ids, logits = self.candidates()
        order = np.lexsort((ids, -logits))
        return ids[order], (logits[order].astype(np.float64) - top) - ln_total

    def logprob(self, Py_ssize_t token) -> float:
        """Log-probability of a token, directly after `start`."""
        if not 0 <= token < self.c.vocab:
            raise ValueError(f"token: expected 0 to {self.c.vocab - 1}, got {token}")
        if self.c.listed or self.c.n == 0:
            raise ValueError("logprob: expected candidates as `start` leaves them, got others")
        weigh(&self.c)
        return (<double>self.c.x[token] - self.c.top) - log64(self.c.total)


cdef Py_ssize_t read_inputs(Inputs* inputs, Py_ssize_t vocab, cnp.ndarray history, cnp.ndarray mask, double chance,
                            double mu) except -1:
    """Sets the inputs that stages have besides their numbers; returns the length of the history."""
    inputs.history = i32_data(history, 0, "history")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(history)
    if n >= INT32_MAX:
        raise ValueError(f"history: expected fewer than 2^31 tokens, got {n}")
    inputs.n_history = n
    inputs.mask = NULL
    if mask is not None:
        inputs.mask = <const uint32_t*>checked(mask, cnp.NPY_UINT32, (vocab + 31) // 32, "mask")
    inputs.chance = chance
    inputs.mu = mu
    return n


def sample_rows(
    list rows not None: list[tuple[Program, np.ndarray, np.ndarray, np.ndarray | None, float, float, float]],
    list workspaces not None: list[Workspace]
) -> list[tuple[int, int, float]]:
    """Samples for many sequences, as many at a time as there are workspaces.

    Args:
        rows: (`Program`, logits, history, mask, chance, mu, u) each, as for `Workspace`; one vocabulary
        workspaces: distinct, each for this vocabulary

    Returns:
        list of (status, token, log-probability), which do not depend on the other rows or the number of workspaces
    """
    cdef list held = [tuple(row) for row in rows]  # keeps the arrays alive, even if the lists change
    cdef tuple rooms = tuple(workspaces)
    cdef Py_ssize_t n = len(held), i, n_history, longest = 0
    cdef int n_threads = min(<Py_ssize_t>len(rooms), max(1, n)), t
    cdef Program program
    cdef Workspace workspace
    for room in rooms:
        if not isinstance(room, Workspace):
            raise TypeError(f"workspaces: expected objects of Workspace, got {type(room)}")
    if not 1 <= len({id(room) for room in rooms}) == len(rooms) <= MAX_THREADS:
        raise ValueError(f"workspaces: expected 1 to {MAX_THREADS}, each once, got {len(rooms)}")
    cdef Py_ssize_t vocab = rooms[0].vocab
    cdef Row* r = <Row*>calloc(max(1, n), sizeof(Row))
    cdef Candidates** c = <Candidates**>malloc(n_threads * sizeof(Candidates*))
    cdef int** z = <int**>malloc(n_threads * sizeof(int*))
    try:
        if r == NULL or c == NULL or z == NULL:
            raise MemoryError
        for i in range(n):
            if len(held[i]) != 7 or not isinstance(held[i][0], Program):
                raise TypeError("rows: expected a program, logits, history, mask, chance, mu and u, got others")
            program, logits, history, mask, chance, mu, u = held[i]
            if program.n_ids > vocab:
                raise ValueError(f"ids: expected 0 to {vocab - 1}, got {program.n_ids - 1}")
            r[i].stages = program.stages
            r[i].n_stages = program.n
            r[i].logits = f32_data(logits, vocab, "logits")
            n_history = read_inputs(&r[i].inputs, vocab, history, mask, chance, mu)
            longest = max(longest, n_history)
            r[i].u = u
        for t in range(n_threads):
            workspace = rooms[t]
            if workspace.c.vocab != vocab:
                raise ValueError(f"workspaces: expected one vocabulary, got {vocab} and {workspace.c.vocab}")
            workspace.reserve(longest)
            c[t] = &workspace.c
            z[t] = workspace.z
        if n_threads == 1:
            with nogil:
                for i in range(n):
                    sample_row(r + i, c[0], z[0])
        else:
            for i in prange(n, nogil=True, schedule="dynamic", chunksize=1, num_threads=n_threads):
                sample_row(r + i, c[threadid()], z[threadid()])
        return [(<int>r[i].status, r[i].token, r[i].logprob) for i in range(n)]
    finally:
        free(r)
        free(c)
        free(z)


def log(double x) -> float:
    """ln x without the math library: the same bits on every machine."""
    return log64(x)


def exp(double x) -> float:
    """e^x without the math library: the same bits on every machine."""
    return exp64(x)
