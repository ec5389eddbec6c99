"""``snapshot info``: describes a snapshot without loading its model, or its keys and values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from oxillama.cli.console import human_bytes, print_json, print_rows
from oxillama.cli.options import add_command
from oxillama.config.engine import MAX_CONTEXT
from oxillama.errors import ModelFileError


def add_commands(commands: Any) -> None:
    snapshot = add_command(
        commands,
        "snapshot",
        help="describe a saved session",
        description="Describes a snapshot: which model it is of, how long it is, what is inside.",
    )
    snapshot.add_argument("action", choices=["info"], help="info reads the header alone")
    snapshot.add_argument("file", metavar="FILE", help="the snapshot")
    snapshot.add_argument("--check", action="store_true", help="read all of it, and compare its checksums")
    snapshot.add_argument("--json", action="store_true", help="write JSON")
    snapshot.set_defaults(command=run_snapshot)


def run_snapshot(args: argparse.Namespace) -> int:
    from oxillama.sessions.container import read_header
    from oxillama.sessions.snapshot import EngineSnapshot, ModelFacts
    from oxillama.sessions.speculative import KIND, SpeculativeEngineSnapshot

    facts = read_header(args.file)
    is_pair = facts.get("kind") == KIND
    if args.check:
        try:
            data = Path(args.file).read_bytes()
            (SpeculativeEngineSnapshot.decode if is_pair else EngineSnapshot.deserialize)(data)
        except OSError as error:
            raise ModelFileError(f"{args.file}: cannot be read: {error.strerror or error}") from error
    if args.json:
        print_json(facts)
        return 0
    from oxillama.sessions.values import Reader, refusals

    with refusals():
        n_cached = Reader("header", facts).integer("n_cached", 0, MAX_CONTEXT)
        model = ModelFacts.of(facts.get("model"))
        draft = ModelFacts.of(facts.get("draft")) if is_pair else None
    settings = ", ".join(f"{name} {value}" for name, value in model.fingerprint.settings)
    rows = {
        "kind": facts.get("kind"),
        "written by": f"oxillama {facts.get('library')}",
        "model": f"{model.name or model.architecture} ({model.architecture})",
        "model file": model.path or None,
        "drafts with": None if draft is None else draft.path or draft.name or draft.architecture,
        "fingerprint": f"{model.fingerprint.display()} ({settings})",
        "tokens": f"{facts.get('n_tokens')}, of which {n_cached} were run",
        "keys and values": f"{model.kv_type}, {human_bytes(sum(model.kv_bytes(n_cached)))}",
        "recurrent state": human_bytes(4 * model.state_floats) if model.state_floats else None,
        "adapters": ", ".join(map(adapter_words, facts.get("adapters") or ())) or None,
        "checksums": "right" if args.check else None,
    }
    print_rows([label, str(value)] for label, value in rows.items() if value is not None)
    print()
    sizes = [(name, human_bytes(size), human_bytes(stored)) for name, size, stored, _ in facts["sections"]]
    print_rows([("section", "bytes", "stored"), *sizes], right=(1, 2))
    return 0


def adapter_words(adapter: Any) -> str:
    """An adapter of a header in a few words."""
    from oxillama.sessions.snapshot import AdapterFacts
    from oxillama.sessions.values import refusals

    with refusals():
        facts = AdapterFacts.of(adapter)
    return f"{facts.name} {facts.scale:g} ({facts.fingerprint[:16]})"
