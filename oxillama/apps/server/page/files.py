"""The files of the page: read once, checked against a table of types, sent with headers that confine them.

``/`` is sent anew each time it has changed. It names the other files below ``/page/VERSION/``, where VERSION
is a hash of all of them. So browsers keep them for good, and never mix the files of two versions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.errors import ApiError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Content types by suffix. Those that the system has for names may be wrong ones."""

FOLDER = Path(__file__).with_name("static")
INDEX = "index.html"
NOTICES = ".md"
"""The suffix of the file about the files of others, which is not sent."""
PLACEHOLDER = b"@VERSION@"
"""What stands in `INDEX` for the version."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts come from files of the server alone, no text can become markup, and nothing goes elsewhere."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

AT_EACH_LOAD = "no-cache"
FOR_GOOD = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """A file of the page."""

    data: bytes
    content_type: str

    @property
    def tag(self) -> str:
        """The ETag of its bytes."""
        return f'"{hashlib.sha256(self.data).hexdigest()[:32]}"'


@cache
def the_page() -> dict[str, File]:
    """The files of the page that the package holds, by path, e.g. ``/`` and ``/page/VERSION/main.js``.

    They hold no secrets. Raises KeyError for a file of an unknown type.
    """
    files = (path for path in FOLDER.rglob("*.*") if path.suffix != NOTICES)
    found = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in files}
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name} {len(found[name])} ".encode() + found[name])
    version = digest.hexdigest()[:16]
    index = found.pop(INDEX).replace(PLACEHOLDER, version.encode())
    made = {"/": File(index, TYPES["html"])}
    for name, data in found.items():
        made[f"/page/{version}/{name}"] = File(data, TYPES[name.rpartition(".")[2]])
    return made


async def page(request: Request) -> Response:
    """A file of the page; 304 if the browser has it. Raises ApiError for an unknown file.

    Paths are looked up in a table: none leads out of the folder.
    """
    path = request.scope["path"]
    file = the_page().get(path)
    if file is None:
        raise ApiError(404, f"{request.method} {path}: Not Found")
    lasting = AT_EACH_LOAD if path == "/" else FOR_GOOD
    headers = {**HEADERS, "Cache-Control": lasting, "ETag": file.tag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.data, headers={**headers, "Content-Type": file.content_type})
