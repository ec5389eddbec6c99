"""The table of features: which module or package implements which option.

A module is imported when an option first asks for it. This table is all that the core knows of features.
Without a module the core runs, and the module's options are ConfigErrors that name the option and the module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxillama.base.lazy_import import resolve
from oxillama.errors import ConfigError


@dataclass(frozen=True, repr=False)
class Feature:
    """A feature: some options, and the module that implements them.

    Attributes:
        options: of `EngineConfig`, `GenerationOptions` or `SamplerConfig`, or methods of `InferenceEngine`.
        factory: "module:name" of what the core calls.
        stage: when the core looks for the option, one of the constants below; "" if it calls the feature
            by name.
        is_always: whether the stage has the feature without an option, too, if its module is installed.
    """

    options: tuple[str, ...]
    factory: str
    stage: str = ""
    is_always: bool = False


PREFIX_STORE = "prefix store"  # when a model is loaded: factory(model, store) wraps a `PrefixStore`
OBSERVER = "observer"  # when a model is loaded: factory(model) is an `Observer`
LOAD = "load"  # when a model has been loaded: `LoadedModel.feature`
PARSER = "parser"  # before a request is made: `LoadedModel.feature(name).new(options, tokens)`
REQUEST = "request"  # when a request has been made: factory(model, request)

FEATURES = {
    # features that a model keeps
    "adapters": Feature(("adapters",), "oxillama.models.adapters.registry:Adapters.of", LOAD),
    "constraints": Feature(
        ("grammar", "json_schema", "regex", "choices", "structural_tag"),
        "oxillama.engine.features.constraints:Constraints.of",
    ),
    "parsers": Feature(
        ("tools", "message_format"), "oxillama.text.toolcalls.answer_format:Parsers.of", PARSER
    ),
    "media": Feature(("mmproj",), "oxillama.engine.features.media.feature:Media", LOAD),
    "state of media": Feature(("snapshot",), "oxillama.engine.features.media.state:MediaState"),
    "offload": Feature(("offload_budget",), "oxillama.models.offload.pager:new_pager"),
    "split weights": Feature(("numa",), "oxillama.models.weights.nodes:split_store"),
    "interleaved pages": Feature(("numa",), "oxillama.models.weights.nodes:interleaving"),
    "packing": Feature(("packed",), "oxillama.engine.features.packed_files:open_packed"),
    "disk prefixes": Feature(
        ("prefix_cache_dir",), "oxillama.engine.features.disk_prefixes.store:DiskPrefixes.of", PREFIX_STORE
    ),
    "metrics": Feature(
        ("metrics",),
        "oxillama.engine.features.observability.metrics:EngineMetrics.of",
        OBSERVER,
        is_always=True,
    ),
    "log": Feature(
        ("log",), "oxillama.engine.features.observability.request_log:RequestLog.of", OBSERVER, is_always=True
    ),
    "trace": Feature(("trace",), "oxillama.engine.features.observability.tracing:Tracer.of", OBSERVER),
    "drafters": Feature(("speculate", "draft_corpora"), "oxillama.speculation.loading:Drafters.of", LOAD),
    "speculator": Feature(("speculate",), "oxillama.speculation.speculator:new_speculator"),
    "forced tokens": Feature(("jump_forward",), "oxillama.speculation.jump_forward:new_jump_forward"),
    "shared prompts": Feature(("n",), "oxillama.engine.features.shared_prompts:install"),
    "evictable sessions": Feature(("session",), "oxillama.sessions.session:EvictableSessions"),
    "tokenizer digest": Feature(("snapshot",), "oxillama.sessions.sequences:tokenizer_digest"),
    # features that a request keeps
    "reasoning budget": Feature(
        ("reasoning_budget",), "oxillama.engine.features.reasoning_budget:attach", REQUEST
    ),
    "speculation": Feature(("speculate",), "oxillama.speculation.attaching:attach", REQUEST),
    "jump-forward": Feature(("jump_forward",), "oxillama.speculation.jump_forward:attach", REQUEST),
    "receipts": Feature(("receipt",), "oxillama.sessions.recorder:attach", REQUEST),
    # functions that methods call
    "samples": Feature(("n",), "oxillama.engine.features.sample_seeds:sample_requests"),
    "numbers of samples": Feature(("best_of",), "oxillama.engine.features.sample_seeds:numbers_of_samples"),
    "best samples": Feature(("best_of",), "oxillama.engine.features.sample_seeds:best_samples"),
    "embeddings": Feature(("embed",), "oxillama.engine.features.embeddings:embeddings"),
    "hidden states": Feature(("hidden_states",), "oxillama.engine.features.embeddings:started"),
    "rerank": Feature(("rerank",), "oxillama.engine.features.embeddings:rankings"),
    "decisions": Feature(("decide",), "oxillama.engine.features.decisions.deciding:started"),
    "decision prompts": Feature(("decide",), "oxillama.engine.features.decisions.deciding:DecisionRooms"),
    "session": Feature(("session",), "oxillama.sessions.session:Session"),
    "snapshot": Feature(("snapshot",), "oxillama.sessions.capture:snapshot_of_request"),
    "restore": Feature(("restore",), "oxillama.sessions.restore:restore"),
    "chat": Feature(("chat",), "oxillama.text.chat.prompt:chat_prompt"),
    "parse": Feature(("parse",), "oxillama.text.toolcalls.arguments:parsed"),
    "verify": Feature(("verify",), "oxillama.sessions.verification:verify"),
    "beam search": Feature(("beam_search",), "oxillama.engine.features.beam_search:beam_search"),
    "messages": Feature(("message",), "oxillama.text.toolcalls.openai_form:answer_message"),
    "hub": Feature(("from_pretrained",), "oxillama.gguf.hub.pretrained:pretrained_path"),
}

STATES = {
    "speculation": "oxillama.speculation.state:SpeculationState",
    "receipt": "oxillama.sessions.recorder:ReceiptState",
}
"""By key of `Request.parts`: the dataclass that the part's ``state()`` returns, and its ``restore`` takes.
``restore`` gets None from a snapshot that has none. Parts without an entry are no part of snapshots."""


def load(name: str) -> Any:
    """The factory of a feature. Raises ConfigError if its module is not installed."""
    feature = FEATURES[name]
    module = feature.factory.partition(":")[0]
    try:
        return resolve(feature.factory)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something else that the module imports
        raise ConfigError(f"{feature.options[0]}: needs {error.name}, which is not installed") from error


def asked(stage: str, *options: Any) -> list[str]:
    """The names of the features of a stage that an option asks for, in the order of the table.

    Args:
        options: objects with options; the first that has a value for an option decides.
    """
    return [
        name
        for name, feature in FEATURES.items()
        if feature.stage == stage
        and (feature.is_always or any(_is_asked(option, options) for option in feature.options))
    ]


def _is_asked(option: str, options: tuple[Any, ...]) -> bool:
    values = (getattr(each, option, None) for each in options)
    value = next((value for value in values if value is not None), False)
    return value is not False and not (isinstance(value, str | tuple) and value in ("off", ()))


def add_observers(model: Any, found: dict[str, Any]) -> None:
    """Makes the observers of a model that is being loaded, by name. Raises ConfigError if an option needs a
    module that is not installed."""
    for name in asked(OBSERVER, model.config):
        try:
            found[name] = load(name)(model)
        except ConfigError:
            if not FEATURES[name].is_always:
                raise


def state(name: str) -> Any:
    """The dataclass of the state of a part of requests."""
    return resolve(STATES[name])
