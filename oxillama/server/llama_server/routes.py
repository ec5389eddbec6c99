"""llama-server's paths, and those about the server itself."""

from oxillama.server.interface import Interface
from oxillama.server.llama_server import adapters, completion, slots, status, tokens

LLAMA_SERVER = Interface(
    (
        ("GET", "/health", status.health),
        ("GET", "/v1/health", status.health),
        ("GET", "/metrics", status.metrics),
        ("GET", "/v1/models", status.models),
        ("GET", "/v1/models/{model:path}", status.model),
        ("GET", "/models", status.models),
        ("GET", "/props", status.props),
        ("GET", "/slots", slots.slots),
        ("POST", "/slots/{id_slot}", slots.change_slot),
        ("GET", "/lora-adapters", adapters.adapters),
        ("POST", "/lora-adapters", adapters.set_adapters),
        ("POST", "/completion", completion.completion),
        ("POST", "/completions", completion.completion),
        ("POST", "/infill", completion.infill),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("POST", "/apply-template", tokens.apply_template),
    )
)
