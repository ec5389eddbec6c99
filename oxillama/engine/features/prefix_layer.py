"""The base of prefix stores that wrap another one."""

from __future__ import annotations

from collections.abc import Sequence as Listed

from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request


class PrefixLayer(PrefixStore):
    """A store that wraps another one; methods that a subclass does not override call the wrapped store."""

    def __init__(self, inner: PrefixStore) -> None:
        self.inner = inner

    @property
    def fetched_tokens(self) -> int:
        return self.inner.fetched_tokens

    def arrive(self, request: Request) -> None:
        self.inner.arrive(request)

    def begin(self, request: Request) -> None:
        self.inner.begin(request)

    def admit(self, request: Request) -> None:
        self.inner.admit(request)

    def wait(self, request: Request) -> None:
        self.inner.wait(request)

    def at_most(self, request: Request, n: int) -> int:
        return self.inner.at_most(request, n)

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        return self.inner.is_coming(request, running, batched)

    def insert(self, request: Request) -> None:
        self.inner.insert(request)

    def keep(self, request: Request) -> None:
        self.inner.keep(request)

    def end(self, request: Request) -> None:
        self.inner.end(request)

    def needed_from(self, request: Request) -> float:
        return self.inner.needed_from(request)

    def reclaim(self, but: Request | None = None) -> bool:
        return self.inner.reclaim(but)

    def lose(self) -> None:
        self.inner.lose()

    def close(self) -> None:
        self.inner.close()

    def holders(self) -> list[Holder]:
        return self.inner.holders()
