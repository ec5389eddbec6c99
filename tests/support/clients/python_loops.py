"""Loops of Python clients, each written as its documentation shows.

    python -m tests.support.clients.python_loops CLIENT URL...

Prints a line of JSON for each URL and for each of the modes whole and stream: the calls and answers that the
client found, or an error. Runs in the environment of the clients, with the root of this project as folder.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tests.support.clients import python_frameworks, python_vendors
from tests.support.clients.python_registry import LOOPS

MODULES = (python_vendors, python_frameworks)
"""The modules of loops. Their imports fill `LOOPS`."""


def main() -> None:
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_API_KEY="none", ANTHROPIC_API_KEY="none")
    name, *urls = sys.argv[1:]
    for url in urls:
        for stream in (False, True):
            found: dict[str, Any] = {"url": url, "stream": stream}
            try:
                found["answers"] = LOOPS[name](url, stream)
            except Exception:
                found["error"] = traceback.format_exc(limit=-3)
            print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
