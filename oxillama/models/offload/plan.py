"""Decides under a budget which parts of a model stay in memory; others are read in every pass.

The parts of a pass are used in a fixed order, again and again. An LRU cache would evict each part shortly
before its next use. So a fixed set is resident, and the rest is read into one or two buffers: no other choice
reads fewer bytes. Resident parts are spread evenly over the pass, so that there is the same time to read each
of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from oxillama.errors import ConfigError

LARGE = 2.0
"""Parts of this many times the median size are resident first, since a buffer must hold any other part."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the parts of a model.

    Attributes:
        parts: of each part, in the order of a pass. Every pass uses all of them.
        pinned: numbers of those that must stay.
        expert: of the largest expert; 0 for a model without experts.
        experts: of all experts together, and of those among them that must stay.
        pinned_experts: of those among them that must stay.
        n_used: experts that a token uses at a time.
    """

    parts: Sequence[int]
    pinned: Collection[int] = ()
    expert: int = 0
    experts: int = 0
    pinned_experts: int = 0
    n_used: int = 0

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return sum(self.parts) + self.experts

    @property
    def least(self) -> int:
        """Bytes of the smallest budget: what must stay, a buffer for the rest, and one expert."""
        kept = sum(self.parts[i] for i in self.pinned)
        buffer = max((n for i, n in enumerate(self.parts) if i not in self.pinned), default=0)
        loose = self.experts - self.pinned_experts
        return kept + buffer + self.pinned_experts + min(self.expert, loose)


@dataclass(frozen=True)
class Plan:
    """Resident parts and buffers.

    Attributes:
        stays: numbers of the parts that stay.
        buffer_bytes: of each buffer; 0 where everything stays.
        n_buffers: how many.
        expert_bytes: maximum bytes of experts.
    """

    stays: frozenset[int]
    buffer_bytes: int
    n_buffers: int
    expert_bytes: int


def make_plan(sizes: Sizes, budget: int) -> Plan:
    """The plan whose bytes are at most ``budget``. Raises ConfigError if the budget is too small."""
    least = sizes.least
    if budget < least:
        raise ConfigError(f"offload_budget: expected at least {least} bytes for this model, got {budget}")
    if budget >= sizes.total:
        return Plan(frozenset(range(len(sizes.parts))), 0, 0, sizes.experts)
    # a token's experts first: fewer would be read twice in a layer
    wanted = min(sizes.experts, sizes.pinned_experts + sizes.n_used * sizes.expert)
    short = sizes.pinned_experts + min(sizes.expert, sizes.experts - sizes.pinned_experts)
    experts = wanted if budget - wanted >= least - short else short
    stays, n_buffers = _staying(sizes, budget - experts)
    others = [n for i, n in enumerate(sizes.parts) if i not in stays]
    buffer = max(others, default=0)
    used = sum(sizes.parts[i] for i in stays) + n_buffers * buffer
    return Plan(stays, buffer, n_buffers, min(sizes.experts, budget - used))


def _staying(sizes: Sizes, budget: int) -> tuple[frozenset[int], int]:
    """The parts that stay, and the number of buffers for the others."""
    parts = sizes.parts
    if sum(parts) <= budget:
        return frozenset(range(len(parts))), 0
    stays = set(sizes.pinned)
    n_buffers = 2
    if _bytes(parts, stays, 2) > budget:
        n_buffers = 1
    # the large ones, as long as the others then still have their buffers
    typical = median(parts)
    for i in sorted(range(len(parts)), key=lambda i: -parts[i]):
        if parts[i] > LARGE * typical and i not in stays:
            larger = stays | {i}
            for n in (2, 1):
                if n >= n_buffers and _bytes(parts, larger, n) <= budget:
                    stays, n_buffers = larger, n
                    break
    # the rest, spread evenly: the fraction that fits is carried from part to part
    loose = [i for i in range(len(parts)) if i not in stays]
    free = budget - _bytes(parts, stays, n_buffers)
    share = free / sum(parts[i] for i in loose)
    owed = 0.5 * median(parts[i] for i in loose)
    for i in loose:
        owed += share * parts[i]
        if owed >= parts[i] and parts[i] <= free:
            stays.add(i)
            owed -= parts[i]
            free -= parts[i]
    for i in reversed(loose):  # what is left over
        if i not in stays and parts[i] <= free:
            stays.add(i)
            free -= parts[i]
    return frozenset(stays), n_buffers


def _bytes(parts: Sequence[int], stays: Collection[int], n_buffers: int) -> int:
    """Bytes of what stays, and of the buffers for the rest."""
    buffer = max((n for i, n in enumerate(parts) if i not in stays), default=0)
    return sum(parts[i] for i in stays) + n_buffers * buffer
