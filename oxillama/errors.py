"""All errors that the library raises on purpose, in one hierarchy.

Each is also a subclass of a builtin exception, so that callers can catch it without knowing this library. A
message names the object, the expected value and the actual one.
"""

from __future__ import annotations

MOST_CHARACTERS = 10_000
"""Of a message. A file may hold a text of any length where a short one is expected."""


def in_short(text: str) -> str:
    """A text of at most about `MOST_CHARACTERS`: the middle of a longer text is left out, with a note."""
    half, n = MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS
    return text if n <= 0 else f"{text[:half]} ... ({n} characters left out) ... {text[-half:]}"


class OxiLlamaError(Exception):
    """Base of every error raised by oxillama. ``str`` gives its message `in_short`."""

    def __str__(self) -> str:
        return in_short(super().__str__())


class ConfigError(OxiLlamaError, ValueError):
    """An option is outside its range or not supported; the message names the field."""


class RewindError(ConfigError):
    """A sequence cannot be truncated to the requested position."""


class RewindNotSupported(RewindError):
    """No checkpoint exists before the requested position."""


class PositionBeyondEnd(RewindError):
    """A sequence was asked to keep more tokens than it has.

    Attributes:
        target: requested number of tokens.
        current: existing number of tokens.
    """

    def __init__(self, target: int, current: int) -> None:
        self.target: int = target
        self.current: int = current
        super().__init__(f"n_tokens: expected at most {current}, got {target}")


class ModelFileError(OxiLlamaError, OSError):
    """A model file cannot be opened or read (missing, a directory, no permission)."""


class StageFailed(OxiLlamaError, RuntimeError):
    """A stage of a pipeline has failed; the keys and values of all sequences are lost."""


class GGUFError(OxiLlamaError, ValueError):
    """A GGUF file is malformed, truncated, or of an unknown kind.

    Attributes:
        key: The metadata key or tensor name at fault, where there is one.
        offset: The byte offset in the file at which the fault was found.
    """

    def __init__(self, message: str, *, key: str | None = None, offset: int | None = None) -> None:
        self.key: str | None = key
        self.offset: int | None = offset
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

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        super().__init__(f"{name}: expected the name of a matrix of the model")

    def __str__(self) -> str:
        return in_short(str(self.args[0]))  # KeyError would quote it


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

    Attributes:
        text: The text that was generated in time.
    """

    def __init__(self, message: str, text: str = "") -> None:
        self.text: str = text
        super().__init__(message)


class AnswerCut(OxiLlamaError, ValueError):
    """A text that was to be parsed ended before its schema was met, by ``max_tokens`` for example.

    Attributes:
        text: The text as far as it came.
    """

    def __init__(self, message: str, text: str = "") -> None:
        self.text: str = text
        super().__init__(message)


class GrammarError(OxiLlamaError, ValueError):
    """A grammar is malformed, beyond a stated limit, or cannot be followed any further.

    Attributes:
        line: of the grammar's text where the fault was found, from 1 on; None without a text.
        column: in that line, from 1 on.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        self.line: int | None = line
        self.column: int | None = column
        place = f"line {line}, column {column}: " if line is not None else ""
        super().__init__(place + message)


class ReceiptError(OxiLlamaError, ValueError):
    """A receipt cannot be read, is malformed, or describes an impossible request."""


class SnapshotIncompatible(OxiLlamaError, ValueError):
    """A snapshot is damaged, of another version, or does not fit the engine that is to resume it.

    Attributes:
        detail: What was expected, and what was found.
    """

    def __init__(self, detail: str) -> None:
        self.detail: str = detail
        super().__init__(f"snapshot: {detail}")


class SpecSnapshotIncompatible(SnapshotIncompatible):
    """A snapshot of a `SpeculativeEngine` is damaged, of another version, or does not fit."""


class ModelFingerprintMismatch(SnapshotIncompatible):
    """A snapshot belongs to another model, or to the same model with options that change the bits.

    Attributes:
        expected: the fingerprint of the snapshot's model, in hexadecimal digits.
        found: the fingerprint of the loaded model.
    """

    def __init__(self, expected: str, found: str, detail: str = "") -> None:
        self.expected: str = expected
        self.found: str = found
        super().__init__(f"expected model {expected}, got {found}{detail and f': {detail}'}")
        self.detail: str = detail or self.detail
