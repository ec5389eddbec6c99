import numpy as np

from oxillama._kernels.grammar.configurations import Configurations
from oxillama._kernels.grammar.trie import Trie

class Matcher:
    trie: Trie
    configs: Configurations
    large: int
    sliced: int
    min_loop: int
    max_escapes: int
    def __init__(self, trie: Trie, configs: Configurations) -> None: ...
    def advance(self, config: int, token: int) -> int: ...
    def prepare(self, seconds: float) -> None: ...
    def fill(self, config: int, mask: np.ndarray) -> None: ...
