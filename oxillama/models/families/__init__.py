"""The facts of all architectures; the import registers them."""

from oxillama.models.families import bert as bert
from oxillama.models.families import cohere as cohere
from oxillama.models.families import deepseek as deepseek
from oxillama.models.families import delta as delta
from oxillama.models.families import dense as dense
from oxillama.models.families import gemma as gemma
from oxillama.models.families import glm as glm
from oxillama.models.families import gpt as gpt
from oxillama.models.families import hybrids as hybrids
from oxillama.models.families import llama as llama
from oxillama.models.families import mamba as mamba
from oxillama.models.families import olmo as olmo
from oxillama.models.families import phi as phi
from oxillama.models.families import qwen as qwen
from oxillama.models.families import rwkv as rwkv
from oxillama.models.families import sparse as sparse
