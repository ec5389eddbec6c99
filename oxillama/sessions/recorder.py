"""Makes receipts: notes what a text follows from, and hashes the logits it is chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from blake3 import blake3

from oxillama._version import __version__
from oxillama.adapters.stack import Adaptation
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig
from oxillama.config.engine import MAX_CONTEXT
from oxillama.errors import ConfigError, ReceiptError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.sessions.chain import LINK_BYTES, START, LogitsChain
from oxillama.sessions.codec import Plain
from oxillama.sessions.options import canonical_json, plain_options
from oxillama.sessions.receipt import POINT_DIGITS, AdapterUse, Receipt


@dataclass(frozen=True, eq=False)
class ReceiptState:
    """The receipt of a text that goes on, for a snapshot.

    Attributes
    ----------
    context_size : that the receipt names.
    links : uint8 (tokens, 32), the link of each token (`LogitsChain`).
    """

    context_size: Annotated[int, (1, MAX_CONTEXT)]
    links: Annotated[np.ndarray, "|u1", 2]


class Recorder:
    """Makes the receipt of one request.

    Parameters
    ----------
    head : the receipt as it is before the first token.
    """

    def __init__(self, head: Receipt) -> None:
        self._head = head
        self._chain = LogitsChain()

    def state(self, links: Sequence[bytes]) -> ReceiptState:
        """What `restore` takes, after tokens with these links."""
        rows = np.frombuffer(b"".join(links), np.uint8).reshape(len(links), LINK_BYTES)
        return ReceiptState(self._head.context_size, rows)

    def restore(self, state: ReceiptState, seed: int, n_tokens: int) -> list[bytes]:
        """Goes on with the receipt of a text that began elsewhere; the links of its tokens so far.

        Raises ReceiptError if there is not one for each token.
        """
        if state.links.shape != (n_tokens, LINK_BYTES):
            raise ReceiptError(f"receipt: links: expected {n_tokens}, got {state.links.shape}")
        links = [row.tobytes() for row in state.links]
        sampler = {**self._head.sampler, "seed": seed}
        # the text has ended where the smaller of the two contexts is full
        context_size = min(state.context_size, self._head.context_size)
        self._head = replace(self._head, sampler=sampler, context_size=context_size)
        self._chain.digest = links[-1] if links else START
        return links

    def add(self, row: np.ndarray) -> bytes:
        """Takes the logits of the next token; the link of the chain for it."""
        return self._chain.add(row)

    def receipt(self, tokens: Sequence[int], links: Sequence[bytes], finish_reason: str) -> Receipt:
        """The receipt of the tokens that the reader got, each with its link."""
        return replace(
            self._head,
            tokens=list(tokens),
            points=[link.hex()[:POINT_DIGITS] for link in links],
            chain=(links[-1] if links else START).hex(),
            finish_reason=finish_reason,
        )


def receipt_head(
    model: ModelFingerprint,
    config: EngineConfig,
    context_size: int,
    adapters: Adaptation | None,
    prompt: Sequence[int],
    options: GenerationOptions,
    seed: int,
) -> Receipt:
    """What a request begins with.

    Parameters
    ----------
    model : of which the content counts.
    config, context_size : of the engine.
    adapters : of the sequence.
    seed : that the sampler has drawn or was given.

    Raises
    ------
    ConfigError : the tokenizer is not that of the model's file; or a schema is not JSON.
    ReceiptError : there are more stop strings or adapters than a receipt may name.
    """
    if config.tokenizer_path is not None:
        raise ConfigError("receipt: cannot be combined with tokenizer_path, whose file it does not name")
    assert options.sampler is not None
    sampler = plain_options(replace(options.sampler, seed=seed))
    applied = () if adapters is None else adapters.applied
    return Receipt(
        library=__version__,
        model=model.content.hex(),
        compute=config.compute,
        quantize=None if config.quantize is None else config.quantize.upper(),
        kv_type=config.kv_type,
        context_size=context_size,
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
    """Hash of the source of the grammar, schema, pattern or choices; None without one.

    ``plain`` is the configuration as plain data."""
    if config.constraint is None:
        return None
    return blake3(canonical_json([config.constraint, plain[config.constraint]])).hexdigest()
