"""Facts: every option of the library, checked when it is made."""

from typing import TYPE_CHECKING

from oxillama.config.engine import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    EngineConfig,
    SchedulerConfig,
    available_cpus,
)
from oxillama.config.generation import GenerationOptions
from oxillama.config.sampler import SamplerConfig

if TYPE_CHECKING:
    from oxillama.config.fields import EngineFields as EngineFields
    from oxillama.config.fields import GenerationFields as GenerationFields
    from oxillama.config.fields import SamplerFields as SamplerFields

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "EngineConfig",
    "GenerationOptions",
    "SamplerConfig",
    "SchedulerConfig",
    "available_cpus",
]
