"""What pytest changes in llama-server's test suite: texts of other models, names of models, known deviations.

All of it is listed in `changes.toml`:

``words`` : regular expressions for the words of the suite's models; any text that is not empty matches them.
``[[parameter]]`` : what a parameter of a test has in place of its value.
``[[replaced]]`` : texts of the suite that `run.py` replaces: numbers and words of other models.
``[[deviation]]`` : tests that are expected to fail, and why. One that passes is an error.
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
    utils.ServerPreset.load_all = staticmethod(lambda: None)  # nothing has to be downloaded
    ask = utils.ServerProcess.make_request

    @functools.wraps(ask)
    def asking(self: Any, method: str, path: str, data: Any = None, *others: Any, **named: Any) -> Any:
        data = with_name(utils, data)
        if self.debug and path == "/chat/completions" and isinstance(data, dict):
            data = {"verbose": True, **data}  # `--verbose` of the server is a matter of the request
        answer = ask(self, method, path, data, *others, **named)
        answer.body = with_fingerprint(answer.body)
        answer.headers = CaseInsensitiveDict(answer.headers)  # as HTTP has it
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
    """A picture in the place of one that would be downloaded: random, another one for each address."""
    rng = np.random.default_rng(list(url.encode()))
    data = BytesIO()
    Image.fromarray(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(data, "png")
    answer = requests.Response()
    answer.status_code, answer._content = 200, data.getvalue()
    return answer


def served_name(utils: Any) -> str:
    """What the server that runs calls its model."""
    return next(iter(utils.server_instances)).model_alias


def with_name(utils: Any, body: Any) -> Any:
    """A body that names the model as the server does: llama-server takes any name."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return {**body, "model": served_name(utils)}
    return body


def with_fingerprint(body: Any) -> Any:
    """An answer whose fingerprint begins with a b, as that of a build of llama.cpp does."""
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
    """Whether an entry is for a test, by its names or patterns; brackets stand for themselves."""
    tests = entry["tests"]
    patterns = [pattern.replace("[", "[[]") for pattern in tests]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
