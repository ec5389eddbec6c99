"""Records the format that llama.cpp gives each tensor, for every file type: tests/data/file_types.json.

Needs the package llama-cpp-python:

    python tools/record_file_types.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks.quantizers import Peer, formats_of
from oxillama import ImportanceMatrix
from oxillama.apps.quantize.imatrix import Entry
from oxillama.errors import ConfigError
from oxillama.gguf.file_types import FILE_TYPES
from tests.support.file_type_cases import CASES, LETTERS, OURS_ALONE, Case


def importance(case: Case) -> ImportanceMatrix:
    """An importance matrix of ones for every matrix of a case."""
    entries = {}
    for name, shape in case.matrices().items():
        if len(shape) > 1:
            n = shape[2] if len(shape) > 2 else 1
            entries[name] = Entry(np.ones((n, shape[0]), np.float32), np.ones(n, np.float32))
    return ImportanceMatrix(entries)


def main() -> None:
    peer = Peer()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.gguf"), Path(folder, "target.gguf")
        for case_name, case in CASES.items():
            source.write_bytes(case.file())
            found[case_name] = {}
            for file_type in (name for name in FILE_TYPES if name not in OURS_ALONE):
                for weighted in (False, True):
                    weights = importance(case) if weighted else None
                    try:
                        peer.quantize_model(source, target, file_type, False, weights)
                    except ConfigError:
                        if weighted:
                            raise
                        continue  # types of one to three bits are refused without an importance matrix
                    key = f"{file_type}, importance" if weighted else file_type
                    formats = formats_of(target)
                    found[case_name][key] = "".join(LETTERS[formats[name]] for name in case.matrices())
    path = ROOT / "tests" / "data" / "file_types.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
