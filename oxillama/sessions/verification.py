"""Checks receipts: runs prompt and text in one pass, and repeats the sampler's choices.

All rows of logits of a text are computed together, like a prompt's, so checking takes a fraction of the time
of generating. Nothing in the receipt is trusted: each row is hashed, each token is chosen again, and each end
is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Listed
from random import SystemRandom
from typing import Any, TypedDict

import numpy as np

from oxillama.base.config import GenerationOptions, SamplerConfig, checks
from oxillama.base.config.adapters import Adapters, adapter_specs
from oxillama.base.version import __version__
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import Piece, TextRequest
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, GrammarError, PromptError, ReceiptError, SamplingError
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation
from oxillama.sessions.chain import LogitsChain
from oxillama.sessions.choices import check_skipping, choices
from oxillama.sessions.options import Stages, options_of
from oxillama.sessions.receipt import POINT_DIGITS, Receipt
from oxillama.sessions.recorder import grammar_hash
from oxillama.sessions.session import Session
from oxillama.sessions.verdict import Difference, Verification, missed

LOGIT_BYTES = 64 << 20
"""The maximum size in bytes of the logits computed at a time."""
NO_ROW: np.ndarray = np.empty(0, np.float32)


class VerifyFields(TypedDict, total=False):
    """The options of `InferenceEngine.verify`."""

    adapters: Adapters
    stages: Stages | None
    media: Listed[Any]
    sample: int | None


def verify(
    model: LoadedModel,
    receipt: Receipt | str | bytes,
    adapters: Adapters = (),
    stages: Stages | None = None,
    check: Callable[[], object] = lambda: None,
    media: Listed[Any] = (),
    sample: int | None = None,
) -> Verification:
    """Check a receipt with a loaded model; see `InferenceEngine.verify`.

    ``check`` is called before each pass and may raise.
    """
    if not isinstance(receipt, Receipt):
        receipt = Receipt.from_json(receipt)
    request: TextRequest | None = None
    n = len(receipt.tokens)
    positions = positions_of(n, sample)
    found = Difference("", 0, f"verified: {n} tokens")
    n_checked = None if positions is None else len(positions)
    if n_checked is not None:
        found.message = (
            f"verified: {n_checked} of {n} tokens; a change of one token is missed with a probability of "
            f"{missed(n, n_checked):.3g}"
        )
    try:
        check_model(model, receipt)
        adaptation = adaptation_of(model, receipt, adapters)
        embeddings = input_embeddings_of(model, receipt, media)
        request = new_request(model, receipt, stages)
        with Session(model, model.config.sampler, adaptation, embeddings) as session:
            rows = rows_of(model, session, receipt, check, positions)
            replay(request, receipt, rows, model.runner.n_threads, positions)
    except Difference as difference:
        found = difference
        if receipt.library != __version__:
            found.message += f" (oxillama {receipt.library} made the receipt, this is {__version__})"
    at = found.at if found.cause else None
    return Verification(n, found.cause, at, found.message, text_of(request), n_checked)


def positions_of(n: int, sample: int | None) -> frozenset[int] | None:
    """``sample`` random positions of ``n``, from the system's random numbers; None: all positions.

    Raises ConfigError for a ``sample`` below 1.
    """
    if sample is None:
        return None
    checks.integer("sample", sample, 1)
    return None if sample >= n else frozenset(SystemRandom().sample(range(n), sample))


def check_model(model: LoadedModel, receipt: Receipt) -> None:
    """Raise Difference for another model, ConfigError for unsuitable engine options, or ReceiptError."""
    model.runner.check_logits()
    content = model.fingerprint.content.hex()
    if receipt.model != content:
        raise Difference("model", 0, f"another model: expected {receipt.model}, got {content}")
    config, n_vocab = model.config, model.spec.n_vocab
    quantize = config.quantize_format
    facts = {"compute": config.compute, "quantize": quantize, "kv_type": config.kv_type}
    if model.spec.depends_on_context:
        facts["context_size"] = str(model.context_size)
    for name, fact in facts.items():
        wanted = getattr(receipt, name)
        if fact != (None if wanted is None else str(wanted)):
            raise ConfigError(f"{name}: expected {wanted} as in the receipt, got {fact}")
    if config.tokenizer_path is not None:
        raise ConfigError("tokenizer_path: expected none, as a receipt is of the file's own tokenizer")
    n_rows = len(receipt.prompt) + max(0, len(receipt.tokens) - 1)
    if n_rows > model.context_size:
        raise ConfigError(
            f"context_size: expected at least {n_rows} for the receipt, got {model.context_size}"
        )
    if max(receipt.prompt) >= n_vocab:
        raise ReceiptError(f"receipt: prompt: expected token ids below {n_vocab}, got {max(receipt.prompt)}")


def adapters_of(model: LoadedModel, receipt: Receipt, adapters: Adapters) -> dict[str, LoadedLora]:
    """The engine's and the given adapters by fingerprint; a file is loaded with ``everywhere`` if the receipt
    names that fingerprint."""
    wanted = {use.fingerprint for use in receipt.adapters}
    known = {lora.fingerprint.hex(): lora for lora, _ in model.feature("adapters").stack}
    for source, _ in adapter_specs("adapters", adapters):
        lora = model.feature("adapters").from_file(source) if isinstance(source, str) else source
        everywhere = checks.instance("adapters", lora, LoadedLora).as_everywhere()
        if everywhere.fingerprint.hex() in wanted and lora.fingerprint.hex() not in wanted:
            lora = everywhere
        known[lora.fingerprint.hex()] = model.feature("adapters").load(lora)
    return known


def adaptation_of(model: LoadedModel, receipt: Receipt, adapters: Adapters) -> Adaptation | None:
    """The receipt's adapters, from the given ones and the engine's. Raises Difference."""
    known = adapters_of(model, receipt, adapters)
    for use in receipt.adapters:
        if use.fingerprint not in known:
            got = ", ".join(sorted(known)) or "none"
            raise Difference("adapters", 0, f"another adapter: expected {use.fingerprint}, got {got}")
    chosen = [(known[use.fingerprint], use.scale) for use in receipt.adapters]
    found: Adaptation | None = model.adaptation(chosen, receipt.prompt)
    applied = [] if found is None else [(use.lora.fingerprint.hex(), use.start) for use in found.applied]
    claimed = [(use.fingerprint, use.start) for use in receipt.adapters]
    if applied != claimed:
        raise Difference("adapters", 0, "the adapters would not apply from where the receipt says")
    return found


def input_embeddings_of(model: LoadedModel, receipt: Receipt, media: Listed[Any]) -> Any:
    """The input embeddings of the receipt's media, or None for a receipt without media.

    Raises:
        Difference: a medium or the projector file differs.
        ConfigError: the number of media differs, or there is no projector.
        MediaError: one cannot be decoded.
    """
    if len(media) != len(receipt.media):
        raise ConfigError(f"media: expected {len(receipt.media)} as in the receipt, got {len(media)}")
    if not receipt.media:
        return None
    feature = model.feature("media")
    content = feature.encoder.content.hex()
    if content != receipt.projector:
        raise Difference("media", 0, f"another projector: expected {receipt.projector}, got {content}")
    if receipt.preprocessing != feature.preprocessing:
        versions = f"expected version {receipt.preprocessing}, got {feature.preprocessing}"
        raise Difference("media", 0, f"another preprocessing of pictures and sounds: {versions}")
    decoded = [feature.decode(medium) for medium in media]
    for i, (use, medium) in enumerate(zip(receipt.media, decoded)):
        got = medium.digest.hex()
        if got != use.digest:
            raise Difference("media", 0, f"medium {i}: expected {use.digest}, got {got}")
    try:
        return feature.embeddings(decoded, [use.starts for use in receipt.media], len(receipt.prompt))
    except PromptError as error:
        raise Difference("media", 0, str(error)) from None


def new_request(model: LoadedModel, receipt: Receipt, stages: Stages | None) -> TextRequest:
    """A request like the receipt's, not submitted.

    Raises:
        ConfigError, GrammarError: the sampler's options are invalid, or name a stage that is not given.
        ReceiptError: the grammar is not the one that was hashed.
    """
    sampler = options_of(SamplerConfig, receipt.sampler, stages)
    if sampler.seed is None:
        raise ReceiptError("receipt: seed: expected an integer, got none")
    if grammar_hash(sampler, receipt.sampler) != receipt.grammar:
        raise ReceiptError("receipt: grammar: expected the hash of the grammar, got another one")
    options = GenerationOptions(sampler=sampler, max_tokens=receipt.max_tokens, stop=receipt.stop)
    sequence = Sequence(model.pool, receipt.prompt)
    return TextRequest(
        sequence, options, model.sampler(sampler), model.tokenizer, receipt.context_size, whole=True
    )


def rows_of(
    model: LoadedModel,
    session: Session,
    receipt: Receipt,
    check: Callable[[], object],
    positions: frozenset[int] | None = None,
) -> Iterator[np.ndarray]:
    """float32 (tokens, vocab): the logits of each token, in blocks, up to the first invalid token id, or to
    the last of ``positions``.

    ``check`` is called before each pass and may raise.
    """
    prompt, tokens, n_vocab = receipt.prompt, receipt.tokens, model.spec.n_vocab
    first = session.whole_from(len(prompt) - 1)
    n_known = next((i for i, token in enumerate(tokens) if token >= n_vocab), len(tokens) - 1)
    if positions is not None:
        n_known = min(n_known, max(positions))
    skipped = len(prompt) - 1 - first
    run = [*prompt[first:], *tokens[:n_known]] if tokens else []
    if run and first:
        session.prefill(prompt[:first])
    step = max(1, skipped + 1, LOGIT_BYTES // (4 * n_vocab))
    for start in range(0, len(run), step):
        check()
        yield session.logits(run[start : start + step])[0 if start else skipped :]


def with_rest(
    blocks: Iterator[np.ndarray], n: int, positions: frozenset[int] | None
) -> Iterator[Listed[np.ndarray | None]]:
    """The blocks of rows; after the last of ``positions``, None for each of the remaining tokens of ``n``."""
    for block in blocks:
        n -= len(block)
        yield block  # type: ignore[misc]
    if positions is not None and n:
        yield [None] * n


def replay(
    request: TextRequest,
    receipt: Receipt,
    blocks: Iterator[np.ndarray],
    n_threads: int,
    positions: frozenset[int] | None = None,
) -> None:
    """Choose every token again, or those at ``positions``. Raises Difference at the first that differs."""
    chain, tokens, n, sampler = LogitsChain(), receipt.tokens, len(receipt.tokens), request.sampler
    reason, i = request.limit, 0
    if positions is not None:
        check_skipping(sampler)
    sampler.feed(receipt.prompt)
    for block in with_rest(blocks, n, positions):
        rows = [None if row is None else request.row(row) for row in block]
        wanted = [positions is None or i + k in positions for k in range(len(rows))]
        chosen = choices(sampler, rows, tokens[i : i + len(rows)], wanted, n_threads)
        for row, is_wanted in zip(rows, wanted):
            token = tokens[i]
            if reason is not None:
                raise Difference("end", i, f"token {i}: the text should have ended before it ({reason})")
            if row is not None and positions is None:
                link = chain.add(row).hex()
                if link[:POINT_DIGITS] != receipt.points[i] or (i == n - 1 and link != receipt.chain):
                    raise Difference("logits", i, f"token {i}: the logits differ from here on")
            if not is_wanted and token >= request.n_vocab:
                raise Difference("token", i, f"token {i}: expected {token}, which is no token")
            try:
                choice = next(chosen)
            except (SamplingError, GrammarError) as error:
                raise Difference(
                    "token", i, f"token {i}: expected {token}, none can be chosen: {error}"
                ) from None
            if choice != token:
                raise Difference("token", i, f"token {i}: expected {token}, the sampler chooses {choice}")
            reason = request.take(token, NO_ROW if row is None else row)
            i += 1
    if not n and receipt.chain != chain.digest.hex():
        raise Difference("logits", 0, "the chain of no logits differs")
    if receipt.finish_reason in ("stop", "length") and reason != receipt.finish_reason:
        told = "goes on" if reason is None else f"ends with {reason}"
        raise Difference("end", n, f"token {n}: expected the end ({receipt.finish_reason}), the text {told}")


def text_of(request: TextRequest | None) -> str:
    """The text of the tokens that a request has accepted."""
    if request is None:
        return ""
    request.finish("done")
    events = [request.events.get() for _ in range(request.n_events)]
    return "".join(event.text for event in events if isinstance(event, Piece))
