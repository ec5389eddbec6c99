from typing import Any

from oxillama._kernels.grammar.network import Program
from oxillama._kernels.grammar.node_types import Node

class Builder:
    def __init__(
        self,
        rules: dict[str, Node],
        called: set[str],
        known_sizes: dict[str, int],
        nullable: set[str],
        productive: set[str],
        units: dict[str, int],
        most: int,
    ) -> None: ...
    def build(self, root: str, pieces: Any = None) -> Program: ...
