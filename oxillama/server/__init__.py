"""Faces: a model served over HTTP, for the clients that people already have.

A request passes `gate` (request id, key, limits), its body is checked by `bodies` and `options`, `running`
starts its generations in the engine and reads them as one stream of deltas, and a folder for each interface
(`openai`, `llama_server`) makes answers of these. `stream` sends them as server-sent events, `errors` says
what went wrong in OpenAI's shape, `app` puts all of it together.

Nothing here runs a model: the event loop only waits, and what takes time (tokenizing, compiling a grammar,
scoring a prompt) is done in threads.
"""
