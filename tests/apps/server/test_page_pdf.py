"""``POST /page/pdf``: texts of PDFs, and files that would harm whoever reads them."""

from __future__ import annotations

import zlib
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from select import select

import pytest

from oxillama import demo
from oxillama.apps.server.page import pdf, pdf_text
from tests.support.server import Answer, Client, answer_of, bearer, serving
from tests.support.waiting import until

MODEL, SERVER = demo.DRAFT, {"api_keys": ("k",)}
TYPE = {"Content-Type": "application/pdf"}
needs_pypdf = pytest.mark.skipif(find_spec("pypdf") is None, reason="pypdf is not installed")


def begin(client: Client, data: bytes, **headers: str) -> HTTPConnection:
    return client.begin("/page/pdf", data, headers={**TYPE, **bearer("k"), **headers})


def ask(client: Client, data: bytes, **headers: str) -> Answer:
    return answer_of(begin(client, data, **headers))


def made(*contents: bytes, pages: bytes = b"", filtered: bytes = b"") -> bytes:
    """A PDF with a page for each stream; ``pages`` replaces the kids of the page tree."""
    n = len(contents)
    kids = pages or b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(n))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, n),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, content in enumerate(contents):
        font = b"/Resources << /Font << /F 3 0 R >> >>"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents %d 0 R %s >>" % (5 + 2 * i, font)
        )
        objects.append(b"<< /Length %d %s >> stream\n%s\nendstream" % (len(content), filtered, content))
    data, places = b"%PDF-1.4\n", []
    for i, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj %s endobj\n" % (i, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table) + trailer


def shown(text: bytes) -> bytes:
    return b"BT /F 12 Tf (%s) Tj ET" % text


def bomb() -> bytes:
    """2 GiB of zeros, compressed twice."""
    packer = zlib.compressobj(1, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to none before
    checksum = ((2 << 30) % 65521 << 16 | 1).to_bytes(4, "big")
    return zlib.compress(b"\x78\x01" + block * 2048 + b"\x03\0" + checksum)


GOOD = made(shown(b"hello there"), shown(b"the second page"))


@needs_pypdf
def test_the_text_of_each_page(client: Client) -> None:
    answer = ask(client, GOOD)
    assert (answer.status, answer.json) == (200, {"pages": 2, "text": "hello there\n\nthe second page"})


@needs_pypdf
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", ""),
        (b"%PDF-1.4\nnothing", ""),
        (GOOD[:200], ""),
        (made(b""), "it has no text"),
        (made(shown(b"a"), pages=b"2 0 R"), ""),
        (made(bomb(), filtered=b"/Filter [/FlateDecode /FlateDecode]"), ""),
        (made(b"[" * 2_000_000), ""),
        (made(*[shown(b"a")] * (pdf_text.MOST_PAGES + 1)), "it has 1001 pages"),
        (made(shown(b"a" * 3_000_000)), "it has more than 2000000 characters"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(
    client: Client, data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_text, "SECONDS", 120.0)
    answer = ask(client, data)
    assert answer.refusal("code") == (422, "pdf_unreadable"), answer.text[:300]
    assert message in answer.error["message"] and len(answer.error["message"]) < 300


@pytest.mark.slow
@needs_pypdf
def test_time_is_limited_and_others_are_answered_meanwhile(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = (pdf_text.COMMAND[0], "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(pdf_text, "COMMAND", endless)
    monkeypatch.setattr(pdf_text, "SECONDS", 5.0)
    connection = begin(client, GOOD)
    until(lambda: len(client.server._app.state.in_flight) == 1)
    assert client.ask("/health").status == 200
    assert not select([connection.sock], [], [], 0)[0]
    answer = answer_of(connection)
    assert answer.status == 422 and "more than 5 s" in answer.error["message"]


@needs_pypdf
def test_files_that_take_long_keep_no_body_waiting(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    program = f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.02)"
    monkeypatch.setattr(pdf_text, "COMMAND", (pdf_text.COMMAND[0], "-c", program))
    monkeypatch.setattr(pdf_text, "SECONDS", 60.0)
    connections = [begin(client, GOOD) for _ in range(4)]
    until(lambda: len(client.server._app.state.in_flight) == 4)
    body = {"content": "a" * 100_000}
    assert client.ask("/tokenize", body, headers=bearer("k")).status == 200
    assert not select([connection.sock for connection in connections], [], [], 0)[0]
    go_on.touch()
    assert [answer_of(connection).status for connection in connections] == [422] * 4


@needs_pypdf
def test_no_process_can_be_started(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_text, "COMMAND", ("/nowhere/python",))
    answer = ask(client, GOOD)
    assert answer.refusal("code") == (503, "no_process")
    assert "/nowhere" not in answer.text


@needs_pypdf
def test_a_process_that_dies_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_text, "COMMAND", (pdf_text.COMMAND[0], "-c", "import os; os.abort()"))
    assert ask(client, GOOD).error["code"] == "pdf_unreadable"


def test_what_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    answer = ask(client, GOOD)
    assert answer.refusal("code") == (501, "pypdf_missing") and "oxillama-cpu[pdf]" in answer.text
    monkeypatch.setattr(pdf, "find_spec", lambda name: name)
    monkeypatch.setattr(pdf, "MOST_BYTES", 100)
    assert (ask(client, GOOD).status, ask(client, GOOD).error["code"]) == (413, "pdf_too_large")
    assert ask(client, GOOD, **{"Content-Type": "text/plain"}).status == 415
    assert client.ask("/page/pdf", GOOD, headers=TYPE).status == 401
    assert ask(client, GOOD, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    with serving(demo.DRAFT, page=False) as other:
        assert other.ask("/page/pdf", GOOD, headers=TYPE).status == 404
