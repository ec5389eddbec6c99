from collections.abc import Callable
from typing import Any

from oxillama.grammar.analysis import Calls
from oxillama.grammar.rules import Node

class Builder:
    def __init__(
        self,
        rules: dict[str, Node],
        calls: Calls,
        nullable: set[str],
        unit: Callable[[str], int] | None,
        most: int,
    ) -> None: ...
    def build(self, root: str) -> dict[str, Any]: ...
