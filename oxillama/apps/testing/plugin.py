"""The pytest plugin: options, markers and fixtures. Imports the library when a test first uses a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxillama.apps.testing.answers import AnswerCache
    from oxillama.apps.testing.model import TestedModel

MODELS: pytest.StashKey[Models] = pytest.StashKey()
SEEN: pytest.StashKey[dict[Path, str]] = pytest.StashKey()

MARKERS = (
    "llm(model, **options): the model of the fixture llm, by name or path, and options of its engine",
    "llm_slow: takes long with a model: runs with --llm-slow",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("llm", "tests with language models (oxillama)")
    group.addoption("--llm", action="store_true", help="run the tests that use a model")
    group.addoption("--llm-slow", action="store_true", help="run those marked as llm_slow, too")
    group.addoption("--llm-model", metavar="MODEL", help="in place of the llm_model of the configuration")
    group.addoption("--llm-update", action="store_true", help="write golden texts; do not compare them")
    group.addoption("--llm-no-cache", action="store_true", help="generate every answer anew; keep none")
    parser.addini(
        "llm_model", "the model of tests that name none: a path, a name of the hub, or demo", default="demo"
    )
    parser.addini(
        "llm_cache", "folder of answers, from the root folder (default: in pytest's cache)", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[MODELS] = Models(config)
    config.stash[SEEN] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = any(config.getoption(name) for name in ("llm", "llm_slow", "llm_update"))
    for item in items:
        is_slow = item.get_closest_marker("llm_slow") is not None
        if not is_slow and item.get_closest_marker("llm") is None and "llm" not in _fixtures(item):
            continue
        if is_slow and not config.getoption("llm_slow"):
            item.add_marker(pytest.mark.skip(reason="takes long with a model: needs --llm-slow"))
        elif not wanted:
            item.add_marker(pytest.mark.skip(reason="uses a model: needs --llm"))


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


def pytest_unconfigure(config: pytest.Config) -> None:
    if MODELS in config.stash:
        config.stash[MODELS].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    cache = config.stash[MODELS].known_cache
    if cache is not None and cache.hits + cache.misses:
        terminalreporter.write_line(f"llm: {cache.misses} answers generated, {cache.hits} from the cache")


class Models:
    """The models of a pytest session, each loaded once."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._models: dict[Any, TestedModel] = {}
        self.known_cache: AnswerCache | None = None

    @property
    def cache(self) -> AnswerCache:
        from oxillama.apps.testing.answers import AnswerCache

        if self.known_cache is None:
            self.known_cache = AnswerCache(self._folder())
        return self.known_cache

    def _folder(self) -> Path | None:
        config = self._config
        if config.getoption("llm_no_cache"):
            return None
        if config.getini("llm_cache"):
            return config.rootpath / str(config.getini("llm_cache"))
        found = getattr(config, "cache", None)  # absent if the cache plugin is disabled
        return None if found is None else Path(found.mkdir("oxillama-answers"))

    def get(self, name: Any = None, **options: Any) -> TestedModel:
        """A model by name or path; None: the configured model."""
        from oxillama.apps.testing.model import TestedModel, path_of

        config = self._config
        if name is None:
            name = config.getoption("llm_model") or config.getini("llm_model")
        path = path_of(name, config.rootpath)
        key = (path, repr(sorted(options.items())))
        if key not in self._models:
            self._models[key] = TestedModel(path, options, self.cache)
        return self._models[key]

    def close(self) -> None:
        for model in self._models.values():
            model.close()
        self._models.clear()


@pytest.fixture
def llm(request: pytest.FixtureRequest) -> TestedModel:
    """The model of the marker ``llm``, else of ``--llm-model`` or ``llm_model``; loaded once per session."""
    marker = request.node.get_closest_marker("llm")
    args, options = ((), {}) if marker is None else (marker.args, marker.kwargs)
    return request.config.stash[MODELS].get(*args, **options)


@pytest.fixture(scope="session")
def llm_of(request: pytest.FixtureRequest) -> Callable[..., TestedModel]:
    """A function that returns the model with a name or path, with options of its engine."""
    return request.config.stash[MODELS].get


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """A function that asserts that a text equals its golden text, by default named after the test."""
    from oxillama.apps.testing.goldens import FOLDER, Goldens, golden_of

    config, path = request.config, request.path
    folder = path.parent / FOLDER / path.stem
    goldens = Goldens(folder, bool(config.getoption("llm_update")), config.stash[SEEN])

    def check(text: str, name: str | None = None) -> None:
        __tracebackhide__ = True
        goldens.check(*golden_of(text, name, request.node.name))

    yield check
