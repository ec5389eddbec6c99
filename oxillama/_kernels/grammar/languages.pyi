from collections.abc import Callable, Sequence

from oxillama._kernels.grammar.dfa import Dfa
from oxillama.grammar.rules import Node

class Language:
    n_positions: int
    def __init__(self, node: Node) -> None: ...
    def accepts(self, text: str) -> bool: ...

def determinise(
    languages: Sequence[Language],
    accept: Callable[[tuple[bool, ...]], bool],
    least: int = 0,
    most: int | None = None,
) -> Dfa: ...
