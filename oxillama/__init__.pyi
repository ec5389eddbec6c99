"""The public names. `oxillama` imports the module of a name when the name is first used."""

from . import errors as errors
from .apps import demo as demo
from .apps.quantize.calibration import collect_imatrix as collect_imatrix
from .apps.quantize.imatrix import ImportanceMatrix as ImportanceMatrix
from .apps.quantize.model import Quantization as Quantization, quantize_model as quantize_model
from .base import config as config
from .base.config import (
    MAX_DECODE_WAIT_MS as MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK as PREFILL_CHUNK,
    EngineConfig as EngineConfig,
    GenerationOptions as GenerationOptions,
    SamplerConfig as SamplerConfig,
    SchedulerConfig as SchedulerConfig,
)
from .base.config.offload import OffloadPolicy as OffloadPolicy
from .base.version import __version__ as __version__
from .compat.beams import EngineBeamAdapter as EngineBeamAdapter
from .compat.speculation import (
    Rewindable as Rewindable,
    SpeculativeConfig as SpeculativeConfig,
    SpeculativeDeltaSync as SpeculativeDeltaSync,
    SpeculativeEngine as SpeculativeEngine,
)
from .engine.async_engine import AsyncEngine as AsyncEngine
from .engine.batch import ScheduledBatch as ScheduledBatch
from .engine.cache.contiguous import KvCache as KvCache
from .engine.cache.kv import PagedKvCache as PagedKvCache
from .engine.cache.kv_pool import KvCachePool as KvCachePool
from .engine.cache.prefix import PrefixKvCache as PrefixKvCache
from .engine.cache.recurrent_states import RecurrentStatePool as RecurrentStatePool
from .engine.completion import (
    Completion as Completion,
    Timings as Timings,
    Usage as Usage,
)
from .engine.engine import InferenceEngine as InferenceEngine
from .engine.features.beam_search import (
    BeamForwardPass as BeamForwardPass,
    BeamHypothesis as BeamHypothesis,
    BeamSearchConfig as BeamSearchConfig,
    beam_generate as beam_generate,
)
from .engine.features.decisions.answers import (
    ChoiceAnswer as ChoiceAnswer,
    Decision as Decision,
    PredicateAnswer as PredicateAnswer,
    ScoreAnswer as ScoreAnswer,
)
from .engine.features.decisions.questions import Choice as Choice, Predicate as Predicate, Score as Score
from .engine.features.embeddings import PoolingMode as PoolingMode, pool_hidden_states as pool_hidden_states
from .engine.features.observability.metrics import (
    EngineMetrics as EngineMetrics,
    metrics_text as metrics_text,
)
from .engine.features.observability.metrics_snapshot import MetricsSnapshot as MetricsSnapshot
from .engine.features.packed_files import pack_model as pack_model
from .engine.generation import (
    Generation as Generation,
)
from .engine.sampling.batch import sample_batch as sample_batch
from .engine.sampling.chain import SamplerChain as SamplerChain
from .engine.sampling.logprobs import (
    SampledToken as SampledToken,
    TokenLogprobs as TokenLogprobs,
    token_logprobs as token_logprobs,
)
from .engine.sampling.protocols import SamplerStage as SamplerStage, TokenConstraint as TokenConstraint
from .engine.sampling.sampler import Sampler as Sampler, sample as sample
from .engine.scheduler import Scheduler as Scheduler
from .engine.sequence import SeqState as SeqState, Sequence as Sequence
from .errors import (
    AnswerCut as AnswerCut,
    ChatTemplateError as ChatTemplateError,
    ConfigError as ConfigError,
    EngineClosed as EngineClosed,
    GenerationCancelled as GenerationCancelled,
    GenerationTimeout as GenerationTimeout,
    GGUFError as GGUFError,
    GrammarError as GrammarError,
    KvCacheFullError as KvCacheFullError,
    LoadError as LoadError,
    MediaError as MediaError,
    ModelFileError as ModelFileError,
    ModelFingerprintMismatch as ModelFingerprintMismatch,
    OxiLlamaError as OxiLlamaError,
    PositionBeyondEnd as PositionBeyondEnd,
    PromptError as PromptError,
    QueueFull as QueueFull,
    ReceiptError as ReceiptError,
    RequestFailed as RequestFailed,
    RewindError as RewindError,
    RewindNotSupported as RewindNotSupported,
    SamplingError as SamplingError,
    SnapshotIncompatible as SnapshotIncompatible,
    SpecSnapshotIncompatible as SpecSnapshotIncompatible,
    StageFailed as StageFailed,
    TensorNotFound as TensorNotFound,
    TokenizerError as TokenizerError,
)
from .models.adapters.lora import LoadedLora as LoadedLora
from .models.adapters.stack import LoraStack as LoraStack
from .models.flash_attention import (
    batched_flash_attention as batched_flash_attention,
    flash_attention_forward as flash_attention_forward,
)
from .models.offload.pager import LayerPager as LayerPager
from .models.offload.pressure import MemoryPressureProbe as MemoryPressureProbe
from .sessions.receipt import Receipt as Receipt
from .sessions.session import Session as Session
from .sessions.snapshot import EngineSnapshot as EngineSnapshot
from .sessions.speculative import SpeculativeEngineSnapshot as SpeculativeEngineSnapshot
from .sessions.verdict import Verification as Verification
from .sessions.verify_batch import verify_batch as verify_batch
from .speculation.decoder import (
    AsyncSpecConfig as AsyncSpecConfig,
    CancellationToken as CancellationToken,
    SpecStats as SpecStats,
    SpeculativeDecoder as SpeculativeDecoder,
)
from .speculation.state import SpeculationStats as SpeculationStats
from .text.chat.bridge import TokenizerBridge as TokenizerBridge
from .text.grammar import Grammar as Grammar, GrammarState as GrammarState

__all__: list[str]
