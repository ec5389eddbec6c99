"""Installs the clients of `tests/apps/server/test_clients.py`.

    python tools/fetch_clients.py FOLDER

Makes two Python environments, ``python-1`` and ``python-2``, for clients that need different versions of one
package, and ``node``. Prints the clients that cannot be installed, and then ends with the exit code 1. The
versions are in `tests/support/clients/packages.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1] / "tests" / "support" / "clients" / "packages.json"
SECONDS = 300
"""The most time for one environment."""


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder, failed = Path(sys.argv[1]), 0
    for name, packages in json.loads(PACKAGES.read_text()).items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        if name == "node":
            named = [f"{package}@{version}" for package, version in packages.items()]
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", *named]
        else:
            venv.create(place, with_pip=True)
            named = [f"{package}=={version}" for package, version in packages.items()]
            python = str(place.resolve() / "bin" / "python")
            command = [python, "-m", "pip", "install", "-q", "--only-binary=:all:", *named]
        try:
            subprocess.run(command, cwd=place, check=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            failed = 1
            print(f"{name}: {', '.join(packages)} could not be installed: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
