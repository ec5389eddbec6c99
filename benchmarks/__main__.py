"""Command line of the benchmarks: `python -m benchmarks COMMAND ...` from a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oxillama.apps.cli.program import run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0, or 2 after one line on stderr when it cannot be run as asked."""

    def job() -> int:
        from benchmarks.commands import parser  # fails without the kernels

        args = parser().parse_args(argv)
        status: int = args.run(args)
        return status

    return run_program("benchmarks", job)


if __name__ == "__main__":
    sys.exit(main())
