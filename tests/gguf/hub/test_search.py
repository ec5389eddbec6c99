"""What the hub has: repositories by words, the models of one, and who may ask a server for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, ModelFileError, demo
from oxillama.apps.server.models import Hosted
from oxillama.gguf.hub.requests import NoAnswer
from oxillama.gguf.hub.search import models, repositories
from tests.support.hub import Hub, used
from tests.support.server import Client, serving_models

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

FILES = {
    "README.md": b"# tiny",
    "tiny-Q8_0.gguf": b"x" * 50,
    "tiny-Q4_K_M.gguf": b"x" * 20,
    "UD/tiny-Q4_K_M.gguf": b"x" * 30,
    "tiny-F16-00001-of-00002.gguf": b"x" * 60,
    "tiny-F16-00002-of-00002.gguf": b"x" * 40,
    "tiny-F32-00001-of-00002.gguf": b"x",
    "mmproj-tiny-F16.gguf": b"x",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with used(Hub({"ann/tiny": FILES, "bob/other": {}}), tmp_path, monkeypatch) as found:
        yield found


def test_repositories_are_found_by_words(hub: Hub) -> None:
    assert [(each.name, each.downloads) for each in repositories("tiny")] == [("ann/tiny", 1234)]
    assert repositories("nothing") == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "../../x"}, r"search: \[0\]\.id: expected user/repo, got '\.\./\.\./x'"),
        ({"id": 5}, r"search: \[0\]\.id: expected user/repo, got 5"),
        ([], r"search: \[0\]\.id: expected user/repo, got None"),
        ({"id": "a/b", "downloads": "many"}, r"search: \[0\]\.downloads: expected a number, got 'many'"),
    ],
)
def test_what_is_no_repository_is_refused(hub: Hub, entry: Any, message: str) -> None:
    hub.listed = [entry]
    with pytest.raises(ModelFileError, match=message):
        repositories("x")


def test_models_have_names_that_mean_them_alone(hub: Hub) -> None:
    assert [(str(model.name), model.size) for model in models("ann/tiny")] == [
        ("hf://ann/tiny/tiny-Q4_K_M.gguf", 20),
        ("hf://ann/tiny/UD/tiny-Q4_K_M.gguf", 30),
        ("ann/tiny:Q8_0", 50),
        ("ann/tiny:F16", 100),
    ]
    with pytest.raises(ModelFileError, match="no such repository"):
        models("ann/none")


def test_no_network_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for ask in (lambda: repositories("x"), lambda: models("ann/tiny")):
        with pytest.raises(NoAnswer, match="HF_HUB_OFFLINE is set"):
            ask()


def served(**options: Any) -> Any:
    hosted = Hosted("story", InferenceEngine.from_gguf(demo.DRAFT, num_threads=1))
    return serving_models(hosted, make=lambda name, path: Hosted(name), **options)


def test_the_server_lists_for_an_admin(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(client: Client, query: str, key: str = "operator") -> Any:
        return client.ask(f"/page/hub{query}", headers={"Authorization": f"Bearer {key}"})

    with served(allow_pull=True, api_keys=("alice",), admin_keys=("operator",)) as client:
        found = ask(client, "?search=tiny").json
        assert found == {"repositories": [{"name": "ann/tiny", "downloads": 1234}]}
        found = ask(client, "?repo=ann/tiny").json["models"]
        assert found[2] == {"name": "ann/tiny:Q8_0", "bytes": 50, "is_here": False}
        assert ask(client, "?search=tiny", "alice").status == 403
        for query in ("", "?search=", "?search=a&repo=b", f"?search={'a' * 201}"):
            assert ask(client, query).status == 400
        assert "no such repository" in ask(client, "?repo=ann/none").error["message"]
        admin = {"Authorization": "Bearer operator"}
        assert client.ask("/props", headers=admin).json["may_pull"] is True
        assert client.ask("/props", headers={"Authorization": "Bearer alice"}).json["may_pull"] is False
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        answer = ask(client, "?search=tiny")
        assert answer.refusal("code") == (503, "hub_unreachable")
        assert answer.error["message"] == "The hub cannot be reached: HF_HUB_OFFLINE is set"
    with served() as client:
        assert client.ask("/page/hub?search=tiny").status == 501
        assert client.ask("/props").json["may_pull"] is False
