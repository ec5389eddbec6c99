"""How the engine reaches a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from oxillama.engine.features.pipeline.messages import PassMessage, StageFacts, StagePlan
from oxillama.engine.features.pipeline.stage import Stage
from oxillama.models.decoder import Carried


class StageLink(Protocol):
    """Reaches one stage. Passes run in the order in which they are asked for.

    Every method raises StageFailed where the stage cannot be reached or has failed.
    """

    def facts(self) -> StageFacts:
        """What the stage has loaded."""

    def run(self, message: PassMessage, carried: Any) -> Any:
        """Asks for a pass, and waits for nothing. ``carried`` is what the link of the stage before returned
        here, None for the first stage; the links of the other stages and `result` take what is returned."""

    def result(self, handle: Any) -> Carried:
        """Waits for what a pass passes on."""

    def call(self, method: str, *args: Any) -> Any:
        """Calls another method of the `Stage`, after the passes that were asked for, and waits for it."""

    def close(self) -> None:
        """Ends the stage."""


Connect = Callable[[int, StagePlan], StageLink]
"""Starts the stage of a number, which loads what its plan says."""


class LocalLink:
    """A stage in the engine's own process, which runs every pass at once.

    Args:
        stage: that it reaches.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def facts(self) -> StageFacts:
        return self._stage.facts()

    def run(self, message: PassMessage, carried: Any) -> Any:
        return self._stage.run(message, carried)

    def result(self, handle: Any) -> Carried:
        found: Carried = handle
        return found

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._stage, method)(*args)

    def close(self) -> None:
        """Nothing is to be ended."""


def connect_here(number: int, plan: StagePlan) -> StageLink:
    """Starts a stage in this process."""
    return LocalLink(Stage.load(plan))
