"""Projector files as files: described, and quantized."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama._kernels import best, load
from oxillama.apps.cli import main
from oxillama.apps.quantize.model import quantize_model
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.decode import Picture
from oxillama.models.media.encoder import MediaEncoder
from tests.support.kernels import PRESENT
from tests.support.media import WIDTH, picture, projector_file
from tests.support.tiny_file import write_tiny_model

WIDE = {
    "v.blk.0.ffn_up.weight": (64, 24),
    "v.blk.0.ffn_down.weight": (24, 64),
    "v.blk.1.ffn_up.weight": (64, 24),
    "v.blk.1.ffn_down.weight": (24, 64),
}
"""Rows of 64, which blocks of 32 fit."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "mmproj-F32.gguf"
    keys = {"clip.vision.feed_forward_length": ("u32", 64)}
    found.write_bytes(projector_file("gemma3", keys=keys, shapes=WIDE))
    return found


def test_info_describes_encoders(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (encoder,) = facts["encoders"]
    assert encoder["projector"] == "gemma3" and encoder["layers"] == 2 and encoder["embedding"] == WIDTH
    assert facts["takes"] == ["image"] and not facts["missing"]
    assert main(["info", str(path), "--tensors"]) == 0
    assert "gemma3" in capsys.readouterr().out


def test_info_says_why_a_file_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(projector_file(keys={"clip.projector_type": ("str", "unheard-of")}))
    assert main(["info", str(path)]) == 1
    assert "unheard-of" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_quantized_encoders(kind: str, path: Path, tmp_path: Path) -> None:
    """Convolutions and tables of positions keep their formats; the embeddings stay close."""
    target = tmp_path / f"mmproj-{kind}.gguf"
    quantize_model(path, target, kind)
    with ModelFile.open(target) as file:
        formats = {name: info.format.name for name, info in file.tensors.items()}
    assert formats["v.blk.0.ffn_down.weight"] == kind
    kept = ("v.patch_embd.weight", "v.position_embd.weight", "mm.input_projection.weight")
    assert {formats[name] for name in kept} == {"F32"}
    source = Picture(picture(60, 40))
    wanted, found = (MediaEncoder(each, best(), 1).encode(source).rows[0].values for each in (path, target))
    a, b = wanted.astype(float), found.astype(float)
    assert (1 - (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).max() < 1e-3
    for name in PRESENT:
        again = MediaEncoder(target, load(name), 2).encode(source).rows[0].values
        assert (again == found).all()


def test_one_scale_per_row_is_not_for_encoders(path: Path, tmp_path: Path) -> None:
    """`compute` "w8a8" and "w8a8-128" leave embeddings of pictures as they are with "int8"."""
    model, found = write_tiny_model(tmp_path / "text.gguf", n_embd=WIDTH), []
    for compute in ("int8", "w8a8", "w8a8-128"):
        with InferenceEngine.from_gguf(model, mmproj=path, compute=compute, num_threads=1) as engine:
            found.append(engine.model.feature("media").encode(picture(60, 40)).rows[0].values)
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
    rounded = MediaEncoder(path, best(), 1, "w8a8").encode(Picture(picture(60, 40))).rows[0].values
    assert (rounded != found[0]).any()
