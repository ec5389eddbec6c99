"""``replay`` generates the texts of a recorded request again, from the records of ``serve --record``."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oxillama.apps.cli import options
from oxillama.apps.cli.console import print_json, print_rows
from oxillama.apps.cli.models import add_model
from oxillama.apps.cli.verify import add_check_options, failed, print_verdict, verified
from oxillama.errors import ConfigError, ReceiptError

if TYPE_CHECKING:
    from typing import Any

    from oxillama import Receipt, Verification
    from oxillama.sessions.records.record import Head, Record, Text


def add_commands(commands: Any) -> None:
    replay = options.add_command(
        commands,
        "replay",
        help="generate the texts of a recorded request again",
        description="Generates the texts of a request again that a server has recorded, and compares their "
        "tokens, logits and bytes. The exit code is 0 if all are the same, 1 if one is not, 2 if one cannot "
        "be generated. Without ID it lists the records.",
        examples="""\
  oxillama serve model.gguf --record records
  oxillama replay --record records
  oxillama replay req_3f0c --record records
""",
    )
    replay.add_argument(
        "id", metavar="ID", nargs="?", help="of the request (x-request-id), or a record's file"
    )
    replay.add_argument("--record", metavar="FOLDER", required=True, help="folder that serve records in")
    add_model(replay, "--model", default="the recorded path")
    replay.add_argument(
        "--receipt",
        metavar="FILE",
        action="append",
        default=[],
        help="receipt of a text of which the record has a hash alone; one for each text, in order",
    )
    add_check_options(replay)
    replay.add_argument("--text", action="store_true", help="write the text that was generated again, too")
    replay.add_argument("--json", action="store_true", help="write the list as JSON")
    replay.set_defaults(command=run_replay)


def run_replay(args: argparse.Namespace) -> int:
    from oxillama.sessions.records.record import find, read_record

    if args.id is None:
        return list_records(args)
    if args.json:
        raise ConfigError("json: expected no ID beside it: it is for the list")
    return replayed(args, read_record(find(args.record, args.id)))


def list_records(args: argparse.Namespace) -> int:
    """Writes a line for each record, the oldest first."""
    from oxillama.sessions.records.record import read_head, records_in

    heads, code = [], 0
    for path in records_in(args.record):
        try:
            heads.append(read_head(path))
        except ReceiptError as error:
            if path.exists():  # a limit may have removed it meanwhile
                code = failed(error)
    if args.json:
        print_json([vars(head) for head in heads])
    elif heads:
        columns = ("time", "id", "path", "status", "model", "texts", "tokens", "finish")
        print_rows([columns, *map(row_of, heads)], right=(3, 5, 6))
    return code


def row_of(head: Head) -> tuple[str, ...]:
    time = datetime.fromtimestamp(head.time, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    numbers = (str(head.status), head.model, str(head.n_texts), str(head.n_tokens))
    return (time, head.id, head.path, *numbers, ", ".join(head.finish_reasons))


def replayed(args: argparse.Namespace, record: Record) -> int:
    """Generates the texts of a record again; the exit code."""
    from oxillama.sessions.records.record import receipt_from

    given = [read_bytes(name) for name in args.receipt]
    if given and len(given) != len(record.texts):
        raise ConfigError(f"receipt: expected {len(record.texts)}, one for each text, got {len(given)}")
    args.model = args.model or record.head.model_path
    if not args.model:
        raise ConfigError("model: expected one, as the record names no file, got none")
    several, code = len(record.texts) > 1, 0
    if several and (args.media or args.mmproj):
        raise ConfigError("media: expected a record of one text, whose media they are")
    receipts: dict[str, Receipt] = {}
    texts = {f"{record.head.id}[{i}]" if several else record.head.id: t for i, t in enumerate(record.texts)}
    for i, (name, text) in enumerate(texts.items()):
        try:
            receipts[name] = receipt_from(text, given[i] if given else None)
        except ReceiptError as error:
            code = failed(error, name)
    for name, found in verified(args, receipts):
        code = max(code, print_verdict(args, name, True, found, partial(compared, record.head, texts[name])))
    return code


def compared(head: Head, text: Text, found: Verification) -> tuple[bool, str]:
    """Whether a text that was generated again equals the recorded one, and a line about it."""
    from oxillama.reference import CONTRACT
    from oxillama.sessions.records.redaction import digest

    contracts = ""
    if head.contract != CONTRACT:
        contracts = f" (version {head.contract} of the contract made the text, this is {CONTRACT})"
    if not found:
        return False, f"differs: {found.message}{contracts}"
    n_bytes = len(found.text.encode())
    if digest(found.text) != text.hash:
        return (
            False,
            f"differs: the tokens are the same, their text is not: {text.n_bytes} bytes, now {n_bytes}",
        )
    how = "" if found.n_checked is None else f", of which {found.n_checked} were chosen again"
    return True, f"the same: {found.n_tokens} tokens{how}, {n_bytes} bytes"


def read_bytes(name: str) -> bytes:
    """The bytes of a receipt's file. Raises ReceiptError."""
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise ReceiptError(f"receipt: {name} cannot be read: {getattr(error, 'strerror', error)}") from error
