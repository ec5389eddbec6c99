"""What becomes of an error that nobody raised on purpose."""

from __future__ import annotations

import logging
from contextlib import suppress

from oxillama.errors import KvCacheFullError, OxiLlamaError, RequestFailed


def fault(error: BaseException) -> OxiLlamaError:
    """An error for the consumer of a request: the same if it is one of the library's, else one made of it."""
    if isinstance(error, OxiLlamaError):
        return error
    made: OxiLlamaError
    if isinstance(error, MemoryError):
        made = KvCacheFullError(f"memory: expected enough to go on with the request, got none ({error})")
    else:
        made = RequestFailed(f"request: {error!r} ended it")
    made.__cause__ = error
    return made


def note(
    log: logging.Logger,
    level: int,
    message: str,
    *arguments: object,
    request: str | None = None,
    exc_info: bool = False,
) -> None:
    """Logs a line. What a handler or filter raises is not let into the engine's step, which others share.

    Args:
        request: the name of the request that the line is about: the record's ``request_id``.
    """
    if log.isEnabledFor(level):
        extra = None if request is None else {"request_id": request}
        with suppress(Exception):
            log.log(level, message, *arguments, exc_info=exc_info, stacklevel=2, extra=extra)
