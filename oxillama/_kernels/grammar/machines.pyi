from collections.abc import Iterable, Sequence

from oxillama._kernels.grammar.dfa import Dfa

def reduced(
    table: Sequence[Sequence[int]],
    accepting: Iterable[int],
    classes: Sequence[tuple[tuple[int, int], ...]],
) -> Dfa: ...
