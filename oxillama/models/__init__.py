"""Model families. Importing this registers them all."""

from oxillama.models import llama as llama
from oxillama.models.decoder import Decoder
from oxillama.models.spec import FAMILIES, Family, Spec, read_spec

__all__ = ["FAMILIES", "Decoder", "Family", "Spec", "read_spec"]
