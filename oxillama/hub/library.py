"""The use of the package `huggingface_hub`, and messages for its errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from oxillama.distribution import install
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError

REACH_SECONDS = 1.5
"""What a connection to the hub may take."""


def library() -> Any:
    """The package `huggingface_hub`. Raises ConfigError if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        wanted = f"the package huggingface_hub ({install('hub')})"
        raise ConfigError(f"models by name: expected {wanted}, got none") from error
    return huggingface_hub


@contextmanager
def bars(shown: bool) -> Iterator[None]:
    """Shows progress bars inside the block, or none; the setting is the whole process's."""
    utils: Any = import_module("huggingface_hub.utils")
    if shown or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raises ModelFileError for an error of files inside the block, or in the function that it decorates."""
    try:
        yield
    except OxiLlamaError:
        raise
    except OSError as error:
        raise ModelFileError(f"{error.filename or 'cache'}: {error.strerror or error}") from error


def check_reachable(hub: Any) -> None:
    """Raises OSError if nothing listens at the hub's address, within `REACH_SECONDS`.

    `huggingface_hub` itself would try again for minutes. Behind a proxy nothing is checked.
    """
    url = urlsplit(hub.constants.ENDPOINT)
    if hub.constants.HF_HUB_OFFLINE or url.hostname is None:
        return
    if getproxies().get(url.scheme) and not proxy_bypass(url.hostname):
        return
    address = (url.hostname, url.port or (80 if url.scheme == "http" else 443))
    found: list[OSError | None] = []

    def connect() -> None:
        try:
            socket.create_connection(address, REACH_SECONDS).close()
            found.append(None)
        except (OSError, UnicodeError) as error:
            found.append(OSError(getattr(error, "strerror", None) or str(error)))

    thread = threading.Thread(target=connect, name="reach the hub", daemon=True)  # a name may take long
    thread.start()
    thread.join(REACH_SECONDS)
    error = found[0] if found else OSError(f"no answer within {REACH_SECONDS:g} s")
    if error is not None:
        raise error


def is_answer(hub: Any, error: Exception) -> bool:
    """Whether the hub has answered; otherwise it was not reached, or access is switched off."""
    if isinstance(error, hub.errors.HFValidationError):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, hub.errors.HfHubHTTPError) and (status is None or status < 500)


def reason_of(hub: Any, error: BaseException) -> str:
    """The reason of an error, in one line."""
    errors, where = hub.errors, hub.constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"{where} gives it to users who have accepted its terms; log in with: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such repository at {where}, or a private one (log in with: hf auth login)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository at {where} has no such revision"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{where} did not give it: {lines[0].strip()}"
