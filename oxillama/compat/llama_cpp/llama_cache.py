"""Caches of states by llama-cpp-python's names.

The engine caches prompt prefixes itself; these caches move states from one `Llama` to another.
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
"""The default capacity in bytes."""

Key = tuple[int, ...]


@dataclass(frozen=True)
class LlamaState:
    """The result of `Llama.save_state`.

    Attributes:
        input_ids: int32 (n_ctx,), the tokens, then zeros.
        scores: float32 (n_tokens, n_vocab), as in `Llama.scores`.
        n_tokens: number of tokens.
        llama_state: a snapshot of the session; b"" without tokens.
        llama_state_size: size of the snapshot in bytes.
        seed: the next completion without a seed derives its own from this.
    """

    input_ids: np.ndarray
    scores: np.ndarray
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def longest_prefix_key(keys: Iterable[Key], key: Sequence[int]) -> Key | None:
    """The key with the longest common prefix with ``key``; None if all have no common prefix."""
    found = max(keys, key=lambda each: common_prefix(each, key), default=())
    return found if common_prefix(found, key) else None


class BaseLlamaCache(ABC):
    """Stores states by their tokens. A lookup finds the state with the longest common prefix."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        self.capacity_bytes: int = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """The size of all states in bytes."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix. Raises KeyError if there is no common prefix."""

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether a state has a common prefix with the key."""

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Store a state, and drop others beyond the capacity."""


class LlamaRAMCache(BaseLlamaCache):
    """Keeps states in memory; drops the least recently used. Thread-safe."""

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
    """Keeps states in a folder with `diskcache`, which must be installed."""

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
