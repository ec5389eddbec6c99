"""The prefix cache on the disk."""
