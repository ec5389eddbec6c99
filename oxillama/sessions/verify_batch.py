"""Verifies many receipts, each as `InferenceEngine.verify` does."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor

from oxillama.base.config.adapters import Adapters
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.loading import listed
from oxillama.sessions.options import Stages
from oxillama.sessions.receipt import Receipt
from oxillama.sessions.verdict import Verification
from oxillama.sessions.verification import verify

WORKERS = 3
"""Receipts checked at a time: the tokens of one are chosen while the rows of another run."""


def verify_batch(
    engine: InferenceEngine,
    receipts: Iterable[Receipt | str | bytes],
    *,
    adapters: Adapters = (),
    stages: Stages | None = None,
    sample: int | None = None,
    return_exceptions: bool = False,
) -> list[Verification | BaseException]:
    """Verify many receipts as `InferenceEngine.verify` does; one's tokens are chosen while rows of others
    run.

    Args:
        adapters: as for `InferenceEngine.verify`.
        stages: as for `InferenceEngine.verify`.
        sample: as for `InferenceEngine.verify`.
        return_exceptions: True: a receipt's error takes the place of its result. False: the first error is
            raised, and the remaining receipts are not checked.

    Raises:
        ConfigError: ``receipts`` is a single text.

    And the errors of `InferenceEngine.verify`.
    """
    model, is_left = engine.model, threading.Event()

    def check() -> None:
        if is_left.is_set():
            raise CancelledError

    def one(receipt: Receipt | str | bytes) -> Verification | BaseException:
        try:
            return verify(model, receipt, adapters, stages, check, sample=sample)
        except Exception as error:
            if not return_exceptions:
                is_left.set()
            return error

    # stages in Python take turns
    with ThreadPoolExecutor(1 if stages else WORKERS, "oxillama-verify") as workers:
        try:
            found = list(workers.map(one, listed(receipts, "receipts")))
        finally:
            is_left.set()
    for error in found:
        if isinstance(error, Exception) and not isinstance(error, CancelledError) and not return_exceptions:
            raise error
    return found
