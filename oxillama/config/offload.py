"""What of a model stays in memory: `OffloadPolicy`, a name for two fields of `EngineConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from oxillama.config import checks


@dataclass(frozen=True)
class OffloadPolicy:
    """How much of a model is in memory at a time; for `EngineConfig`, as ``offload_policy``.

    Attributes
    ----------
    budget : most bytes of packed matrices in memory; None for no limit.
    pinned : names of tensors that stay in memory, with ``*`` and ``?``.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    budget: int | None = None
    pinned: tuple[str, ...] = ()

    None_: ClassVar[OffloadPolicy]
    """Everything stays."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", checks.integer("budget", self.budget, 1))
        object.__setattr__(self, "pinned", checks.texts("pinned", self.pinned, empty=False))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `EngineConfig` that say the same."""
        return {"offload_budget": self.budget, "offload_pinned": self.pinned}

    @classmethod
    def Budget(cls, n_bytes: int) -> OffloadPolicy:
        """At most ``n_bytes`` of packed matrices; the rest is read when a layer needs it."""
        return cls(checks.integer("budget", n_bytes, 1))

    @classmethod
    def PinnedHotSet(cls, n_bytes: int, *tensors: str) -> OffloadPolicy:
        """A budget in which the ``tensors`` stay."""
        return cls(checks.integer("budget", n_bytes, 1), tensors)


OffloadPolicy.None_ = OffloadPolicy()
