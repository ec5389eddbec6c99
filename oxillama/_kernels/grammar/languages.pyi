from collections.abc import Sequence

from oxillama._kernels.grammar.dfa import Dfa
from oxillama._kernels.grammar.node_types import Node

class Language:
    n_positions: int
    def __init__(self, node: Node) -> None: ...
    def automaton(self) -> Dfa: ...
    def accepts(self, text: str) -> bool: ...

def meet(
    wanted: Sequence[Dfa],
    unwanted: Sequence[Dfa] = (),
    least: int = 0,
    most: int | None = None,
    whole: int | None = None,
) -> Dfa: ...
