"""Ray Serve's part of routing by prefixes: Serve asks it where each request goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from oxillama.ray.prefixes import PrefixMap

IMBALANCE = 8


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Sends a request to the replica that `PrefixMap` prefers, of those that can take one more.

    The first argument of a request is the list of its keys.
    """

    def initialize_state(self, imbalance: int = IMBALANCE) -> None:
        """Serve calls it once, with ``request_router_kwargs``."""
        self.prefixes: PrefixMap = PrefixMap(imbalance)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas, one in each rank: Serve takes the first that is not full."""
        if pending_request is not None:  # if all are full, Serve waits before it asks again
            pending_request.routing_context.should_backoff = True
        candidates = list(candidate_replicas)
        random.shuffle(candidates)  # among equals anyone
        known = self.replica_queue_len_cache
        loads = {one.replica_id: known.get(one.replica_id) or 0 for one in candidates}
        by_id = {one.replica_id: one for one in candidates}
        return [[by_id[id]] for id in self.prefixes.ranked(keys_of(pending_request), loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Serve calls it for each request that a replica has taken."""
        self.prefixes.note(keys_of(pending_request), replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve calls it when replicas come or go."""
        super().update_replicas(replicas)
        self.prefixes.keep_only(one.replica_id for one in replicas)


def keys_of(request: PendingRequest | None) -> Sequence[bytes]:
    """The keys that a request was sent with."""
    found: Sequence[bytes] = request.args[0] if request is not None and request.args else ()
    return found
