"""Work: names of the reference implementation for what the engine does by other names."""
