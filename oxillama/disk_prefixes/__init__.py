"""Work: the prefix cache on the disk."""
