"""Models: a GGUF file's metadata and tensors become layers that run one ragged batch."""

from oxillama.models import families as families
from oxillama.models.decoder import Decoder
from oxillama.models.family import FAMILIES, Family
from oxillama.models.spec import Spec, read_spec

__all__ = ["FAMILIES", "Decoder", "Family", "Spec", "read_spec"]
