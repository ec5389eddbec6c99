"""Caches of states by llama-cpp-python's names.

An engine keeps the beginnings of prompts by itself; these hand states from one `Llama` to another.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CAPACITY = 2 << 30
"""Bytes of states that are kept."""

Key = tuple[int, ...]


@dataclass(frozen=True)
class LlamaState:
    """What `Llama.save_state` takes.

    Attributes
    ----------
    input_ids : int32 (n_ctx,), the tokens, then zeros.
    scores : float32 (n_tokens, n_vocab), as `Llama.scores` has them.
    n_tokens : tokens of the state.
    llama_state : a snapshot of the session; b"" without tokens.
    llama_state_size : its bytes.
    seed : from which the next completion without a seed takes one.
    """

    input_ids: np.ndarray
    scores: np.ndarray
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def longest_prefix_key(keys: Iterable[Key], key: Sequence[int]) -> Key | None:
    """The key that begins most like another one; None if none begins like it."""
    found = max(keys, key=lambda each: common_prefix(each, key), default=())
    return found if common_prefix(found, key) else None


class BaseLlamaCache(ABC):
    """Keeps states under the tokens that they are of. A key finds the state that begins most like it."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        self.capacity_bytes: int = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Bytes of what is kept."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state that begins most like a key. Raises KeyError if none begins like it."""

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether a state begins like a key."""

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Keeps a state, and drops others beyond the capacity."""


class LlamaRAMCache(BaseLlamaCache):
    """Keeps states in memory; those used longest ago go first. Thread-safe."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: OrderedDict[Key, LlamaState] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def cache_size(self) -> int:
        with self._lock:
            return sum(state.llama_state_size for state in self.cache_state.values())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        with self._lock:
            found = longest_prefix_key(self.cache_state, key)
            if found is None:
                raise KeyError("no state begins like the key")
            self.cache_state.move_to_end(found)
            return self.cache_state[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        with self._lock:
            return longest_prefix_key(self.cache_state, key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        with self._lock:
            self.cache_state[tuple(key)] = value
            self.cache_state.move_to_end(tuple(key))
            while self.cache_state and self.cache_size > self.capacity_bytes:
                self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """Keeps states in a folder, by `diskcache`, which must be installed."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = CAPACITY) -> None:
        super().__init__(capacity_bytes)
        import diskcache

        self.cache: Any = diskcache.Cache(cache_dir)

    @property
    def cache_size(self) -> int:
        return int(self.cache.volume())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = longest_prefix_key(self.cache.iterkeys(), key)
        if found is None:
            raise KeyError("no state begins like the key")
        state: LlamaState = self.cache[found]
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return longest_prefix_key(self.cache.iterkeys(), key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.cache[tuple(key)] = value
        while self.cache_size > self.capacity_bytes and len(self.cache):
            del self.cache[next(iter(self.cache))]
