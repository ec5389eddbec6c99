"""Prompts with media through an engine: the same bits in every batch and chunk, and clear errors."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine, LoadError, MediaError, PromptError
from oxillama._kernels import best, load
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama.base.formats import KV_TYPES
from oxillama.engine.features.media.feature import interleaved_axes
from oxillama.engine.features.media.input_embeddings import InputEmbeddings, Run, Span, SpannedBatch
from oxillama.engine.features.media.prompt import cut_at
from oxillama.models.media.decode import Picture
from oxillama.models.media.encoder import MediaEncoder, Rows
from tests.support.kernels import PRESENT
from tests.support.media import TEXT, WIDTH, bits, logits_of, opened, picture, projector_file, prompt, started


def test_chunks_pages_and_prefixes_change_no_bit(kind: str, folder: Path, engine: InferenceEngine) -> None:
    wanted = bits(engine, prompt(engine, 1))
    assert (bits(engine, prompt(engine, 1)) == wanted).all()  # from the prefix cache
    assert (bits(engine, prompt(engine, 2)) != wanted).any()  # another picture
    for options in ({"prefill_chunk_size": 5}, {"page_size": 4}, {"prefix_cache_bytes": 0}):
        with opened(folder, kind, **options) as other:
            assert (bits(other, prompt(other, 1)) == wanted).all()


def test_a_batch_changes_no_bit(engine: InferenceEngine) -> None:
    prompts = [prompt(engine, 3), prompt(engine, 4), "once upon a time", prompt(engine, 5)]
    alone = [bits(engine, each) for each in prompts]
    for generation, wanted in zip([started(engine, each) for each in prompts], alone, strict=True):
        assert (logits_of(generation) == wanted).all()
    assert engine.model.check_integrity() is None


def test_the_prefix_cache_tells_pictures_apart(engine: InferenceEngine) -> None:
    before = [bits(engine, prompt(engine, seed), salt=f"alone {seed}") for seed in (6, 7)]
    assert (bits(engine, prompt(engine, 6)) == before[0]).all()
    assert (bits(engine, prompt(engine, 7)) == before[1]).all()
    one, other = (prompt(engine, seed) for seed in (6, 7))
    assert one.embeddings.marked(one.tokens) != other.embeddings.marked(other.tokens)
    assert one.embeddings.marked(one.tokens) == prompt(engine, 6).embeddings.marked(one.tokens)
    rows = one.embeddings.spans[0].rows
    for other_rows in (replace(rows, grid=(3, 5)), replace(rows, both_ways="x")):
        assert other_rows.digest != rows.digest


def test_samples_of_one_prompt(engine: InferenceEngine) -> None:
    given = prompt(engine, 1)
    whole = engine.generate(given, seed=3, max_tokens=6)
    assert engine.generate_n(given, n=2, seed=3, max_tokens=6)[0].text == whole


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_encoders_have_the_same_bits_everywhere(kind: str, target: str, n_threads: int) -> None:
    data, source = projector_file(kind), Picture(picture(200, 90))
    wanted = MediaEncoder(data, best(), 1).encode(source).rows
    found = MediaEncoder(data, load(target), n_threads).encode(source).rows
    assert all((a.values == b.values).all() for a, b in zip(wanted, found, strict=True))


def test_eight_pictures_have_the_bits_of_one(engine: InferenceEngine) -> None:
    """One prompt and eight, encoded by eight threads at once, with and without kept rows."""
    media, seeds = engine.model.feature("media"), range(20, 28)
    alone = [bits(engine, prompt(engine, seed), salt=f"a {seed}") for seed in seeds]
    wanted = [media.encode(picture(56, 28, seed)).rows for seed in seeds]
    media._kept.clear()
    media._kept_bytes = 0
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: media.encode(picture(56, 28, seed)).rows, seeds))
    for one, other in zip(wanted, found, strict=True):
        assert all((a.values == b.values).all() for a, b in zip(one, other, strict=True))
    running = [started(engine, prompt(engine, seed), salt=f"b {seed}") for seed in seeds]
    for generation, rows in zip(running, alone, strict=True):
        assert (logits_of(generation) == rows).all()


# --- rows that see each other ------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 4, 12, 100])
@pytest.mark.parametrize("both_ways", ["", "all", "windowed"])
def test_rows_of_a_picture_see_each_other(window: int, both_ways: str) -> None:
    """A window cuts what is far behind a row, and nothing before it."""
    n, span, heads, dim = 40, (9, 29), 2, 16
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3 * heads * dim)).astype(np.float32)
    q, k, v = (x[:, i * heads * dim : (i + 1) * heads * dim].reshape(n, heads, dim) for i in range(3))
    kernels = best().attention
    shape = kernels.KvShape(1, heads, dim, dim, KV_TYPES["f32"], KV_TYPES["f32"], 64)
    pages = PageTable(shape.page_bytes)
    pages.put(0, aligned_empty(shape.page_bytes).reshape(1, -1))
    table = np.zeros((1, 1), np.int32)

    def batch(begin: int, end: int) -> Any:
        return kernels.PagedBatch(
            shape, pages, table, np.array([0, end - begin], np.int32), np.array([begin], np.int32)
        )

    parts = [Run(0, span[0], ""), Run(*span, both_ways), Run(span[1], n, "")]
    spanned = SpannedBatch(batch(0, n), [(run, batch(run.begin, run.end)) for run in parts])
    out = np.empty((n, heads * dim), np.float32)
    spanned.store(0, x, heads * dim, 2 * heads * dim, 1)
    spanned.attend(0, x, heads, 0.25, out, aligned_empty(spanned.scratch_bytes(1)), 1, window)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    inside = (i >= span[0]) & (i < span[1]) & (j < span[1])
    together = inside if both_ways == "all" or (both_ways and window) else np.zeros_like(inside)
    seen = ((j <= i) | together) & ((i - j < window) if window else True)
    scores = np.einsum("ihd,jhd->hij", q, k).astype(float) * 0.25
    powers = np.where(seen, np.exp(scores - scores.max()), 0)
    wanted = np.einsum("hij,jhd->ihd", powers / powers.sum(axis=2, keepdims=True), v)
    assert np.abs(out.reshape(n, heads, dim) - wanted).max() < 1e-5


def test_positions_of_grids() -> None:
    rows = [Rows(np.zeros((6, 8), np.float32), (3, 2), ""), Rows(np.zeros((2, 8), np.float32), None, "")]
    given = InputEmbeddings(
        [Span(2, rows[0]), Span(9, rows[1])], interleaved_axes(np.arange(8) % 8, [4, 2, 2, 0])
    )
    assert given.axes is not None and given.axes.tolist() == [0, 1, 2, 0, 1, 2, 0, 3]
    found = given.coordinates(0, 13)
    assert found[0].tolist() == [0, 1, *[2] * 6, 5, 6, 7, 8, 9]
    assert found[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9]
    assert found[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9]
    assert given.coordinates(12, 20).tolist() == [list(range(9, 17))] * 3


# --- conversations -----------------------------------------------------------------------------------


def chat(engine: InferenceEngine, *parts: Any) -> str:
    content = [{"type": "text", "text": "the little"}, *parts, {"type": "text", "text": "said"}]
    return engine.chat([{"role": "user", "content": content}], temperature=0, max_tokens=8)


def test_parts_of_messages(engines: dict[str, InferenceEngine], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    engine, path = engines["mlp"], tmp_path / "a.png"
    pixels = picture(40, 30)
    image.fromarray(pixels).save(path)
    data = path.read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    wanted = chat(engine, {"type": "image", "image": pixels})
    for part in (
        {"type": "image", "path": str(path)},
        {"type": "image", "image": path},
        {"type": "image", "image": data},
        {"type": "image", "image": image.open(path)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
    ):
        assert chat(engine, part) == wanted
    assert chat(engine, {"type": "image", "image": picture(40, 30, 1)}) != wanted


def test_parts_that_are_refused(engines: dict[str, InferenceEngine], folder: Path) -> None:
    for part, match in (
        ({"type": "image"}, "expected a medium"),
        ({"type": "video", "video": "a"}, "part of type text"),
        ({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}, "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "nothing is fetched"),
    ):
        with pytest.raises(ConfigError, match=match):
            chat(engines["mlp"], part)
    with pytest.raises(ConfigError, match="no encoder of sounds"):
        chat(engines["mlp"], {"type": "audio", "audio": np.zeros(1000, np.float32)})
    with (
        InferenceEngine.from_gguf(folder / "text.gguf", num_threads=1) as plain,
        pytest.raises(ConfigError, match=r"content\[1\]: the model takes no pictures: it has no projector"),
    ):
        chat(plain, {"type": "image", "image": picture()})


def test_a_text_cannot_be_a_marker(engines: dict[str, InferenceEngine]) -> None:
    engine = engines["mlp"]
    said = engine.chat([{"role": "user", "content": "a <__media__> <__media 0 1__>"}], max_tokens=2)
    assert isinstance(said, str)


# --- what cannot be --------------------------------------------------------------------------------------


def test_markers_and_media_must_match(engines: dict[str, InferenceEngine]) -> None:
    media = engines["mlp"].model.feature("media")
    with pytest.raises(ConfigError, match="one for each of 1 markers, got 0"):
        media.prompt(TEXT, [])
    with pytest.raises(PromptError, match="of media alone"):
        media.prompt("<__media__>" * 300, [picture()] * 300)
    with pytest.raises(MediaError, match="0 x 5"):
        media.prompt(TEXT, [np.zeros((5, 0, 3), np.uint8)])


@pytest.mark.parametrize(
    ("text", "said"),
    [("<1>", "medium 2 of 2 is not shown"), ("<2><1>", "or moved"), ("<1><2><1>", "more than once")],
)
def test_templates_that_do_not_show_each_medium_once(text: str, said: str) -> None:
    assert cut_at("a<1><2>b", ["<1>", "<2>"]) == ["a", "", "b"]
    with pytest.raises(ConfigError, match=said):
        cut_at(text, ["<1>", "<2>"])


def test_features_that_know_tokens_alone_refuse(engines: dict[str, InferenceEngine]) -> None:
    engine = engines["mlp"]
    given = prompt(engine, 1)
    with pytest.raises(PromptError, match="expected text or token ids, got MediaPrompt"):
        engine.beam_search(given)
    with pytest.raises(PromptError, match="expected text or token ids, got MediaPrompt"):
        engine.hidden_states(given)


def test_a_projector_of_another_width(folder: Path, tmp_path: Path) -> None:
    shapes = {"mm.2.weight": (WIDTH + 4, 32)}
    (tmp_path / "other.gguf").write_bytes(projector_file(shapes=shapes))
    with pytest.raises(LoadError, match=f"width {WIDTH}, as the model takes them, got {WIDTH + 4}"):
        InferenceEngine.from_gguf(folder / "text.gguf", mmproj=tmp_path / "other.gguf")


def test_a_named_projector(folder: Path) -> None:
    path = folder / "mlp" / "mmproj-F32.gguf"
    with InferenceEngine.from_gguf(folder / "text.gguf", mmproj=path, num_threads=1) as engine:
        assert engine.model.feature("media").encode(picture()).n_tokens == 16
    with pytest.raises(LoadError, match="expected clip"):
        InferenceEngine.from_gguf(folder / "text.gguf", mmproj=folder / "text.gguf")
