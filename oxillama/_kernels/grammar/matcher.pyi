import numpy as np

from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama._kernels.grammar.trie import Trie

class Matcher:
    trie: Trie
    states: ParserStates
    n_shared: int
    sliced: int
    min_loop: int
    max_dependents: int
    def __init__(self, trie: Trie, states: ParserStates) -> None: ...
    def advance(self, state: int, token: int) -> int: ...
    def compute_bitmask(self, state: int, mask: np.ndarray) -> None: ...
