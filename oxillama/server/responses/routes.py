"""The paths of OpenAI's responses; the second name of a path is llama-server's."""

from oxillama.server.interface import Interface
from oxillama.server.responses.endpoints import count_tokens, delete_response, response, responses

RESPONSES = Interface(
    (
        ("POST", "/v1/responses", responses),
        ("POST", "/responses", responses),
        ("POST", "/v1/responses/input_tokens", count_tokens),
        ("GET", "/v1/responses/{id}", response),
        ("DELETE", "/v1/responses/{id}", delete_response),
    )
)
