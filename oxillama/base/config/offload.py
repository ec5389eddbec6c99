"""What of a model stays in memory: `OffloadPolicy`, a name for two fields of `EngineConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from oxillama.base.config import checks
from oxillama.base.config.option import Options, option


@dataclass(frozen=True)
class OffloadPolicy(Options):
    """How much of a model is in memory at a time; for `EngineConfig`, as ``offload_policy``.

    Raises:
        ConfigError: a field is outside its range; the message names it.
    """

    budget: int | None = option(None, low=1, help="max bytes of packed matrices in memory; None for all")
    pinned: tuple[str, ...] = option((), help="names of tensors that stay in memory, with ``*`` and ``?``")

    None_: ClassVar[OffloadPolicy]
    """Everything stays."""

    @classmethod
    def Budget(cls, n_bytes: int) -> OffloadPolicy:
        """At most ``n_bytes`` of packed matrices; the rest is read when a layer needs it."""
        return cls(checks.integer("budget", n_bytes, 1))

    @classmethod
    def PinnedHotSet(cls, n_bytes: int, *tensors: str) -> OffloadPolicy:
        """A budget in which the ``tensors`` stay."""
        return cls(checks.integer("budget", n_bytes, 1), tensors)


OffloadPolicy.None_ = OffloadPolicy()


def fields_of(name: str, policy: Any) -> dict[str, Any]:
    """The fields of `EngineConfig` that say the same as a policy. Raises ConfigError for other types."""
    found: OffloadPolicy = checks.instance(name, policy, OffloadPolicy)
    return {"offload_budget": found.budget, "offload_pinned": found.pinned}
