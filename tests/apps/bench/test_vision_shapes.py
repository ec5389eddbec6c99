"""Projector files of random weights in the shapes of real encoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.make_model import write_projector
from benchmarks.vision_shapes import VISION_SHAPES
from oxillama._kernels import best
from oxillama.models.media.decode import Picture
from oxillama.models.media.encoder import MediaEncoder

pytest.importorskip("gguf", reason="gguf is not installed")

NAMES = sorted(VISION_SHAPES)


@pytest.mark.parametrize("format", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_projector_files_load(name: str, format: str, tmp_path: Path) -> None:
    """A file with one narrow block: the encoder uses all tensors, and no two rows are equal."""
    shape = replace(VISION_SHAPES[name], n_layer=1, side=4 * VISION_SHAPES[name].patch, deep=(0,))
    shape = replace(shape, d=64, n_ff=80, n_head=2, n_out=32, deep=shape.deep if "qwen" in name else ())
    size = write_projector(tmp_path / "out.gguf", shape, format)
    assert size == (tmp_path / "out.gguf").stat().st_size
    encoder = MediaEncoder(tmp_path / "out.gguf", best(), 1)
    assert encoder.unused == []
    pixels = np.random.default_rng(0).integers(0, 256, (128, 96, 3)).astype(np.uint8)
    rows = encoder.encode(Picture(pixels)).rows[0].values
    assert rows.shape[1] == 32 * (1 + len(shape.deep))
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.gguf"
    assert main(["make-model", "smolvlm2-500m-vision", "Q8_0", str(path), "--layers", "1"]) == 0
    assert f"{path}: {path.stat().st_size / 1e6:.1f} MB" in capsys.readouterr().out
    assert MediaEncoder(path, best(), 1).out_width == 960
    assert main(["make-model", "smolvlm2-500m-vision", "Q4_K_M", str(path)]) == 2
    assert "projector files have one format" in capsys.readouterr().err
