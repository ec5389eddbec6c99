"""Every option of the library, checked when it is made."""

from typing import TYPE_CHECKING

from oxillama.base.config.engine import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    EngineConfig,
    SchedulerConfig,
    available_cpus,
)
from oxillama.base.config.generation import GenerationOptions
from oxillama.base.config.sampler import SamplerConfig

if TYPE_CHECKING:
    from oxillama.base.config.fields import (
        EngineFields as EngineFields,
        GenerationFields as GenerationFields,
        SamplerFields as SamplerFields,
    )

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "EngineConfig",
    "GenerationOptions",
    "SamplerConfig",
    "SchedulerConfig",
    "available_cpus",
]
