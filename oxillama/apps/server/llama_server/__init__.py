"""llama-server's own interface: texts, infill, tokens, templates, and the state of the server."""
