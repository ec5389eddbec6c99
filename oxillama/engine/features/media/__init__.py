"""Pictures and sounds in prompts: input embeddings of a sequence, their prompts and their state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxillama.engine.engine import InferenceEngine
    from oxillama.models.media.encoder import Encoded

__all__ = ["encode_media"]


def encode_media(engine: InferenceEngine, source: Any) -> Encoded:
    """The embeddings of a picture or a sound, as a prompt of the engine's model takes them.

    They are kept for later prompts, and are the same bits on every machine.

    Args:
        source: path, bytes, data URL, picture of Pillow; array of uint8 (h, w, 3), or of floats or int16 (n,)
            at 16,000 samples per second.

    Returns:
        Encoded: ``rows`` has the tiles of a picture, or the pieces of a sound, each with ``values``, float32
            (tokens, width). The width is the model's, times 1 + the layers of a deep stack.

    Raises:
        MediaError: it cannot be decoded, is empty, or is over a limit.
        ConfigError: the model has no projector file, or that has no encoder for it.
        ModelFileError, GGUFError, LoadError: the projector file cannot be loaded.
    """
    found: Encoded = engine.model.feature("media").encode(source)
    return found
