"""GGUF files: header, tensors, fingerprint, writer, file types; `hub` finds them by name."""
