"""Fetches the vocabulary files and chat templates that the tests of tokenizer/ and chat/ can use.

They are part of the source distribution of llama-cpp-python on PyPI (llama.cpp's models/ folder), too
large to keep in this repository (75 MB):

    python tools/fetch_vocabs.py [--sdist llama_cpp_python-0.3.36.tar.gz]

unpacks them into $OXILLAMA_VOCABS, or else ~/.cache/oxillama/vocabs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path, PurePosixPath

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INDEX = "https://pypi.org/simple/llama-cpp-python/"


def folder() -> Path:
    """The folder of the files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("OXILLAMA_VOCABS") or cache / "oxillama" / "vocabs")


def download() -> bytes:
    with urllib.request.urlopen(INDEX) as response:
        page = response.read().decode()
    link = re.search(rf'href="([^"#]*/llama_cpp_python-{re.escape(VERSION)}\.tar\.gz)[#"]', page)
    if link is None:
        raise SystemExit(f"{INDEX}: lists no source distribution of version {VERSION}")
    url = urllib.parse.urljoin(INDEX, link[1])
    print(f"fetching {url}")
    with urllib.request.urlopen(url) as response:
        data: bytes = response.read()
    return data


def unpack(data: bytes, target: Path) -> int:
    """Writes the files of vendor/llama.cpp/models that the tests use; returns their number."""
    (target / "templates").mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            is_vocab = path.parent.name == "models" and path.name.startswith("ggml-vocab-")
            is_template = path.parent.name == "templates" and path.suffix == ".jinja"
            if "llama.cpp" not in path.parts or not member.isfile() or not (is_vocab or is_template):
                continue
            source = archive.extractfile(member)
            assert source is not None
            (target / "templates" / path.name if is_template else target / path.name).write_bytes(
                source.read()
            )
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdist", type=Path, help="a copy of the source distribution that is already here")
    sdist = parser.parse_args().sdist
    data = sdist.read_bytes() if sdist else download()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        sys.exit(f"the source distribution should have the SHA-256 {SHA256}, found {found}")
    print(f"{unpack(data, folder())} files in {folder()}")


if __name__ == "__main__":
    main()
