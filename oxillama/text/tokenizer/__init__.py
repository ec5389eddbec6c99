"""From text to token ids and back, by the vocabulary in a GGUF file or a ``tokenizer.json``."""
