"""Records of requests (`--record`): the body, the answer as it is sent, and the receipts of the texts.

Headers are not kept. `Recording` stands between the gate and the connection; the folder's thread makes the
record, so that neither the event loop nor a client waits for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from oxillama.apps.server.callers import RequestContext, context
from oxillama.base.config import GenerationOptions
from oxillama.base.config.server import ServerConfig
from oxillama.base.lazy_import import lazy
from oxillama.base.version import __version__
from oxillama.engine.generation import Generation
from oxillama.errors import ConfigError, OxiLlamaError, ReceiptError
from oxillama.reference import CONTRACT

PROMPT_TOKEN_BYTES = 48
"""Memory of an id in the two lists of a prompt, with its integer."""
TOKEN_BYTES = 256
"""Memory of an id in the two lists of a text, with its piece of the text and its link of the receipt."""

if TYPE_CHECKING:
    from oxillama.sessions.records.folder import RecordFolder
    from oxillama.sessions.records.record import Head, Record, Text

T = TypeVar("T")

body_of: Callable[..., Any] = lazy("oxillama.sessions.records.redaction:body_of")
digest: Callable[..., str] = lazy("oxillama.sessions.records.redaction:digest")


def folder_of(config: ServerConfig) -> RecordFolder | None:
    """The folder of ``--record``, which takes records from now on; None without one. Raises ConfigError."""
    if config.record is None:
        return None
    try:
        from oxillama.sessions.records.folder import RecordFolder
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("oxillama.sessions.records"):
            raise
        raise ConfigError("record: needs oxillama.sessions.records, which is not installed") from error
    days = config.record_days
    return RecordFolder(config.record, config.record_bytes, None if days is None else days * 86400)


def with_receipt(call: Callable[[GenerationOptions], T], options: GenerationOptions) -> T:
    """The result of ``call``, which starts generations; with receipts if the server records, where possible.

    Raises what ``call`` raises.
    """
    here = context()
    if here.recording is None or options.receipt:
        return call(options)
    try:
        started = call(replace(options, receipt=True))
    except (ConfigError, ReceiptError) as error:
        started = call(options)  # raises the same error, unless the receipt was its cause
        here.recording.without = str(error)
        return started
    here.hides_receipts = True
    return started


def held_bytes(generation: Generation) -> int:
    """Memory of a generation that has ended: lists of tokens, pieces of the text, embeddings of media."""
    n_bytes = PROMPT_TOKEN_BYTES * len(generation.prompt_tokens) + TOKEN_BYTES * len(generation.tokens)
    return n_bytes + generation.media_bytes


class Recording:
    """The parts of a request and its answer that have passed so far.

    Attributes:
        without: the reason why the texts have no receipts; "" if they have receipts.
        snapshots: of texts that the server's end cuts.
    """

    def __init__(self, scope: Scope, config: ServerConfig) -> None:
        self.without = ""
        self.snapshots: list[bytes] = []
        self._scope, self._config, self._began = scope, config, time.time()
        self._request: list[bytes] = []
        self._answer: list[bytes] = []

    def wrap(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """``receive`` and ``send`` that keep copies of the messages, also of bytes written around them."""

        async def receiving() -> Message:
            message = await receive()
            self._request.append(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            self._answer.append(message.get("body", b""))
            await send(message)

        write_now = self._scope["state"].get("write_now")
        if write_now is not None:

            def writing(data: bytes) -> bool:
                is_sent: bool = write_now(data)
                if is_sent:
                    self._answer.append(data)
                return is_sent

            self._scope["state"]["write_now"] = writing
        return receiving, sending

    def replace_body(self, data: bytes) -> None:
        """Keeps the decompressed bytes of a body in place of the received bytes."""
        self._request = [data]

    def snapshot(self, generations: Sequence[Generation]) -> None:
        """Keeps snapshots of the unfinished texts; may run in any thread."""
        for generation in generations:
            if generation.is_running:
                try:
                    self.snapshots.append(generation.snapshot())
                except OxiLlamaError:  # the text has ended meanwhile
                    continue

    def end(self, folder: RecordFolder, found: RequestContext, id: str, status: int, seconds: float) -> None:
        """Queues the record for writing, after the end of the answer."""
        from oxillama.sessions.records.record import Head

        leases = self._scope["state"].get("leases") or ()
        hosted = leases[-1].hosted if leases else None
        path = None if hosted is None else hosted.path
        if path is None and hosted is not None and hosted.engine is not None:
            path = hosted.engine.config.model_path
        head = Head(
            id=id,
            time=self._began,
            path=self._scope["path"],
            status=status,
            seconds=seconds,
            model="" if hosted is None else hosted.name,
            model_path="" if path is None else os.path.abspath(os.fspath(path)),
            key=found.caller.name,
            library=__version__,
            contract=CONTRACT,
            kept=self._config.record_texts,
        )
        request, answer = b"".join(self._request), b"".join(self._answer)
        make = partial(self._made, head, request, answer, list(found.generations))
        n_bytes = len(request) + len(answer) + sum(map(len, self.snapshots))
        folder.add(make, n_bytes + sum(map(held_bytes, found.generations)))

    def _made(
        self, head: Head, request: bytes, answer: bytes, generations: Sequence[Generation]
    ) -> tuple[Record, Sequence[bytes]]:
        from oxillama.sessions.records.record import Record

        is_whole = head.kept == "all"
        texts = tuple(self._text(generation, is_whole) for generation in generations)
        head = replace(
            head,
            n_texts=len(texts),
            n_tokens=sum(text.n_tokens for text in texts),
            finish_reasons=[text.finish_reason for text in texts],
        )
        body, removed = body_of(request) if is_whole else (None, [])
        record = Record(
            head=head,
            request=body,
            request_hash=digest(request),
            request_bytes=len(request),
            removed=removed,
            answer=answer.decode("utf-8", "replace") if is_whole else None,
            answer_hash=digest(answer),
            answer_bytes=len(answer),
            texts=texts,
        )
        return record, self.snapshots

    def _text(self, generation: Generation, is_whole: bool) -> Text:
        from oxillama.sessions.records.record import Text

        raw, made = generation.raw_text.encode(), generation.receipt_so_far()
        receipt = None if made is None else made.to_json()
        return Text(
            finish_reason=generation.finish_reason or "cancelled",
            n_tokens=len(generation.tokens),
            n_bytes=len(raw),
            hash=digest(raw),
            receipt=receipt if is_whole else None,
            receipt_hash=None if receipt is None else digest(receipt),
            without=self.without if receipt is None else "",
        )
