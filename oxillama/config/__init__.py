"""Facts: every option of the library, checked when it is made."""

from oxillama.config.engine import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    EngineConfig,
    EngineFields,
    SchedulerConfig,
    available_cpus,
)
from oxillama.config.generation import GenerationFields, GenerationOptions
from oxillama.config.offload import OffloadPolicy
from oxillama.config.sampler import SamplerConfig, SamplerFields

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "EngineConfig",
    "EngineFields",
    "GenerationFields",
    "GenerationOptions",
    "OffloadPolicy",
    "SamplerConfig",
    "SamplerFields",
    "SchedulerConfig",
    "available_cpus",
]
