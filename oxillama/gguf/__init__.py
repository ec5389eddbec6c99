"""Files: GGUF: a header reader, the mapped file with its tensors, a writer."""
