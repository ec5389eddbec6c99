"""llama-server's own interface: texts, infill, tokens, templates, and what is known of the server."""
