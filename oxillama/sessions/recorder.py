"""Makes receipts: records what determines a text, and hashes the logits of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from blake3 import blake3

from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError, ReceiptError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.models.adapters.stack import Adaptation
from oxillama.sessions.chain import LINK_BYTES, START, LogitsChain
from oxillama.sessions.codec import Plain
from oxillama.sessions.options import canonical_json, plain_options
from oxillama.sessions.receipt import POINT_DIGITS, AdapterUse, MediumUse, Receipt


@dataclass(frozen=True)
class ReceiptState:
    """The state of an unfinished receipt, for a snapshot.

    Attributes:
        seed, context_size: as in the receipt.
        chain: the last link (`LogitsChain`).
    """

    seed: Annotated[int, (0, 2**64 - 1)]
    context_size: Annotated[int, (1, MAX_CONTEXT)]
    chain: Annotated[bytes, LINK_BYTES]


class Recorder:
    """Makes the receipt of one request.

    Args:
        head: the receipt before the first token.
    """

    def __init__(self, head: Receipt) -> None:
        self._head = head
        self._chain = LogitsChain()

    def state(self) -> ReceiptState:
        """The state to pass to `restore`, possibly in another process."""
        return ReceiptState(self._head.sampler["seed"], self._head.context_size, self._chain.digest)

    def restore(self, state: ReceiptState | None) -> None:
        """Continue the receipt of a text that began elsewhere. Raises ReceiptError for None."""
        if state is None:
            raise ReceiptError("receipt: expected its state, as the options ask for one, got none")
        sampler = {**self._head.sampler, "seed": state.seed}
        # the text will end when the smaller of the two contexts is full
        context_size = min(state.context_size, self._head.context_size)
        self._head = replace(self._head, sampler=sampler, context_size=context_size)
        self._chain.digest = state.chain

    def add(self, row: np.ndarray) -> bytes:
        """Add the logits of the next token; returns the token's link in the chain."""
        return self._chain.add(row)

    def receipt(self, tokens: Sequence[int], links: Sequence[bytes], finish_reason: str | None) -> Receipt:
        """The receipt of the tokens that the consumer received, with their links.

        A text that ended with an error, or was not read to its end, counts as cancelled.
        """
        return replace(
            self._head,
            tokens=list(tokens),
            points=[link.hex()[:POINT_DIGITS] for link in links],
            chain=(links[-1] if links else START).hex(),
            finish_reason=ENDS.get(finish_reason, finish_reason or ""),
        )


ENDS: dict[str | None, str] = {"tool_calls": "stop", "error": "cancelled", None: "cancelled"}
"""Finish reasons that a receipt replaces; all others are kept."""


def receipt_head(
    model: ModelFingerprint,
    config: EngineConfig,
    context_size: int,
    adapters: Adaptation | None,
    prompt: Sequence[int],
    options: GenerationOptions,
    seed: int,
) -> Receipt:
    """The receipt of a request before its first token.

    Args:
        model: the fingerprint; only its content hash is used.
        config, context_size: the engine's options and context size.
        adapters: the adapters of the sequence.
        seed: the sampler's seed, given or drawn.

    Raises:
        ConfigError: the tokenizer is not from the model's file; or a schema is not JSON.
        ReceiptError: there are more stop strings or adapters than a receipt may hold.
    """
    if config.tokenizer_path is not None:
        raise ConfigError("receipt: cannot be combined with tokenizer_path, whose file it does not name")
    assert options.sampler is not None
    sampler = plain_options(replace(options.sampler, seed=seed))
    applied = () if adapters is None else adapters.applied
    return Receipt(
        **Receipt.facts(model, config, context_size),
        adapters=tuple(AdapterUse(use.lora.fingerprint.hex(), use.scale, use.start) for use in applied),
        prompt=list(prompt),
        sampler=sampler,
        grammar=grammar_hash(options.sampler, sampler),
        stop=list(options.stop or ()),
        max_tokens=options.max_tokens,
        tokens=[],
        finish_reason="length",
        points=[],
        chain=START.hex(),
    )


def grammar_hash(config: SamplerConfig, plain: Plain) -> str | None:
    """Hash of the source of the grammar, schema, pattern or choices; None without a constraint.

    ``plain`` is the configuration as plain data."""
    if config.constraint is None:
        return None
    return blake3(canonical_json([config.constraint, plain[config.constraint]])).hexdigest()


RECEIPT = "receipt"
"""The key in `Request.parts`."""


def attach(model: LoadedModel, request: TextRequest) -> None:
    """Let a request make a receipt. Raises ConfigError and ReceiptError as `receipt_head` does."""
    facts = (model.fingerprint, model.config, model.context_size, request.sequence.adapters, request.prompt)
    followed = replace(request.options, sampler=request.sampler.config)
    head = receipt_head(*facts, followed, request.sampler.seed)
    embeddings = request.sequence.embeddings
    if embeddings is not None:
        media = tuple(MediumUse(use.digest.hex(), list(use.starts)) for use in embeddings.media)
        projector, version = embeddings.projector().hex(), embeddings.preprocessing
        head = replace(head, media=media, projector=projector, preprocessing=version)
    recorder = Recorder(head)
    request.parts[RECEIPT] = recorder
    request.record_row = recorder.add
