"""Tiny models that `transformers` makes of `sighted_configs`, what they compute of a picture or a sound, and
what we compute of their converted files."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from oxillama import InferenceEngine
from oxillama._kernels import best
from oxillama.engine.sequence import Sequence
from oxillama.models.media.decode import Picture, Sound
from oxillama.models.media.encoder import MediaEncoder
from tests.support import huggingface as hf
from tests.support.paths import DATA
from tests.support.sighted_configs import BEGIN, CONFIGS, END, PICTURE, SIZES
from tests.support.transformers_models import Shapes, recorded as recorded_in, stored_shapes, weights_of

RECORDED = DATA / "transformers_media.npz"
recorded = partial(recorded_in, path=RECORDED)
"""The config, the shapes, and the logits at `places` of a recorded model."""
BEFORE, BEHIND = [5, 17, 40, BEGIN], [END, 9, 300, 33, 120, 7]
"""Tokens around the rows of a medium."""

LINE_END = "[IMG_BREAK]"
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.5, 0.3)
EDGES = ("shortest_edge", "longest_edge")


def medium(name: str, seed: int = 0) -> Picture | Sound:
    """What the model of a config is asked about: a picture that no rule resizes, or 30 seconds of noise."""
    rng = np.random.default_rng(seed)
    if name not in SIZES and CONFIGS[name].get("audio_config"):
        return Sound(rng.uniform(-0.5, 0.5, 400_000).astype(np.float32))
    columns, rows = SIZES.get(name, (32, 32))
    return Picture(rng.integers(0, 256, (rows, columns, 3)).astype(np.uint8))


def tokenizer() -> Any:
    """`huggingface.byte_level_tokenizer` with the token that ends a line of a picture."""
    made: Any = hf.byte_level_tokenizer()
    made.add_special_tokens([LINE_END])
    return made


def write_model(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> Path:
    """A folder with these tensors, a tokenizer and the facts of a preprocessor."""
    hf.write_folder(folder, config, weights_of(shapes), tokenizer=tokenizer())
    longest = 32 if config["model_type"] != "paddleocr_vl" else 4096
    facts = {
        "image_mean": MEAN, "image_std": STD, "size": dict(zip(EDGES, (256, longest))),
        "max_image_size": {"longest_edge": 32}, "min_patches": 1, "max_patches": 4,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return folder


def places(n: int) -> list[int]:
    """Rows of n that are compared: the first, the middle and the last of the medium, and the last tokens."""
    first, last = len(BEFORE), n - len(BEHIND) - 1
    return [first, (first + last) // 2, last, n - 3, n - 2, n - 1]


# --- ours -----------------------------------------------------------------------------------------------


def our_logits(text: Path, mmproj: Path, asked: Picture | Sound) -> np.ndarray:
    """float32 (tokens, vocab) of the tokens around a medium and its rows, in one pass."""
    with InferenceEngine.from_gguf(text, mmproj=mmproj, kv_type="f32", num_threads=1) as engine:
        media = engine.model.feature("media")
        at, starts = len(BEFORE), []
        for rows in media.encoder.encode(asked).rows:
            starts.append(at)
            at += len(rows.values)
        tokens = [*BEFORE, *(at - len(BEFORE)) * [0], *BEHIND]
        given = media.embeddings([asked], [starts], len(tokens))

        def run() -> np.ndarray:
            sequence = Sequence(engine.model.pool, tokens, embeddings=given)
            rows = engine.model.runner.forward([(sequence, len(tokens))], all_logits=True)
            sequence.release()
            return np.array(rows)

        return np.asarray(engine.model.call(run))


# --- theirs ---------------------------------------------------------------------------------------------


def make_model(name: str, folder: Path) -> tuple[dict[str, Any], Shapes]:
    """A folder as `transformers` saves it, with weights that follow from the names of its tensors.

    Raises:
        ModuleNotFoundError: torch or transformers is not installed.
        LookupError: this version of transformers does not have the architecture.
    """
    import transformers

    values = copy.deepcopy(CONFIGS[name])
    kind = getattr(transformers, values.pop("architectures")[0], None)
    if kind is None:
        raise LookupError(CONFIGS[name]["architectures"][0])
    kind(kind.config_class(**values)).float().save_pretrained(folder)
    shapes = stored_shapes(folder)
    config = json.loads((folder / "config.json").read_text())
    write_model(folder, config, shapes)
    return config, shapes


def run_transformers(name: str, folder: Path, mmproj: Path) -> np.ndarray:
    """float32 (tokens, vocab): the logits of a folder's model, of the pixels or the spectrogram that the
    converted encoder reads."""
    import torch
    import transformers

    kind = getattr(transformers, CONFIGS[name]["architectures"][0])
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    inputs, rows = inputs_of(name, MediaEncoder(mmproj, best(), 1), medium(name))
    ids = torch.tensor([[*BEFORE, *rows, *BEHIND]])
    kinds = (ids == PICTURE).int() * (3 if isinstance(medium(name), Sound) else 1)
    known = inspect.signature(kind.forward).parameters
    inputs |= dict.fromkeys({"token_type_ids", "mm_token_type_ids"} & known.keys(), kinds)
    mask = torch.ones_like(ids)
    if name == "gemma4_unified":  # the masks of `generate`; those of a bare call differ, in the class
        embedded, at = model.get_input_embeddings()(ids), torch.arange(ids.shape[1])[None]
        mask = model.create_masks_for_generate(model.config, embedded, mask, None, at, kinds)
    with torch.no_grad():
        if name == "llama4":  # the parts of a call that fails behind them, in 5.24's class
            embedded = model.get_input_embeddings()(ids)
            seen = model.get_image_features(**inputs).last_hidden_state.flatten(0, 1)
            embedded[ids == PICTURE] = model.multi_modal_projector(seen)
            found = model.language_model(inputs_embeds=embedded)
        else:
            found = model(input_ids=ids, attention_mask=mask, **inputs)
    return np.asarray(found.logits[0].numpy())


def inputs_of(name: str, encoder: MediaEncoder, asked: Picture | Sound) -> tuple[dict[str, Any], list[int]]:
    """The keyword arguments of a model, and the tokens that stand for the rows of a medium."""
    import torch

    encoded = encoder.encode(asked)
    rows = [PICTURE] * encoded.n_tokens
    if isinstance(asked, Sound):
        assert encoder.audio is not None
        mel = torch.from_numpy(np.concatenate(encoder.audio.pieces(asked.samples)).T.copy())[None]
        if name == "voxtral":
            return {"input_features": mel}, rows
        if name == "gemma4_sound":
            frames = mel.transpose(1, 2)
            mask = torch.ones(1, frames.shape[1]).bool()
            return {"input_features": frames, "input_features_mask": mask}, rows
        return {"input_features": mel, "feature_attention_mask": torch.ones(1, mel.shape[2]).int()}, rows
    facts = encoder.vision.facts  # type: ignore[union-attr]
    tiles = encoder.tiles(asked).pixels
    if name.startswith("gemma4"):
        planes = [tile.astype(np.float32) / 255 for tile in tiles]
    else:
        planes = [(tile.astype(np.float32) / 255 - facts.mean) / facts.std for tile in tiles]
    side = facts.patch_size * (facts.merge if name == "gemma4_unified" else 1)
    height, width = planes[0].shape[0] // side, planes[0].shape[1] // side
    patches = planes[0].reshape(height, side, width, side, 3)
    grid = torch.tensor([[1, height, width]])
    if name.startswith(("qwen", "glm")):
        blocks = patches.reshape(height // 2, 2, side, width // 2, 2, side, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        twice = np.stack([blocks, blocks], axis=5).reshape(height * width, -1)
        return {"pixel_values": torch.from_numpy(twice), "image_grid_thw": grid}, rows
    if name == "paddleocr_vl":
        flat = patches.transpose(0, 2, 4, 1, 3).reshape(height * width, 3, side, side)
        return {"pixel_values": torch.from_numpy(np.ascontiguousarray(flat)), "image_grid_thw": grid}, rows
    if name in ("lfm2_vl", "gemma4", "gemma4_unified"):
        flat = patches.transpose(0, 2, 1, 3, 4).reshape(1, height * width, -1)
        values = {"pixel_values": torch.from_numpy(np.ascontiguousarray(flat, np.float32))}
        if name.startswith("gemma4"):
            y, x = np.divmod(np.arange(height * width), width)
            return {**values, "image_position_ids": torch.from_numpy(np.stack([x, y], axis=1))[None]}, rows
        mask = torch.ones(1, height * width).int()
        return {**values, "spatial_shapes": grid[:, 1:], "pixel_attention_mask": mask}, rows
    images = torch.from_numpy(np.stack([plane.transpose(2, 0, 1) for plane in planes]).astype(np.float32))
    if name in ("idefics3", "smolvlm"):
        return {"pixel_values": images[None]}, rows
    inputs: dict[str, Any] = {"pixel_values": images}
    if name in ("pixtral", "mistral3", "lighton_ocr"):
        inputs["image_sizes"] = torch.tensor([planes[0].shape[:2]])
    if name in ("pixtral", "mistral3"):
        merge = 2 if name == "mistral3" else 1
        line_end = tokenizer().token_to_id(LINE_END)
        lines = [[*(width // merge) * [PICTURE], line_end] for _ in range(height // merge)]
        rows = [token for line in lines for token in line][:-1]
    return inputs, rows
