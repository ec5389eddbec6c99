"""The adapters of a sequence, and the LoRA files they come from."""
