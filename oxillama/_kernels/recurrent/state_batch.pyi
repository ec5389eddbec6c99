from collections.abc import Sequence

import numpy as np

class StateBatch:
    def __init__(
        self,
        before: Sequence[np.ndarray | None],
        after: Sequence[np.ndarray],
        row_start: np.ndarray,
        floats: int,
        earlier: Sequence[Sequence[np.ndarray]],
        recorded: Sequence[Sequence[np.ndarray]],
        settled: np.ndarray,
        record_floats: int,
    ) -> None: ...
