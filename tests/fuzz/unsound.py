"""A target that does what the harness is there to find."""

from __future__ import annotations

import os
import time
from random import Random
from typing import Any

from oxillama.errors import GGUFError
from tests.fuzz.harness import Target


class Unsound(Target):
    """Does what it is told."""

    name = "unsound"

    def seeds(self) -> list[Any]:
        return [
            ["fine"], ["refused"], ["error", "ballast"], ["crash"], ["memory"], ["fine"], ["hang"], ["fine"],
        ]  # fmt: skip

    def mutate(self, value: Any, rng: Random) -> Any:
        return ["fine", rng.random()]

    def run(self, value: Any) -> None:
        if "refused" in value:
            raise GGUFError("no")
        if "error" in value:
            raise KeyError("x")
        if "crash" in value:
            os.abort()
        if "memory" in value:
            bytearray(8 << 30)
        if "hang" in value:
            time.sleep(60)
