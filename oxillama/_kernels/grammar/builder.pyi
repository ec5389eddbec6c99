from collections.abc import Callable
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
        unit: Callable[[str], int] | None,
        most: int,
    ) -> None: ...
    def build(self, root: str, units: Any = None) -> Program: ...
