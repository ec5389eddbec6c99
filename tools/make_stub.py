"""Writes `oxillama/__init__.pyi`: the public names for type checkers, which read no table.

`python tools/make_stub.py` makes the file from the table in `oxillama/__init__.py`; with ``--check`` it only
says whether the file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import oxillama

STUB = ROOT / "oxillama" / "__init__.pyi"


def stub() -> str:
    """The text of the stub."""
    modules = oxillama._NAMES
    found = [(module, name) for module in modules for name in modules[module].split()]
    lines = [f"from {module} import {name} as {name}\n" for module, name in found]
    modules_of_facts = [f"from oxillama import {name} as {name}\n" for name in ("config", "errors")]
    head = '"""The public names, for type checkers; made by tools/make_stub.py."""\n\n'
    return "".join([head, *modules_of_facts, *lines, "\n__all__: list[str]\n"])


def is_stale() -> bool:
    """Whether the file is not what the table makes."""
    return not STUB.exists() or STUB.read_text(encoding="utf-8") != stub()


def main() -> None:
    if "--check" in sys.argv[1:]:
        sys.exit(f"out of date: {STUB.relative_to(ROOT)}" if is_stale() else 0)
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
