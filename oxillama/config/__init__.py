"""Facts: every option of the library, checked when it is made."""

from oxillama.config.engine import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    EngineConfig,
    SchedulerConfig,
    available_cpus,
)
from oxillama.config.sampler import SamplerConfig

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "EngineConfig",
    "SamplerConfig",
    "SchedulerConfig",
    "available_cpus",
]
