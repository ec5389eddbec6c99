"""Receipts of scores: everything that determines a score, and hashes of the logits, as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from oxillama.errors import ConfigError, PromptError, ReceiptError
from oxillama.sessions.receipt import POINT_DIGITS, OfEngine, from_json, read_file

if TYPE_CHECKING:
    from oxillama.apps.evaluation.scoring import Score
    from oxillama.engine.engine import InferenceEngine

FORMAT = "oxillama score"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ScoreReceipt(OfEngine):
    """Everything that determines the score of a continuation. The fields are the keys of the JSON object.

    Attributes:
        library, model, compute, quantize, kv_type, context_size: as in `Receipt`.
        adapters: [hash, scale, first position] of each adapter, in order.
        prompt, tokens: ids of the context and of the continuation.
        logprobs: log-probability of each token.
        greedy: whether each is the top token.
        points: for each token, the first 8 hexadecimal digits of its link in the chain (`LogitsChain`).
        chain: the last link, 64 hexadecimal digits.
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
        """Make the receipt of a score with hashed logits."""
        config, adapters = engine.config, engine.model.adaptation(None, [*prompt, *tokens[:-1]])
        if config.tokenizer_path is not None:
            raise ConfigError("receipts: cannot be combined with tokenizer_path, whose file they do not name")
        applied = () if adapters is None else adapters.applied
        return cls(
            **cls.facts(engine.model.fingerprint, config, engine.context_size),
            adapters=[[use.lora.fingerprint.hex(), use.scale, use.start] for use in applied],
            prompt=list(prompt),
            tokens=list(tokens),
            logprobs=list(score.logprobs),
            greedy=list(score.greedy),
            points=[link.hex()[:POINT_DIGITS] for link in score.links],
            chain=score.links[-1].hex(),
        )

    def differences(self, other: ScoreReceipt) -> list[str]:
        """The names of the fields that differ, without the library's version."""
        names = [field.name for field in fields(self) if field.name != "library"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    # --- JSON -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The receipt as JSON text, one line for each field. Floats are written exactly, as repr."""
        pairs = {"format": FORMAT, "version": VERSION, **asdict(self)}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in pairs.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the text of `to_json`. Raises ReceiptError if it is not such a receipt."""
        return from_json(cls, text, "receipt", FORMAT, VERSION)


def is_score(path: str | os.PathLike[str]) -> bool:
    """Whether a file contains, or claims to contain, a receipt of a score."""
    return f'"format": "{FORMAT}"'.encode() in read_file(path, "receipt")[:200]


def verify_score(engine: InferenceEngine, receipt: ScoreReceipt) -> list[str]:
    """Score the continuation again; returns the names of the fields that differ from the receipt.

    Raises:
        ReceiptError: the prompt or the tokens cannot be run. And the errors of `scores`.
    """
    from oxillama.apps.evaluation.scoring import scores  # on use: needs kernels

    try:
        (found,) = scores(engine, [(receipt.prompt, receipt.tokens)], hashes=True)
    except PromptError as error:
        raise ReceiptError(f"receipt: {error}") from None
    return receipt.differences(ScoreReceipt.of(engine, receipt.prompt, receipt.tokens, found))
