"""Requests, the scheduler that batches them, the runner, caches, sampling; `features` plugs in the rest."""
