"""Sends typical bodies, and variants that hypothesis draws, to every path of the server.

    python tools/server_fuzz.py [--requests 10000] [--seed 0]

The bodies go to the application without a socket. Exits with 1 at the first answer that is a server error,
has no message, or takes longer than a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from hypothesis import HealthCheck, given, seed, settings, strategies as st

from tests.support.server_bodies import PATHS, SEEDS, bodies, fault, tiny_application


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seen: Counter[int] = Counter()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tiny_application(Path(folder)) as application:

        @seed(args.seed)
        @settings(
            max_examples=args.requests,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(data=st.data())
        def send(data: st.DataObject) -> None:
            path = data.draw(st.sampled_from(PATHS))
            body = data.draw(bodies(SEEDS[path]))
            reply = application.ask(path, body)
            seen[reply.status] += 1
            assert not (wrong := fault(path, body, reply)), wrong

        try:
            send()
        except (AssertionError, TimeoutError) as error:
            print(error)
            return 1
        application.app.state.served.hosted.ready().model.check_integrity()
    seconds = time.perf_counter() - begun
    shown = ", ".join(f"{n} times {status}" for status, n in sorted(seen.items()))
    print(f"{sum(seen.values())} requests to {len(PATHS)} paths in {seconds:.0f} s: {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
