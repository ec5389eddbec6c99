"""Every error the library raises on purpose, in one tree.

Each is also a subclass of a fitting builtin exception, so that callers can catch it without knowing this
library. A message names the thing, the expected value and the one that was found.
"""

from __future__ import annotations


class OxiLlamaError(Exception):
    """Base of every error raised by oxillama."""


class ConfigError(OxiLlamaError, ValueError):
    """An option is outside its range or cannot be honoured; the message names the field."""


class RewindError(ConfigError):
    """A sequence cannot be truncated to the requested position."""


class RewindNotSupported(RewindError):
    """No checkpoint exists before the requested position."""


class PositionBeyondEnd(RewindError):
    """A sequence was asked to keep more tokens than it has.

    Attributes
    ----------
    target, current : requested and existing number of tokens.
    """

    def __init__(self, target: int, current: int) -> None:
        self.target: int = target
        self.current: int = current
        super().__init__(f"n_tokens: expected at most {current}, got {target}")


class ModelFileError(OxiLlamaError, OSError):
    """A model file cannot be opened or read (missing, a directory, no permission)."""


class StageFailed(OxiLlamaError, RuntimeError):
    """A stage of a pipeline has failed, and with it the keys and values of all sequences are lost."""


class GGUFError(OxiLlamaError, ValueError):
    """A GGUF file is malformed, truncated, or of a kind this reader does not know.

    Attributes
    ----------
    key : str or None
        The metadata key or tensor name at fault, where there is one.
    offset : int or None
        The byte offset in the file at which the fault was found.
    """

    def __init__(self, message: str, *, key: str | None = None, offset: int | None = None) -> None:
        self.key = key
        self.offset = offset
        prefix = f"{key}: " if key else ""
        suffix = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{prefix}{message}{suffix}")


class LoadError(OxiLlamaError, ValueError):
    """A readable file contains a model that cannot be run; the message names what is missing or unknown."""


class TokenizerError(OxiLlamaError, ValueError):
    """A vocabulary is unusable, or a text or a token id cannot be converted."""


class ChatTemplateError(OxiLlamaError, ValueError):
    """A chat template is absent, malformed, refused by the sandbox, or over its limits."""


class TensorNotFound(OxiLlamaError, KeyError):
    """A model has no matrix of this name.

    Attributes
    ----------
    name : str
        The name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name}: expected the name of a matrix of the model")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class PromptError(OxiLlamaError, ValueError):
    """A prompt cannot be run: it is empty, or it does not fit the context."""


class MediaError(OxiLlamaError, ValueError):
    """A picture or a sound cannot be decoded, is empty, or is over a limit."""


class KvCacheFullError(OxiLlamaError, MemoryError):
    """No free KV page is left for a sequence that needs one, or the system has no memory for its pass."""


class SamplingError(OxiLlamaError, ValueError):
    """No token can be chosen: every candidate is masked, or the logits hold a NaN."""


class QueueFull(OxiLlamaError, RuntimeError):
    """The queue of requests is full; the caller may try again later."""


class RequestFailed(OxiLlamaError, RuntimeError):
    """A fault of the library or of the system ended a request; ``__cause__`` is the original exception."""


class EngineClosed(OxiLlamaError, RuntimeError):
    """The engine was closed, its thread died, or the process is a fork of the one that ran the request."""


class GenerationCancelled(OxiLlamaError, RuntimeError):
    """A text was cancelled before its first token."""


class GenerationTimeout(OxiLlamaError, TimeoutError):
    """A blocking call reached its timeout before the text ended.

    Attributes
    ----------
    text : str
        The text that was generated in time.
    """

    def __init__(self, message: str, text: str = "") -> None:
        self.text = text
        super().__init__(message)


class GrammarError(OxiLlamaError, ValueError):
    """A grammar is malformed, beyond a stated limit, or cannot be followed any further.

    Attributes
    ----------
    line, column : int or None
        Where in the grammar's text the fault was found, counted from 1, where there is a text.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        place = f"line {line}, column {column}: " if line is not None else ""
        super().__init__(place + message)


class ReceiptError(OxiLlamaError, ValueError):
    """A receipt cannot be read, is malformed, or describes an impossible request."""


class SnapshotIncompatible(OxiLlamaError, ValueError):
    """A snapshot is damaged, of another version, or does not fit the engine that is to resume it.

    Attributes
    ----------
    detail : str
        What was expected, and what was found.
    """

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"snapshot: {detail}")


class SpecSnapshotIncompatible(SnapshotIncompatible):
    """A snapshot of a `SpeculativeEngine` is damaged, of another version, or does not fit."""


class ModelFingerprintMismatch(SnapshotIncompatible):
    """A snapshot is of another model, or of the same one loaded with options that give other bits.

    Attributes
    ----------
    expected, found : str
        The fingerprints of the snapshot's model and of the loaded model, in hexadecimal digits.
    """

    def __init__(self, expected: str, found: str, detail: str = "") -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"expected model {expected}, got {found}{detail and f': {detail}'}")
        self.detail: str = detail or self.detail
