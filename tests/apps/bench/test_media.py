"""`benchmarks media`: both servers are asked the same, and every client gets its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import media
from benchmarks.commands import parser
from benchmarks.make_model import write_model, write_projector
from benchmarks.shapes import SHAPES
from benchmarks.vision_shapes import VISION_SHAPES
from oxillama import InferenceEngine
from oxillama.errors import ConfigError
from tests.support.server import serving

pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow SmolVLM2: its tiles have names of control tokens around them."""
    found = tmp_path_factory.mktemp("pair")
    text = replace(SHAPES["smolvlm2-500m"], n_embd=32, n_ff=64, n_layer=1, n_head=2, n_head_kv=1)
    write_model(found / "text.gguf", replace(text, n_vocab=1000, context=1024), "F16")
    sight = replace(VISION_SHAPES["smolvlm2-500m-vision"], side=64, d=32, n_ff=32, n_layer=1, n_head=2)
    write_projector(found / "mmproj.gguf", replace(sight, n_out=32), "F16")
    return found


def test_the_figures_of_two_servers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, str]] = []
    ask = media.ask

    def noted(port: int, body: str) -> Any:
        answer = ask(port, body)
        asked.append((port, body))
        return answer

    monkeypatch.setattr(media, "ask", noted)
    engines = [InferenceEngine.from_gguf(folder / "text.gguf", num_threads=1) for _ in range(2)]
    with serving(engines[0]) as ours, serving(engines[1]) as theirs:
        ports = [int(client.server.url.rpartition(":")[2]) for client in (ours, theirs)]

        @contextmanager
        def given(port: int) -> Iterator[Any]:
            yield port

        monkeypatch.setattr(media, "served", lambda *_: given(SimpleNamespace(port=ports[0])))  # type: ignore[arg-type]
        monkeypatch.setattr(media, "llama_server", lambda *_: given(SimpleNamespace(port=ports[1])))  # type: ignore[arg-type]
        options = ["--rounds", "1", "--warmup", "0", "--clients", "3", "--new", "4", "--picture", "64x16"]
        files = ["--model", str(folder / "text.gguf"), "--mmproj", str(folder / "mmproj.gguf")]
        args = parser().parse_args(["media", *files, *options, "--peer", "llama-server"])
        assert args.run(args) == 0
    table = capsys.readouterr().out
    for metric in (media.FIRST, media.AGAIN, media.together(3)):
        assert metric.name in table
    bodies = [[body for to, body in asked if to == port] for port in ports]
    assert sorted(bodies[0]) == sorted(bodies[1])
    first, again, *many = bodies[0]
    assert first.partition('"text"')[0] == again.partition('"text"')[0] and first != again
    assert len({*many, first}) == 4  # pictures that were not seen before


def test_answers_without_their_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "ask", lambda port, body: {"usage": {"completion_tokens": 3}})
    body = media.body_of(media.picture(8, 8, 0), "what", 4)
    with pytest.raises(ConfigError, match="expected 4 tokens, got 3"):
        media.seconds(1, [body])


def test_pictures_are_those_of_their_seeds() -> None:
    from oxillama.models.media.decode import read_picture

    one, same, other = (read_picture(media.picture(40, 20, seed)).pixels for seed in (1, 1, 2))
    assert one.shape == (20, 40, 3)
    assert (one == same).all() and (one != other).any()
    assert len(np.unique(one.reshape(-1, 3), axis=0)) == 6  # patches of one colour


@pytest.mark.parametrize("text", ["12", "x3", "0x4", "axb"])
def test_sizes_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, ConfigError)):
        parser().parse_args(["media", "--model", "a", "--mmproj", "b", "--picture", text])
