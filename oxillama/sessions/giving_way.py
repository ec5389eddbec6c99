"""Sessions whose pages go to requests that lack memory."""

from __future__ import annotations

from oxillama.engine.loading import LoadedModel


class GivingWay:
    """Frees pages of a model's sessions that give way (`Session.give_way`), when its memory runs out."""

    def __init__(self, model: LoadedModel) -> None:
        self._held = model.loop.held
        self._limit = model.pool.limit
        self._limit.reclaim_from(self.reclaim)

    def reclaim(self, n_bytes: int) -> None:
        """Frees so many bytes, if there are as many, of the sequences held longest."""
        wanted = self._limit.available + n_bytes
        for sequence, owner in self._held.items():
            if self._limit.available >= wanted:
                break
            if getattr(owner(), "gives_way", False):
                sequence.forget()
