"""The text of a PDF, in a process of its own: what a file does there ends with the process.

``python -m oxillama.server.page.pdf_text`` reads a file from its standard input and writes one JSON object:
``{"pages": int, "text": str}``, or ``{"error": str}`` for a file that cannot be read.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from io import BytesIO

MOST_PAGES = 1000
MOST_CHARACTERS = 2_000_000
MOST_MEMORY = 1 << 30
"""Bytes that the process may have."""


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
        import resource  # which Windows does not have

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    output, sys.stdout = sys.stdout, sys.stderr  # which is nobody's
    try:
        found = text_of(sys.stdin.buffer.read())
    except MemoryError:
        found = {"error": "it needs too much memory"}
    except Exception as error:
        found = {"error": str(error)[:200] or type(error).__name__}
    output.write(json.dumps(found))


if __name__ == "__main__":
    main()
