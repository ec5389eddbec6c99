"""``snapshot``: describes a snapshot without loading its model, or its keys and values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli.console import human_bytes, print_json, print_rows
from oxillama.apps.cli.options import add_command
from oxillama.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from oxillama.sessions.snapshot import AdapterFacts


def add_commands(commands: Any) -> None:
    snapshot = add_command(
        commands,
        "snapshot",
        help="describe a saved session",
        description="Describes a snapshot: which model it is of, how long it is, what is inside.",
    )
    snapshot.add_argument("file", metavar="FILE", nargs="+", help="the snapshot; its header alone is read")
    snapshot.add_argument("--check", action="store_true", help="read all of it, and compare its checksums")
    snapshot.add_argument("--json", action="store_true", help="write JSON")
    snapshot.set_defaults(command=run_snapshot)


def run_snapshot(args: argparse.Namespace) -> int:
    *action, args.file = args.file
    if action not in ([], ["info"]):  # "snapshot info FILE" is the command's earlier form
        raise ConfigError(f"FILE: expected one, got {len(action) + 1}")
    from oxillama.sessions.container import read_header, refusals
    from oxillama.sessions.snapshot import EngineSnapshot, Header
    from oxillama.sessions.speculative import KIND, PairHeader, SpeculativeEngineSnapshot

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
    with refusals():
        header = PairHeader.of(facts) if is_pair else Header.of(facts)
    model, draft = header.model, header.draft if isinstance(header, PairHeader) else None
    adapters = header.adapters if isinstance(header, Header) else ()
    settings = ", ".join(f"{name} {value}" for name, value in model.fingerprint.settings)
    rows = {
        "kind": header.kind,
        "written by": f"oxillama {header.library}",
        "model": f"{model.name or model.architecture} ({model.architecture})",
        "model file": model.path or None,
        "drafts with": None if draft is None else draft.path or draft.name or draft.architecture,
        "fingerprint": f"{model.fingerprint.display()} ({settings})",
        "tokens": f"{header.n_tokens}, of which {header.n_cached} were run",
        "keys and values": f"{model.kv_type}, {human_bytes(sum(model.kv_bytes(header.n_cached)))}",
        "recurrent state": human_bytes(4 * model.state_floats) if model.state_floats else None,
        "adapters": ", ".join(map(adapter_words, adapters)) or None,
        "checksums": "right" if args.check else None,
    }
    print_rows([label, str(value)] for label, value in rows.items() if value is not None)
    print()
    sizes = [(name, human_bytes(size), human_bytes(stored)) for name, _, size, stored, _ in facts["sections"]]
    print_rows([("section", "bytes", "stored"), *sizes], right=(1, 2))
    return 0


def adapter_words(adapter: AdapterFacts) -> str:
    """An adapter of a header in a few words."""
    return f"{adapter.name} {adapter.scale:g} ({adapter.fingerprint[:16]})"
