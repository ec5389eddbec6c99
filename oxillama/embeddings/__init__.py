"""Work: embeddings and scores of texts."""
