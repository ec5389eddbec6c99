"""The text of a PDF, read in a process of its own, so that a malicious file harms nothing else.

``python -m oxillama.apps.server.page.pdf_text`` reads a file from standard input and writes one JSON object:
``{"pages": int, "text": str}``, or ``{"error": str}`` for a file that cannot be read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from typing import Any

MOST_PAGES = 1000
MOST_CHARACTERS = 2_000_000
MOST_MEMORY = 1 << 30
"""Bytes that the process may have."""
SECONDS = 30.0
COMMAND = (sys.executable, "-m", "oxillama.apps.server.page.pdf_text")


def read(data: bytes) -> dict[str, Any]:
    """The JSON that such a process writes for a file; ``{"error"}`` if it takes too long, or dies.

    Raises OSError if no process can be started.
    """
    try:
        run = subprocess.run(COMMAND, input=data, capture_output=True, timeout=SECONDS, check=False)
        found: dict[str, Any] = json.loads(run.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {SECONDS:g} s"}
    except ValueError:  # the process has ended without a word
        return {"error": "it cannot be read"}
    return found


def text_of(data: bytes) -> dict[str, object]:
    """The text of a file, page after page. Raises ValueError for one over a limit, and pypdf's errors."""
    from pypdf import PdfReader

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it is encrypted")
    if len(reader.pages) > MOST_PAGES:
        raise ValueError(f"it has {len(reader.pages)} pages, of at most {MOST_PAGES}")
    found, n = [], 0
    for page in reader.pages:
        found.append(page.extract_text().strip())
        n += len(found[-1])
        if n > MOST_CHARACTERS:
            raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    if n == 0:
        raise ValueError("it has no text: its pages are pictures")
    return {"pages": len(found), "text": "\n\n".join(found)}


def main() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource  # Windows has no such module

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    output, sys.stdout = sys.stdout, sys.stderr  # the user nobody
    try:
        found = text_of(sys.stdin.buffer.read())
    except MemoryError:
        found = {"error": "it needs too much memory"}
    except Exception as error:
        found = {"error": str(error)[:200] or type(error).__name__}
    output.write(json.dumps(found))


if __name__ == "__main__":
    main()
