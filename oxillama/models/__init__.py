"""Model families. Importing this registers them all."""

from oxillama.models import bert as bert
from oxillama.models import cohere as cohere
from oxillama.models import deepseek as deepseek
from oxillama.models import gemma as gemma
from oxillama.models import glm as glm
from oxillama.models import gpt as gpt
from oxillama.models import llama as llama
from oxillama.models import mamba as mamba
from oxillama.models import olmo as olmo
from oxillama.models import phi as phi
from oxillama.models import qwen as qwen
from oxillama.models import rwkv as rwkv
from oxillama.models.decoder import Decoder
from oxillama.models.family import FAMILIES, Family
from oxillama.models.spec import Spec, read_spec

__all__ = ["FAMILIES", "Decoder", "Family", "Spec", "read_spec"]
