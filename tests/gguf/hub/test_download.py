"""Models by name, from a server that speaks the hub's interface."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE

import huggingface_hub
import huggingface_hub.constants
import pytest

from oxillama import ConfigError, InferenceEngine, ModelFileError, OxiLlamaError, demo
from oxillama.apps import cli
from oxillama.apps.cli.serve import engine_options, hosted_model, hosted_models, server_config
from oxillama.apps.server.ollama import pulling
from oxillama.gguf.hub import download, library, transfer
from oxillama.gguf.hub.cached import cached_models, remove
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.names import HubName
from oxillama.models.media.beside import found_beside
from tests.support.faults import CHANGING, OTHERS, every_fault
from tests.support.hub import COMMIT, Hub, used
from tests.support.paths import ROOT
from tests.support.server import serving_models
from tests.support.spread import slow
from tests.support.waiting import until

DRAFT = demo.DRAFT.read_bytes()
OTHER = bytes(range(256)) * 400
NAME = HubName("ann/tiny", tag="Q8_0")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with two models, of which one is split; downloads go to a cache of the test's own."""
    files = {
        "README.md": b"# tiny",
        "tiny-Q8_0.gguf": DRAFT,
        "big-F16-00001-of-00002.gguf": OTHER,
        "big-F16-00002-of-00002.gguf": OTHER[::-1],
    }
    with used(Hub({"ann/tiny": files}), tmp_path, monkeypatch) as found:
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two attempts
        yield found


def test_a_model_is_downloaded_once(hub: Hub) -> None:
    told = []
    for _ in range(2):
        path = fetch(NAME, progress=False, announce=lambda file: told.append(file.path))
        assert path.read_bytes() == DRAFT
    assert hub.downloads() == told == ["tiny-Q8_0.gguf"]


def test_all_files_of_a_split_model_come(hub: Hub) -> None:
    path = fetch(HubName("ann/tiny", tag="F16"), progress=False)
    assert path.name == "big-F16-00001-of-00002.gguf"
    assert path.read_bytes() == OTHER
    assert path.with_name("big-F16-00002-of-00002.gguf").read_bytes() == OTHER[::-1]


def test_a_connection_that_was_cut_goes_on_where_it_ended(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 8)  # what came whole is kept
    hub.cuts = 2
    assert fetch(NAME, progress=False).read_bytes() == DRAFT
    ranges = [told for method, path, told in hub.asked if method == "GET" and path.endswith(".gguf")]
    assert ranges[0] is None
    assert [int(text.removeprefix("bytes=").rstrip("-")) for text in ranges[1:]] == [
        len(DRAFT) // 2,
        len(DRAFT) // 2 + (len(DRAFT) - len(DRAFT) // 2) // 2,
    ]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_interrupted_download_goes_on_in_another_process(hub: Hub, is_damaged: bool) -> None:
    hub.cuts = 10**6
    with pytest.raises(ModelFileError, match="did not give it"):
        fetch(NAME, progress=False)
    (part,) = Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("*.incomplete")
    n = part.stat().st_size
    assert 0 < n < len(DRAFT) and part.read_bytes() == DRAFT[:n]
    if is_damaged:
        part.write_bytes(b"?" * n)
    hub.cuts, before = 0, len(hub.asked)
    assert fetch(NAME, progress=False).read_bytes() == DRAFT
    ranges = [told for method, path, told in hub.asked[before:] if method == "GET" and path.endswith(".gguf")]
    assert ranges == [f"bytes={n}-", *([None] if is_damaged else [])]
    assert not list(Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("*.incomplete"))


def test_a_connection_that_is_always_cut_is_an_error(hub: Hub) -> None:
    hub.cuts = 10**6
    with pytest.raises(ModelFileError, match=r"ann/tiny:Q8_0: tiny-Q8_0\.gguf: http.* did not give it: "):
        fetch(NAME, progress=False)
    assert cached_models() == []


def test_wrong_bytes_are_an_error_and_are_deleted(hub: Hub) -> None:
    hub.wrong["tiny-Q8_0.gguf"] = DRAFT[:-1] + b"x"
    with pytest.raises(ModelFileError, match=r"tiny-Q8_0\.gguf: expected bytes of hash \w+, got \w+; it was"):
        fetch(NAME, progress=False)
    hub.wrong.clear()
    assert fetch(NAME, progress=False).read_bytes() == DRAFT


@pytest.mark.parametrize("checks_all", [False, True])
def test_a_file_that_was_changed_in_the_cache_is_found(hub: Hub, checks_all: bool) -> None:
    path = fetch(NAME, progress=False)
    path.write_bytes(DRAFT[:-1] + b"x")
    with pytest.raises(ModelFileError, match="expected bytes of hash"):
        fetch(NAME, progress=False, check_all=checks_all)
    assert fetch(NAME, progress=False).read_bytes() == DRAFT


def test_damage_that_the_system_does_not_tell_is_found_by_pull(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = transfer.identity_of(fetch(NAME, progress=False))
    fetch(NAME, progress=False).write_bytes(DRAFT[:-1] + b"x")
    monkeypatch.setattr(transfer, "identity_of", lambda path: identity)
    assert fetch(NAME, progress=False).read_bytes() != DRAFT
    with pytest.raises(ModelFileError, match="expected bytes of hash"):
        fetch(NAME, progress=False, check_all=True)


def test_small_files_have_another_hash(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.hub.entry", lambda path, data: {
        "type": "file", "path": path, "size": len(data), "oid": "0" * 40,
    })  # fmt: skip
    with pytest.raises(ModelFileError, match=f"expected bytes of hash {'0' * 40}"):
        fetch(NAME, progress=False)


def test_without_a_network_the_cache_is_used_with_a_warning(hub: Hub) -> None:
    path = fetch(NAME, progress=False)
    url = hub.url
    huggingface_hub.constants.ENDPOINT = "http://127.0.0.1:9"
    with pytest.warns(
        UserWarning, match="ann/tiny:Q8_0: 127.0.0.1:9 cannot be reached .*; what is in the cache is used"
    ):
        assert fetch(NAME, progress=False) == path
    with pytest.raises(ModelFileError, match=r"bob/other:Q8_0: .*, and it is not in the cache"):
        fetch(HubName("bob/other", tag="Q8_0"), progress=False)
    huggingface_hub.constants.ENDPOINT = url


def test_an_address_that_does_not_answer_is_an_error_at_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(ModelFileError, match=r"1:\d+ cannot be reached \(.*refused\), and it is not"):
        fetch(NAME, progress=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: threading.Event().wait(5))
    monkeypatch.setattr(download, "LOOKUP_SECONDS", 0.05)
    with pytest.raises(ModelFileError, match=r"no answer within 0\.05 s, and it is not in the cache"):
        fetch(NAME, progress=False)


def test_offline_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(NAME, progress=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    n = len(hub.asked)
    assert fetch(NAME, progress=False) == path
    with pytest.raises(ConfigError, match=r"F16: expected a model of the repository, it has tiny-Q8_0\.gguf"):
        fetch(HubName("ann/tiny", tag="F16"), progress=False)
    with pytest.raises(ModelFileError, match="HF_HUB_OFFLINE is set, and it is not in the cache"):
        fetch(HubName("bob/other", tag="F16"), progress=False)
    assert len(hub.asked) == n


def test_what_the_hub_refuses(hub: Hub) -> None:
    with pytest.raises(ModelFileError, match=r"bob/none:Q8_0: no such repository at http"):
        fetch(HubName("bob/none", tag="Q8_0"), progress=False)
    with pytest.raises(ModelFileError, match="has no such revision"):
        fetch(HubName("ann/tiny", tag="Q8_0", revision="v7"), progress=False)
    with pytest.raises(ModelFileError, match=r"ann/a--b"):
        fetch(HubName("ann/a--b", tag="Q8_0"), progress=False)


def test_a_private_repository_needs_a_token(hub: Hub) -> None:
    hub.private = True
    with pytest.raises(ModelFileError, match="or a private one"):
        fetch(NAME, progress=False)
    fetch(NAME, progress=False, token="hf_secret")
    assert hub.tokens[-1] == "Bearer hf_secret"


def test_a_commit_is_a_revision(hub: Hub) -> None:
    path = fetch(HubName("ann/tiny", tag="Q8_0", revision=COMMIT), progress=False)
    assert COMMIT in path.parts


def test_bytes_that_another_revision_has_are_kept(hub: Hub) -> None:
    path = fetch(NAME, progress=False)
    snapshots = path.parents[1]
    (snapshots / ("f" * 40)).mkdir()
    other = snapshots / ("f" * 40) / path.name
    other.symlink_to(path.readlink())
    assert remove(HubName("ann/tiny", tag="Q8_0", revision="main")) == 0
    assert not path.exists() and other.read_bytes() == DRAFT
    assert [str(model.name) for model in cached_models()] == [f"hf://ann/tiny@{'f' * 40}/tiny-Q8_0.gguf"]
    assert remove(HubName("ann/tiny", tag="Q8_0")) == len(DRAFT)
    assert not other.is_symlink()


def test_engines_from_the_hub(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = InferenceEngine.from_gguf(demo.DRAFT).generate("Once", temperature=0, max_tokens=8)
    cache = tmp_path / "elsewhere"
    for arguments in (("ann/tiny", "*Q8_0.gguf"), ("ann/tiny:Q8_0",), ("hf://ann/tiny/tiny-Q8_0.gguf",)):
        engine = InferenceEngine.from_pretrained(*arguments, cache_dir=cache, num_threads=1)
        assert engine.generate("Once", temperature=0, max_tokens=8) == expected
        assert cache in Path(str(engine.config.model_path)).parents
    for arguments, message in (
        (("ann/tiny", "*.gguf"), "2 have it: big-F16-00001-of-00002.gguf, tiny-Q8_0.gguf"),
        (("ann/tiny", "*Q5*"), "expected a model of the repository, it has big-F16"),
        (("ann/tiny", ""), "filename: expected text that is not empty, got ''"),
        (("ann/tiny:Q8_0", "*"), "filename: cannot be combined with the name ann/tiny:Q8_0"),
        (("tiny",), "expected hf://user/repo/file.gguf"),
        (("ann/tiny/x.gguf",), "repo_id: expected user/repo or a name"),
    ):
        with pytest.raises(ValueError, match=message.replace("*", r"\*")):
            InferenceEngine.from_pretrained(*arguments)


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"expected the package huggingface_hub \(pip install"):
        library.library()


# --- faults, and other processes ----------------------------------------------------------------------


@pytest.mark.slow  # every call of a download, one after another
@pytest.mark.parametrize("operations", [CHANGING, OTHERS], ids=["changing", "others"])
def test_a_call_that_fails_leaves_no_half_of_a_model(
    hub: Hub, tmp_path: Path, operations: tuple[str, ...]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = fetch(NAME, progress=False)

    def before() -> None:
        shutil.rmtree(cache)
        cache.mkdir()

    def after(error: OxiLlamaError | None) -> None:
        assert not path.exists() or path.read_bytes() == DRAFT
        if error is None:
            assert path.read_bytes() == DRAFT
        assert fetch(NAME, progress=False).read_bytes() == DRAFT
        assert not list(cache.rglob("*.incomplete"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the package about symbolic links and its logs
        work = partial(fetch, NAME, progress=False, check_all=True)
        counts = every_fault("hub", cache, before, work, after, operations)
    assert counts.keys() >= {"open", "write", "rename", "read", "mkdir", "stat"} & set(operations)


@pytest.mark.parametrize("operations", [CHANGING, slow((OTHERS,))], ids=["changing", "others"])
def test_a_call_that_fails_while_models_are_listed_or_deleted(
    hub: Hub, tmp_path: Path, operations: tuple[str, ...]
) -> None:
    cache = tmp_path / "cache"

    def use() -> None:
        assert [model.name.file for model in cached_models()] == ["tiny-Q8_0.gguf"]
        assert remove(NAME) == len(DRAFT)

    def after(error: OxiLlamaError | None) -> None:
        assert fetch(NAME, progress=False).read_bytes() == DRAFT

    def before() -> None:
        fetch(NAME, progress=False)

    before()
    counts = every_fault("hub, list and rm", cache, before, use, after, operations)
    assert counts.keys() >= {"list", "stat", "unlink"} & set(operations)


FETCH = """
import sys
import huggingface_hub.constants as constants
constants.ENDPOINT, constants.HF_HUB_CACHE = sys.argv[1:]
constants.HUGGINGFACE_CO_URL_TEMPLATE = sys.argv[1] + "/{repo_id}/resolve/{revision}/{filename}"
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.names import HubName
from oxillama.models.media.beside import found_beside
print(fetch(HubName("ann/tiny", tag="Q8_0"), progress=False))
"""


@pytest.mark.parametrize("kills", [False, True], ids=["both end", "one is killed"])
def test_of_two_processes_that_download_a_model_each_has_it(hub: Hub, tmp_path: Path, kills: bool) -> None:
    hub.gate = threading.Event()
    command = [sys.executable, "-c", FETCH, hub.url, str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=PIPE, text=True, env=environment) as other:
        until(lambda: "tiny-Q8_0.gguf" in hub.downloads(), 60)
        assert cached_models() == []  # the other has half of it
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(fetch, NAME, progress=False)
            if kills:
                other.kill()
            hub.gate.set()
            path = ours.result(60)
        told = other.communicate(timeout=60)[0]
    assert path.read_bytes() == DRAFT
    assert kills or told == f"{path}\n"
    assert kills or not list((tmp_path / "cache").rglob("*.incomplete"))
    assert [model.size for model in cached_models()] == [len(DRAFT)]


# --- the command line ---------------------------------------------------------------------------------


def test_commands(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == "model  size  last used\n"
    assert cli.main(["pull", "ann/tiny:Q8_0"]) == 0
    told = capsys.readouterr()
    assert Path(told.out.strip()).read_bytes() == DRAFT
    assert told.err == "oxillama: note: downloading tiny-Q8_0.gguf (677.7 KiB)\n"
    assert cli.main(["info", "ann/tiny:Q8_0", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "llama"
    assert cli.main(["pull", "-q", "hf://ann/tiny/big*"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["list", "--json"]) == 0
    split, tiny = json.loads(capsys.readouterr().out)
    assert (split["name"], split["bytes"], len(split["files"])) == (
        "hf://ann/tiny/big-F16-00001-of-00002.gguf",
        2 * len(OTHER),
        2,
    )
    assert tiny["name"] == "hf://ann/tiny/tiny-Q8_0.gguf"
    Path(split["files"][1]).unlink()
    assert cli.main(["list"]) == 0
    assert "100.0 KiB, 1 files are missing" in capsys.readouterr().out
    for name in ("hf://ann/tiny/*", "ann/tiny:Q5_0", "bob/none:Q8_0"):
        assert cli.main(["rm", name]) == 2
        assert f"{name}: expected a name of one model in the cache, got " in capsys.readouterr().err
    for model in (split, tiny):
        files = [Path(path) for path in model["files"] if Path(path).exists()]
        blobs = [path.resolve() for path in files]
        assert cli.main(["rm", model["name"]]) == 0
        assert not any(path.exists() for path in [*files, *blobs])
    assert cached_models() == []


def test_a_packed_file_beside_a_model_of_the_hub(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", "ann/tiny:Q8_0", "-q"]) == 0
    path = Path(capsys.readouterr().out.removeprefix("wrote ").partition(": ")[0])
    assert path.name == "tiny-Q8_0.gguf.packed" and path.is_file()
    assert cli.main(["pack", "ann/tiny:Q8_0", "-q", "--check"]) == 0
    assert [str(model.name) for model in cached_models()] == ["hf://ann/tiny/tiny-Q8_0.gguf"]
    assert remove(NAME) > len(DRAFT)
    assert not path.exists()


def test_a_projector_file_comes_with_its_model(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    made = {f"mmproj-{name}.gguf": name.encode() for name in ("BF16", "F32", "F16")}
    hub.repos["ann/tiny"] |= made
    assert fetch(NAME, progress=False).read_bytes() == DRAFT
    assert hub.downloads() == ["tiny-Q8_0.gguf"]
    assert cli.main(["pull", "ann/tiny:Q8_0", "-q"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert hub.downloads() == ["tiny-Q8_0.gguf", "mmproj-F16.gguf"]
    assert (path.name, path.with_name("mmproj-F16.gguf").read_bytes()) == ("tiny-Q8_0.gguf", b"F16")
    assert found_beside(path) == path.with_name("mmproj-F16.gguf")
    assert remove(NAME) and not path.exists()


def test_projector_files_that_are_asked_for(hub: Hub, tmp_path: Path) -> None:
    """Python fetches them with an option, the command line unless an option forbids them."""
    hub.repos["ann/tiny"]["mmproj-F16.gguf"] = b"F16"
    for wanted in (False, True):
        with InferenceEngine.from_pretrained(
            "ann/tiny:Q8_0", cache_dir=tmp_path, pull_mmproj=wanted, num_threads=1
        ) as engine:
            path = Path(str(engine.config.model_path))
            assert path.with_name("mmproj-F16.gguf").exists() == wanted
    assert cli.main(["pull", "ann/tiny:Q8_0", "-q", "--no-mmproj"]) == 0
    for option, n in ((["--no-pull-mmproj"], 0), ([], 1)):
        args = cli.build_parser("serve").parse_args(["serve", "ann/tiny:Q8_0", "-q", *option])
        (model,) = hosted_models(args, server_config(args))
        assert model.path is not None
        assert len(list(Path(model.path).parent.glob("mmproj*"))) == n


def test_models_of_the_hub_are_served(hub: Hub) -> None:
    arguments = ["serve", "--model", "tiny=ann/tiny:Q8_0", "--model", "hf://ann/tiny/tiny-Q8_0.gguf", "-q"]
    args = cli.build_parser().parse_args(arguments)
    models = hosted_models(args, server_config(args))
    assert [model.name for model in models] == ["tiny", "tiny-Q8_0"]
    assert hub.downloads() == ["tiny-Q8_0.gguf"]  # at the start, not for a client
    for model in models:
        assert model.load is not None and model.path is not None
        assert Path(model.path).read_bytes() == DRAFT
        with model.load() as engine:
            assert engine.config.model_path == model.path


def test_clients_pull_models_if_they_may(hub: Hub) -> None:
    args = cli.build_parser("serve").parse_args(["serve", "-q", str(demo.STORY)])
    make = partial(hosted_model, args, server_config(args), engine_options(args))
    name = "hf.co/ann/tiny:Q8_0"
    with serving_models(*hosted_models(args, server_config(args))) as client:
        answer = client.ask("/api/pull", {"model": name})
        assert (answer.status, answer.json) == (404, {"error": f"model: expected story, got {name}"})
    assert hub.asked == []
    with serving_models(*hosted_models(args, server_config(args)), make=make, allow_pull=True) as client:
        first, *steps, last = client.ask("/api/pull", {"model": name}).lines
        assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
        assert {(step["status"], step["total"]) for step in steps} == {("pulling tiny-Q8_0.gguf", len(DRAFT))}
        arrived = [step["completed"] for step in steps]
        assert arrived[0] == 0 and arrived[-1] == len(DRAFT) and arrived == sorted(arrived)
        again = {"model": name, "stream": False}
        assert client.ask("/api/pull", again).json == {"status": "success"}
        body: dict[str, object] = {"model": name, "prompt": "Once", "raw": True, "stream": False}
        body["options"] = {"num_predict": 4, "seed": 1}
        with InferenceEngine.from_gguf(demo.DRAFT) as alone:
            expected = alone.generate("Once", max_tokens=4, seed=1)
        assert client.ask("/api/generate", body).json["response"] == expected
        assert [each["name"] for each in client.ask("/api/tags").json["models"]] == ["story:latest", name]
        for wrong, message in (
            ("ann/tiny:Q5_0", "it has big-F16"),
            ("../..:Q8_0", "../..:Q8_0: "),
            ("bob/none:Q8_0", "no such repository"),
        ):
            answer = client.ask("/api/pull", {"model": wrong, "stream": False})
            assert answer.status == 400 and message in answer.json["error"]
            *_, last = client.ask("/api/pull", {"model": wrong}).lines
            assert message in last["error"]
        for other in ("../../etc/passwd", "/etc/passwd", "story2"):
            assert client.ask("/api/pull", {"model": other}).status == 404
        assert client.ask("/api/pull", {"model": name, "insecure": True}).status == 400
    assert hub.downloads() == ["tiny-Q8_0.gguf"]


def test_a_download_goes_on_when_its_client_has_gone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    args = cli.build_parser("serve").parse_args(["serve", "-q", str(demo.STORY)])
    make = partial(hosted_model, args, server_config(args), engine_options(args))
    go_on, found = threading.Event(), []

    def slow(*args: object, **options: object) -> Path:
        assert go_on.wait(60)
        found.append(fetch(*args, **options))  # type: ignore[arg-type]
        return found[0]

    monkeypatch.setattr(pulling, "fetch", slow)
    with serving_models(*hosted_models(args, server_config(args)), make=make, allow_pull=True) as client:
        connection, response = client.open("/api/pull", {"model": "ann/tiny:Q8_0"})
        assert json.loads(response.readline()) == {"status": "pulling manifest"}
        response.close()
        connection.close()
        until(lambda: not len(client.server._app.state.in_flight))
        go_on.set()
        until(lambda: bool(found))
    assert found[0].read_bytes() == DRAFT


def test_a_path_that_exists_wins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "tiny:Q8_0").write_bytes(demo.STORY.read_bytes())
    assert cli.main(["info", "ann/tiny:Q8_0", "--json"]) == 0
    assert "story" in capsys.readouterr().out.lower()
    assert hub.asked == []


@pytest.mark.parametrize(
    ("model", "message", "asks"),
    [
        (
            "bob/none:Q8_0",
            "bob/none:Q8_0: no such file, and no model of the hub: bob/none:Q8_0: no such rep",
            True,
        ),
        ("hf://bob/none", "error: hf://bob/none: no such repository at ", True),
        (
            "models/tiny.gguf",
            "models/tiny.gguf: no such file (a model of the hub is named user/repo:Q4_K_M",
            False,
        ),
        ("ann/tiny", "ann/tiny: no such file (a model of the hub is named user/repo:Q4_K_M", False),
        ("/nowhere/at/all.gguf", "/nowhere/at/all.gguf: ", False),
    ],
)
def test_a_model_that_is_nowhere(
    hub: Hub, capsys: pytest.CaptureFixture[str], model: str, message: str, asks: bool
) -> None:
    for command in (["run", model, "-p", "x"], ["bench", model], ["tokenize", model, "x"]):
        assert cli.main(command) == 2
        assert message in capsys.readouterr().err
    assert bool(hub.asked) is asks
