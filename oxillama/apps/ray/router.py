"""Request router for Ray Serve: by the home of stored responses, by prompt prefixes, by load."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from oxillama.apps.ray.homes import Route, tag_of
from oxillama.apps.ray.prefixes import PrefixMap

IMBALANCE = 8


class ReplicaRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Sends a request to the replica that keeps the responses that it names.

    Another request goes to the replica that `PrefixMap` prefers, among those that accept one more. The first
    argument of a request is its `Route`.
    """

    def initialize_state(self, imbalance: int = IMBALANCE, by_prefix: bool = True) -> None:
        """Called by Serve once, with ``request_router_kwargs``. Without ``by_prefix``, load alone counts."""
        self.prefixes: PrefixMap = PrefixMap(imbalance)
        self.by_prefix: bool = by_prefix

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in order of preference, one in each rank: Serve takes the first that is not full."""
        if pending_request is not None:  # if all are full, Serve waits before it asks again
            pending_request.routing_context.should_backoff = True
        candidates, route = list(candidate_replicas), route_in(pending_request)
        if route.home:
            homes = [one for one in candidates if tag_of(one.replica_id.unique_id) == route.home]
            if homes:
                return [homes]
        random.shuffle(candidates)  # random order among equals
        known = self.replica_queue_len_cache
        loads = {one.replica_id: known.get(one.replica_id) or 0 for one in candidates}
        by_id = {one.replica_id: one for one in candidates}
        keys = route.keys if self.by_prefix else ()
        return [[by_id[id]] for id in self.prefixes.ranked(keys, loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Called by Serve for each request that a replica has accepted."""
        if self.by_prefix:
            self.prefixes.note(route_in(pending_request).keys, replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas start or stop."""
        super().update_replicas(replicas)
        self.prefixes.keep_only(one.replica_id for one in replicas)


def route_in(request: PendingRequest | None) -> Route:
    found: Route = request.args[0] if request is not None and request.args else Route()
    return found
