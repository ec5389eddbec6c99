"""Files: GGUF: a header reader, the file with its tensors, a writer."""
