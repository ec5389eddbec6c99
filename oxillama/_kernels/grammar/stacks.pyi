from typing import Any

class Stacks:
    n_bytes: int
    n_states: int
    limit: int
    budget: int
    def __init__(self, program: Any, limit: int, budget: int) -> None: ...
