"""Which room answers which option. A room is imported when an option first asks for it.

This table is all that the core knows of features. Without a room the core runs, and an option of that room is
a ConfigError that names the option and the room.
"""

from __future__ import annotations

from typing import Any

from oxillama.errors import ConfigError
from oxillama.frozen import frozen
from oxillama.on_use import resolve


@frozen()
class Feature:
    """A room behind some options.

    Attributes
    ----------
    options : of `EngineConfig`, `GenerationOptions` or `SamplerConfig`, or methods of `InferenceEngine`.
    factory : "module:name" of what the core calls.
    """

    options: tuple[str, ...]
    factory: str


FEATURES = {
    # of a model
    "adapters": Feature(("adapters",), "oxillama.adapters.registry:Adapters.of"),
    "constraints": Feature(
        ("grammar", "json_schema", "regex", "choices", "structural_tag"),
        "oxillama.structured.constraints:Constraints.of",
    ),
    "parsers": Feature(("tools", "message_format"), "oxillama.toolcalls.parsing:Parsers.of"),
    "media": Feature(("mmproj",), "oxillama.media.feature:Media"),
    "state of media": Feature(("snapshot",), "oxillama.media.state:MediaState"),
    "offload": Feature(("offload_budget",), "oxillama.offload.store:new_pager"),
    "packing": Feature(("packed",), "oxillama.packing.files:open_packed"),
    "disk prefixes": Feature(("prefix_cache_dir",), "oxillama.disk_prefixes.store:DiskPrefixes"),
    "metrics": Feature(("metrics",), "oxillama.observability.metrics:EngineMetrics.of"),
    "log": Feature(("log",), "oxillama.observability.request_log:RequestLog"),
    "trace": Feature(("trace",), "oxillama.observability.tracing:Tracer"),
    "drafters": Feature(("speculate",), "oxillama.speculation.loading:Drafters.of"),
    "speculator": Feature(("speculate",), "oxillama.speculation.speculator:new_speculator"),
    "forced tokens": Feature(("jump_forward",), "oxillama.speculation.jump_forward:new_jump_forward"),
    "shared prompts": Feature(("n",), "oxillama.samples.shared_prompts:install"),
    "giving way": Feature(("session",), "oxillama.sessions.giving_way:GivingWay"),
    "tokenizer digest": Feature(("snapshot",), "oxillama.sessions.sequences:tokenizer_digest"),
    # of a request
    "reasoning budget": Feature(("reasoning_budget",), "oxillama.toolcalls.reasoning_budget:attach"),
    "speculation": Feature(("speculate",), "oxillama.speculation.attaching:attach"),
    "jump-forward": Feature(("jump_forward",), "oxillama.speculation.jump_forward:attach"),
    "receipts": Feature(("receipt",), "oxillama.sessions.recorder:attach"),
    # of calls
    "samples": Feature(("n",), "oxillama.samples.seeds:sample_requests"),
    "numbers of samples": Feature(("best_of",), "oxillama.samples.seeds:numbers_of_samples"),
    "best samples": Feature(("best_of",), "oxillama.samples.seeds:best_samples"),
    "embeddings": Feature(("embed",), "oxillama.embeddings.pooling:embeddings"),
    "hidden states": Feature(("hidden_states",), "oxillama.embeddings.pooling:Embedding"),
    "rerank": Feature(("rerank",), "oxillama.embeddings.pooling:rankings"),
    "session": Feature(("session",), "oxillama.sessions.session:Session"),
    "snapshot": Feature(("snapshot",), "oxillama.sessions.capture:snapshot_of_request"),
    "restore": Feature(("restore",), "oxillama.sessions.restore:restore"),
    "chat": Feature(("chat",), "oxillama.conversations.prompt:chat_prompt"),
    "verify": Feature(("verify",), "oxillama.sessions.verification:verify"),
    "beam search": Feature(("beam_search",), "oxillama.beams.search:beam_search"),
    "messages": Feature(("message",), "oxillama.toolcalls.conversation:answer_message"),
    "hub": Feature(("from_pretrained",), "oxillama.hub.pretrained:pretrained_path"),
}

STATES = {
    "speculation": "oxillama.speculation.state:SpeculationState",
    "receipt": "oxillama.sessions.recorder:ReceiptState",
}
"""By key of `Request.parts`: the dataclass that the part's ``state()`` returns, and its ``restore`` takes.
``restore`` gets None from a snapshot that has none. Parts without an entry are no part of snapshots."""


def load(name: str) -> Any:
    """The factory of a feature. Raises ConfigError if its room is not there."""
    feature = FEATURES[name]
    module = feature.factory.partition(":")[0]
    try:
        return resolve(feature.factory)
    except ModuleNotFoundError as error:
        room = ".".join(module.split(".")[:2])
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something else that the room imports
        raise ConfigError(f"{feature.options[0]}: needs {room}, which is not installed") from error


def find(name: str) -> Any | None:
    """The factory of a feature; None if its room is not there."""
    try:
        return load(name)
    except ConfigError:
        return None


def state(name: str) -> Any:
    """The dataclass of the state of a part of requests."""
    return resolve(STATES[name])
