"""A GGUF file's metadata and tensors become layers that run one ragged batch of tokens."""

from oxillama.models.decoder import Decoder
from oxillama.models.family import Family
from oxillama.models.read_spec import read_spec
from oxillama.models.registry import FAMILIES
from oxillama.models.spec import Spec

__all__ = ["FAMILIES", "Decoder", "Family", "Spec", "read_spec"]
