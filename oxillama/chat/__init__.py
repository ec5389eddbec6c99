"""Files: chat templates, rendered in a sandbox."""
