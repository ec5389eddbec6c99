"""A receipt of a score: what it follows from, and hashes of the logits, as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama._version import __version__
from oxillama.atomic_file import replaced_file
from oxillama.errors import ConfigError, PromptError, ReceiptError
from oxillama.sessions.receipt import MOST_BYTES, POINT_DIGITS

if TYPE_CHECKING:
    from oxillama.engine.engine import InferenceEngine
    from oxillama.evaluation.scoring import Score

FORMAT = "oxillama score"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ScoreReceipt:
    """What the score of a continuation follows from. The fields are the keys of the JSON object.

    Attributes
    ----------
    library : version of the library that made it.
    model : hash of the model's file, 64 hexadecimal digits.
    compute, quantize, kv_type, context_size : as in `Receipt`.
    adapters : [hash, scale, first position] of each, in order.
    prompt, tokens : ids of the context and of the continuation.
    logprobs : of each token of the continuation. greedy : whether each is the likeliest one.
    points : for each token the first 8 hexadecimal digits of the link of its logits (`LogitsChain`).
    chain : the last link, 64 hexadecimal digits.
    """

    library: str
    model: str
    compute: str
    quantize: str | None
    kv_type: str
    context_size: int
    adapters: list[list[Any]]
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    greedy: list[bool]
    points: list[str]
    chain: str

    @classmethod
    def of(cls, engine: InferenceEngine, prompt: list[int], tokens: list[int], score: Score) -> ScoreReceipt:
        """The receipt of a score, whose logits have been hashed."""
        config, adapters = engine.config, engine.model.adaptation(None, [*prompt, *tokens[:-1]])
        if config.tokenizer_path is not None:
            raise ConfigError("receipts: cannot be combined with tokenizer_path, whose file they do not name")
        applied = () if adapters is None else adapters.applied
        return cls(
            library=__version__,
            model=engine.model.fingerprint.content.hex(),
            compute=config.compute,
            quantize=None if config.quantize is None else config.quantize.upper(),
            kv_type=config.kv_type,
            context_size=engine.context_size,
            adapters=[[use.lora.fingerprint.hex(), use.scale, use.start] for use in applied],
            prompt=list(prompt),
            tokens=list(tokens),
            logprobs=list(score.logprobs),
            greedy=list(score.greedy),
            points=[link.hex()[:POINT_DIGITS] for link in score.links],
            chain=score.links[-1].hex(),
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """The fields of `EngineConfig` that an engine needs to verify it."""
        names = ("compute", "quantize", "kv_type", "context_size")
        return {name: getattr(self, name) for name in names}

    def differences(self, other: ScoreReceipt) -> list[str]:
        """The names of the fields that differ, but for the version of the library."""
        names = [field.name for field in fields(self) if field.name != "library"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    # --- JSON -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The receipt as JSON text, one line for each field. Numbers are as Python writes them: exact."""
        pairs = {"format": FORMAT, "version": VERSION, **asdict(self)}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in pairs.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> ScoreReceipt:
        """The receipt that `to_json` wrote. Raises ReceiptError if it is none."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"receipt: expected JSON, got other text: {error}") from None
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ReceiptError(f'receipt: expected an object of the format "{FORMAT}", got another value')
        if found.pop("version", None) != VERSION:
            raise ReceiptError(f"receipt: expected version {VERSION}, got another one")
        names = [field.name for field in fields(cls)]
        if sorted(found) != sorted(names):
            raise ReceiptError(f"receipt: expected the fields {', '.join(names)}, got others")
        lists = ("adapters", "prompt", "tokens", "logprobs", "greedy", "points")
        for name in names:
            kind = list if name in lists else int if name == "context_size" else (str, type(None))
            if not isinstance(found[name], kind):
                raise ReceiptError(
                    f"receipt: {name}: expected another type than {type(found[name]).__name__}"
                )
        return cls(**found)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoreReceipt:
        """The receipt in a file. Raises ReceiptError if it cannot be read, and as `from_json`."""
        return cls.from_json(read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the receipt to a file, which is replaced as a whole. Raises ModelFileError if it cannot."""
        with replaced_file(Path(path), synced=False) as file:
            file.write(self.to_json().encode())


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a receipt's file. Raises ReceiptError if it cannot be read, or is too long for one."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReceiptError(f"receipt: {os.fspath(path)} cannot be read: {reason}") from error
    if len(data) > MOST_BYTES:
        raise ReceiptError(f"receipt: expected at most {MOST_BYTES} bytes, got more")
    return data


def is_score(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a receipt of a score, or says so."""
    return f'"format": "{FORMAT}"'.encode() in read(path)[:200]


def verify_score(engine: InferenceEngine, receipt: ScoreReceipt) -> list[str]:
    """Scores the continuation again; the names of the fields that differ from the receipt.

    Raises
    ------
    ReceiptError : prompt or tokens are none that can be run.
    And the errors of `scores`.
    """
    from oxillama.evaluation.scoring import scores  # kernels, which a receipt of a text is checked without

    try:
        (found,) = scores(engine, [(receipt.prompt, receipt.tokens)], hashes=True)
    except PromptError as error:
        raise ReceiptError(f"receipt: {error}") from None
    return receipt.differences(ScoreReceipt.of(engine, receipt.prompt, receipt.tokens, found))
