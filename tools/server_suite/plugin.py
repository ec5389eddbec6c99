"""A pytest plugin that adapts llama-server's test suite to other models, and marks known deviations.

`changes.toml` lists the changes:

``words`` : regular expressions for texts of the suite's models; here any text that is not empty matches.
``[[parameter]]`` : new values of tests' parameters.
``[[replaced]]`` : texts in the suite's files that `run.py` replaces: numbers and words of the suite's models.
``[[deviation]]`` : tests that are expected to fail, and why. If such a test passes, the run fails.
``[[left_out]]`` : tests that are not run, and why.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import sys
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image
from requests.structures import CaseInsensitiveDict

CHANGES = tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))


def pytest_configure(config: pytest.Config) -> None:
    sys.path.insert(0, os.getcwd())
    import openai.resources.responses
    import utils  # type: ignore[import-not-found]

    matches, words = utils.match_regex, frozenset(CHANGES["words"])
    utils.match_regex = lambda regex, text: text != "" if regex in words else matches(regex, text)
    utils.ServerPreset.load_all = staticmethod(lambda: None)  # no downloads
    ask = utils.ServerProcess.make_request

    @functools.wraps(ask)
    def asking(self: Any, method: str, path: str, data: Any = None, *others: Any, **named: Any) -> Any:
        data = with_name(utils, data)
        if self.debug and path == "/chat/completions" and isinstance(data, dict):
            data = {"verbose": True, **data}  # an option of the request here
        answer = ask(self, method, path, data, *others, **named)
        answer.body = with_fingerprint(answer.body)
        answer.headers = CaseInsensitiveDict(answer.headers)  # names of headers have no case
        return answer

    stream = utils.ServerProcess.make_stream_request

    @functools.wraps(stream)
    def streaming(self: Any, method: str, path: str, data: Any = None, *others: Any, **named: Any) -> Any:
        for event in stream(self, method, path, with_name(utils, data), *others, **named):
            yield with_fingerprint(event)

    fetch = requests.get
    requests.get = lambda url, *more, **how: picture(url) if is_picture(url) else fetch(url, *more, **how)
    utils.ServerProcess.make_request = asking
    utils.ServerProcess.make_stream_request = streaming
    for kind in (
        openai.resources.Completions,
        openai.resources.Embeddings,
        openai.resources.responses.Responses,
        openai.resources.chat.Completions,
    ):
        kind.create = named_create(utils, kind.create)  # type: ignore[method-assign]


def is_picture(url: str) -> bool:
    return url.startswith("https://huggingface.co/") and url.endswith(".png")


def picture(url: str) -> requests.Response:
    """A random picture in place of a download; each address has another picture."""
    rng = np.random.default_rng(list(url.encode()))
    data = BytesIO()
    Image.fromarray(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(data, "png")
    answer = requests.Response()
    answer.status_code, answer._content = 200, data.getvalue()
    return answer


def served_name(utils: Any) -> str:
    """The name of the running server's model."""
    return next(iter(utils.server_instances)).model_alias


def with_name(utils: Any, body: Any) -> Any:
    """A body with the server's name of the model: llama-server accepts any name."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return {**body, "model": served_name(utils)}
    return body


def with_fingerprint(body: Any) -> Any:
    """An answer whose fingerprint begins with a b, like the fingerprints of llama.cpp."""
    if isinstance(body, dict) and "system_fingerprint" in body:
        return {**body, "system_fingerprint": f"b-{body['system_fingerprint']}"}
    return body


def named_create(utils: Any, create: Any) -> Any:
    @functools.wraps(create)
    def creating(self: Any, **body: Any) -> Any:
        answer = create(self, **with_name(utils, body))
        if hasattr(answer, "system_fingerprint"):
            answer.system_fingerprint = f"b-{answer.system_fingerprint}"
        return answer

    return creating


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        name = item.nodeid.partition("unit/")[2]
        if any(fits(entry, name) for entry in CHANGES.get("left_out", [])):
            left.append(item)
            continue
        kept.append(item)
        for entry in CHANGES["parameter"]:
            if fits(entry, name):
                params = item.callspec.params  # type: ignore[attr-defined]
                assert entry["name"] in params, f"{name} has no parameter {entry['name']}"
                if params[entry["name"]] == entry["old"]:
                    params[entry["name"]] = entry["new"]
        for entry in CHANGES["deviation"]:
            if fits(entry, name):
                item.add_marker(pytest.mark.xfail(reason=entry["why"], strict=True))
                break
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def fits(entry: dict[str, Any], name: str) -> bool:
    """Whether the names or patterns of an entry match a test. Brackets in patterns match literally."""
    tests = entry["tests"]
    patterns = [pattern.replace("[", "[[]") for pattern in tests]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
