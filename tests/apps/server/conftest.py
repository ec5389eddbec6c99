"""Servers and browsers of the tests in this folder.

A test file may set ``MODEL``, the path of a model or options of `write_tiny_model`, and ``SERVER``, options
of `serving`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama.apps.server.models import Hosted
from oxillama.compat.engine import InferenceEngine
from tests.support.browser import KINDS, Page, opened
from tests.support.media import PAIRS, SHARED, WIDTH, projector_file
from tests.support.server import Client, serving, serving_models
from tests.support.tiny_file import CHATML, THINKING, write_tiny_model
from tests.support.tool_models import NO_THOUGHTS, tool_model

SWITCH = CHATML.replace(
    "assistant\n{% endif",
    "assistant\n<think>\n{% if enable_thinking is false %}\n</think>\n\n{% endif %}{% endif",
)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    stated = getattr(request.module, "MODEL", {"context_length": 256, "ends": False})
    if isinstance(stated, Path):
        return stated
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", **stated)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, model: Path) -> Iterator[Client]:
    """A server of the model, by the name of its file."""
    with serving(model, model.stem, **getattr(request.module, "SERVER", {})) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Client) -> Client:
    return server


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[InferenceEngine]:
    """An engine of the model for servers that a test begins."""
    with InferenceEngine.from_gguf(model, num_threads=1) as found:
        yield found


@pytest.fixture(scope="module")
def alone(model: Path) -> InferenceEngine:
    """The same model in an engine of its own."""
    return InferenceEngine.from_gguf(model, num_threads=1)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of a model whose template has tools, and no reasoning, which a random model would not end."""
    with serving(tool_model(tmp_path_factory.mktemp("tools") / "m.gguf", NO_THOUGHTS), "caller") as found:
        yield found


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of a model whose prompts open reasoning, unless they switch it off."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    with serving(write_tiny_model(path, chat_template=SWITCH, ends=False, context_length=256)) as found:
        yield found


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of a model whose prompts open reasoning, which nothing switches off."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    with serving(write_tiny_model(path, chat_template=THINKING, ends=False)) as found:
        yield found


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its projector file, and in ``plain`` the model without one."""
    found = tmp_path_factory.mktemp("media")
    (found / "plain").mkdir()
    for path in (found / "tiny.gguf", found / "plain" / "plain.gguf"):
        write_tiny_model(path, n_embd=WIDTH, ends=False, context_length=256)
    (found / "mmproj-tiny.gguf").write_bytes(projector_file())
    return found


@pytest.fixture(scope="module")
def seeing(sighted: Path) -> Iterator[Client]:
    """A server of a model with a projector file, and of one without."""
    paths = (sighted / "tiny.gguf", sighted / "plain" / "plain.gguf")
    hosted = (Hosted(path.stem, InferenceEngine.from_gguf(path, num_threads=1)) for path in paths)
    with serving_models(*hosted) as found:
        yield found


@pytest.fixture(scope="module")
def hears() -> Iterator[Client]:
    """A server of a model that takes sounds."""
    if "ultravox" not in PAIRS:
        pytest.skip("the reference files are not there")
    folder = SHARED / "ultravox"
    engine = InferenceEngine.from_gguf(
        folder / "text.gguf", mmproj=folder / "mmproj.gguf", num_threads=1, chat_template="chatml"
    )
    with serving(engine, "hears") as found:
        yield found


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application of a tiny model, without a socket."""
    from tests.support.server_bodies import tiny_application  # which needs hypothesis

    with tiny_application(tmp_path_factory.mktemp("tiny")) as found:
        yield found


# --- browsers -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The browser."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def browser(kind: str, folder: Path) -> Iterator[Page]:
    with opened(kind, folder) as found:
        yield found


@pytest.fixture
def checked(browser: Page) -> Iterator[Page]:
    """The browser; the test fails if a script does, or if one breaks the page's policy."""
    browser.faults()
    yield browser
    refused = "Failed to load resource"  # an icon that browsers ask for; a server that refuses or is gone
    assert [fault for fault in browser.faults() if refused not in fault] == []


@pytest.fixture
def page(checked: Page) -> Page:
    return checked
