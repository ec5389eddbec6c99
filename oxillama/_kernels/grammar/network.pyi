from typing import Any

class Network:
    def __init__(self, program: Any) -> None: ...
