"""Work: beam search."""
