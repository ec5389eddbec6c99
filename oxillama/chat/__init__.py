"""Files. Chat templates, rendered in a sandbox."""
