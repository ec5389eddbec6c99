"""Frees the pages of idle sessions when requests lack memory."""

from __future__ import annotations

from oxillama.engine.loading import LoadedModel


class EvictableSessions:
    """Frees pages of a model's sessions after `Session.give_way`, when its cache memory runs out."""

    def __init__(self, model: LoadedModel) -> None:
        self._held = model.loop.held
        self._limit = model.pool.limit
        self._limit.reclaim_from(self.reclaim)

    def reclaim(self, n_bytes: int) -> None:
        """Free ``n_bytes`` if possible, from the sequences held longest."""
        target = self._limit.available + n_bytes
        for sequence, owner in self._held.items():
            if self._limit.available >= target:
                break
            if getattr(owner(), "is_evictable", False):
                sequence.forget()
