"""Runs hostile inputs through the library: ``python tools/fuzz.py TARGET --runs 20000 [--seed 1]``.

TARGET is a fuzz target of tests/fuzz/targets, or "all". Each finding is minimized and saved to
fuzz-findings/TARGET; ``--replay FILE`` runs the input of one file in this process. The exit code is 1 if
there are findings.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.fuzz import harness
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--runs", type=int, metavar="N", help="inputs of each target")
    parser.add_argument("--seconds", type=float, metavar="N", help="time for each target")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="number of the first input")
    parser.add_argument(
        "--wall",
        type=float,
        default=harness.WALL,
        metavar="N",
        help="seconds after which an input hangs; more on a machine that others keep busy",
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the input of a file in this process")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), metavar="FOLDER")
    args = parser.parse_args()
    if args.replay is not None:
        TARGETS[args.target].run(json.loads(args.replay.read_text(encoding="utf-8")))
        return 0
    if args.runs is None and args.seconds is None:
        args.seconds = 60.0
    found = False
    for name in TARGETS if args.target == "all" else [args.target]:
        target = TARGETS[name]
        with harness.Worker(wall=args.wall) as worker:
            report = harness.fuzz(
                worker,
                target,
                runs=args.runs,
                seconds=args.seconds,
                seed=args.seed,
                start=args.start,
                tell=lambda line: print(f"  found {line}", flush=True),
            )
            print(report, flush=True)
            for finding in harness.kept(report):
                found = True
                harness.minimize(worker, target, finding)
                path = harness.save(finding, name, args.out)
                print(f"  {finding.count} x {finding.kind}: {path}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
