"""The use of the package `huggingface_hub`: its settings, its session, its token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oxillama.base.distribution import install
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError


def library() -> Any:
    """The package `huggingface_hub`. Raises ConfigError if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        wanted = f"the package huggingface_hub ({install('hub')})"
        raise ConfigError(f"models by name: expected {wanted}, got none") from error
    return huggingface_hub


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raises ModelFileError for an error of files inside the block, or in the function that it decorates."""
    try:
        yield
    except OxiLlamaError:
        raise
    except OSError as error:
        raise ModelFileError(f"{error.filename or 'cache'}: {error.strerror or error}") from error
