"""Facts of a projector file, for ``oxillama info``."""

from __future__ import annotations

from typing import Any

from oxillama._kernels import best
from oxillama.errors import OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from oxillama.media.encoder import MediaEncoder
from oxillama.media.facts import EncoderFacts, VisionFacts


def is_projector(file: ModelFile) -> bool:
    """Whether a file is one of encoders."""
    return file.metadata.get("general.architecture") == "clip"


def describe_projector(path: str, file: ModelFile) -> dict[str, Any]:
    """What the encoders of a file take and give; ``missing`` says why they cannot be loaded."""
    n = sum(info.n_elements for info in file.tensors.values())
    n_bytes = sum(info.nbytes for info in file.tensors.values())
    found: dict[str, Any] = {
        "file": path,
        "architecture": "clip, encoders of media",
        "name": file.metadata.get("general.name"),
        "parameters": n,
        "bits_per_weight": round(8 * n_bytes / n, 3) if n else 0,
    }
    try:
        encoder = MediaEncoder(path, best(), 1)
    except OxiLlamaError as error:
        return found | {"missing": [str(error)]}
    with encoder.file:
        vision, audio = encoder.vision, encoder.audio
        found |= {"pictures": None, "sounds": None, "embedding_length": encoder.out_width}
        if vision is not None:
            found["pictures"] = describe_encoder(vision.facts) | describe_tiles(vision.facts)
        if audio is not None:
            found["sounds"] = describe_encoder(audio.facts) | {"mel_bins": audio.facts.n_mels}
        return found | {"unused": encoder.unused or None, "missing": []}


def describe_encoder(facts: EncoderFacts) -> dict[str, Any]:
    """The projector, and sizes that all encoders have."""
    return {
        "kind": facts.name,
        "layers": facts.n_blocks,
        "width": facts.width,
        "heads": facts.n_heads,
        "feed_forward": facts.n_ff,
    }


def describe_tiles(facts: VisionFacts) -> dict[str, Any]:
    """How pictures are cut."""
    return {
        "image_size": facts.image_size,
        "patch_size": facts.patch_size,
        "patches_to_a_token": facts.merge**2,
    }
