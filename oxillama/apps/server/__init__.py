"""A server of models over HTTP, for existing clients of OpenAI, Anthropic, Ollama and llama-server.

A request passes `gate` (request id, key, limits), and its body is checked by `bodies` and `options`.
`running` gives it its model, which `models` loads and unloads, starts its generations in the engine and reads
them as one stream of deltas. A folder for each interface (`openai`, `responses`, `anthropic`, `llama_server`,
`ollama`) makes answers of these; `chats` is the one way for the conversations of all. `stream` sends answers
as events or lines, `errors` says what went wrong, `app` has all paths. `slots` and `loras` are sequences and
adapters by number, `page` is what a browser finds at ``/``.

Nothing here runs a model: the event loop only waits, and what takes time (tokenizing, compiling a grammar,
scoring a prompt) is done in threads of `workers`, and the largest part of it in `processes`.
"""
