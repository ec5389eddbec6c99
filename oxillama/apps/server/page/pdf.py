"""``POST /page/pdf``: the text of a PDF that somebody puts into a message."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.page import pdf_text
from oxillama.apps.server.workers import pools
from oxillama.base.distribution import install

MOST_BYTES = 32 << 20


async def pdf(request: Request) -> Response:
    """``{"pages", "text"}`` of the PDF in the body.

    Raises ApiError: 415 for another type, 413 for too many bytes, 501 without pypdf, 422 for what is no PDF
    with text, or takes too long, 503 without a process to read it.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/pdf":
        raise ApiError(415, f"content-type: expected application/pdf, got {content_type[:100] or 'none'}")
    if find_spec("pypdf") is None:
        message = f"pdf: expected the package pypdf on the server ({install('pdf')}), got none"
        raise ApiError(501, message, code="pypdf_missing")
    data = await request.body()
    if len(data) > MOST_BYTES:
        raise ApiError(
            413, f"pdf: expected at most {MOST_BYTES} bytes, got {len(data)}", code="pdf_too_large"
        )
    context().n_bytes = len(data)
    return JsonAnswer(await pools().read_pdf.run(read, data))


def read(data: bytes) -> dict[str, Any]:
    """The text that another process reads from a file.

    Raises ApiError if the file cannot be read, or not in time, or no process can be started.
    """
    try:
        found = pdf_text.read(data)
    except OSError as error:
        message = f"pdf: expected another process to read it, got none: {error.strerror}"
        raise ApiError(503, message, type="unavailable_error", code="no_process") from error
    if "error" in found:
        message = f"pdf: expected a PDF with text, got another: {found['error']}"
        raise ApiError(422, message, code="pdf_unreadable")
    return found
